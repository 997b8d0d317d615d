// A tile of a matrix product by a work-group of LANES = 4 x 32, on matrix units (NVIDIA).
//
//   tile[rows][columns] += left[rows][inner] x right[inner][columns]
//
// Both factors are in local memory in half precision, the way round that they have in memory:
// lines of neighbours, `pitch` elements apart. Those that lie elsewhere come there in slices,
// DEPTH inner elements at a time. Products are summed in float32. Matrix units take 16 by 16
// elements of the left factor and 16 by 8 of the right one. The warps of a group are DOWN by
// 4 / DOWN parts of the tile, each of BLOCKS times 16 rows (HALVES * 8 of which are wanted) and
// PANELS times 8 columns; of 8 by 8 elements a lane has two neighbours in row lane / 4.

#define DEPTH 64
#define SLICE_PITCH 72  // of 64 elements and 8 more, so that 8 lines meet all banks once

// Two or four elements of a line at once, each in its turn; n is known to the compiler.
#define HALF_OF_2(all, n) half_of(all, n)
#define HALF_OF_4(all, n) half_of((n) < 2 ? (all).x : (all).y, (n) & 1)

static float half_of(uint two, int high) {
  float one;
  if (high)
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(one) : "r"(two));
  else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(one) : "r"(two));
  return one;
}

static uint halves_2(float low, float high) {
  uint two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

static uint2 halves_4(float a, float b, float c, float d) {
  return (uint2)(halves_2(a, b), halves_2(c, d));
}

// sums += a x b. Lanes hold: a, elements 2 * (lane % 4) and the next of rows lane / 4; so of b's
// columns; of the sums, the same places of rows lane / 4 and 8 below.
static void multiply(float *sums, const uint *a, const uint *b, int whole) {
  if (whole)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// Squares of 8 by 8 halves, a lane's two neighbours of each: along lines, or across them.
#define SQUARES_2(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                \
               : "=r"((x)[0]), "=r"((x)[1]) : "r"(at) : "memory")
#define SQUARES_4(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
               : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3]) : "r"(at) : "memory")

// Where a square's line that this lane asks for begins, in bytes of local memory; `first` is the
// factor's first element. Lines that would meet the same banks have their eighths exchanged.
static uint square(uint room, int first, int pitch, int line, int column, int eighth) {
  const int turned = first % pitch + column ^ (pitch % 64 ? 0 : eighth * 8);
  return room + 2 * ((first / pitch + line + eighth) * pitch + turned);
}

// How many inner elements a slice has: whole steps of 8, those beyond the last are zero.
static int filled(int inner, int first) { return min(DEPTH, (inner - first + 7) / 8 * 8); }

// `width` rows (or columns) of a factor; each lane moves four neighbours at once.
static void load_slice(__local half *slice, int width, __global const float *from, int stride,
                       int inner_stride, int aligned, int count, int first, int inner) {
  const int along_inner = inner_stride == 1, depth = filled(inner, first);
  const int lines = along_inner ? width : depth;
  const int fours = (along_inner ? depth : width) / 4, all = lines * fours;
  const int next = along_inner ? 1 : stride;
  const int fast = aligned && next == 1 && (along_inner ? inner : count) % 4 == 0;
  #pragma unroll
  for (int start = 0; start < all; start += 4 * LANES) {
    float4 x[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0), line = i / fours, begin = i % fours * 4;
      const int m = along_inner ? line : begin, k = first + (along_inner ? begin : line);
      __global const float *at = from + m * stride + k * inner_stride;
      x[j] = 0.f;
      if (i >= all) continue;
      if (fast) {
        if (m < count && k < inner) x[j] = *(__global const float4 *)at;
      } else if (along_inner ? m < count : k < inner) {
        const int left = along_inner ? inner - k : count - m;
        if (left > 0) x[j].x = at[0];
        if (left > 1) x[j].y = at[next];
        if (left > 2) x[j].z = at[2 * next];
        if (left > 3) x[j].w = at[3 * next];
      }
    }
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0), line = i / fours, begin = i % fours * 4;
      if (i < all)
        *(__local uint2 *)(slice + line * SLICE_PITCH + begin) =
            halves_4(x[j].x, x[j].y, x[j].z, x[j].w);
    }
  }
}

// Of the right factor's columns the product with ones is the sum: if `summed`, the warps above
// one another share a part's panels. Of the tile's rows and columns so many exist.
#define TILE_PRODUCT(NAME, DOWN, BLOCKS, HALVES, PANELS)                                        \
  static void NAME(float *tile, float *sums, int summed, uint left, int left_first,             \
                   int left_pitch, int along_left, uint right, int right_first,                 \
                   int right_pitch, int along_right, int rows, int columns, int depth) {        \
    const int lane = get_local_id(0), warp = lane / 32;                                         \
    const int eighth = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 % 2 * 8;             \
    const int row = warp / (4 / DOWN) * BLOCKS * 16, column = warp % (4 / DOWN) * PANELS * 8;   \
    const uint ones[4] = {0x3c003c00u, 0u, 0x3c003c00u, 0u};                                    \
    _Pragma("unroll")                                                                           \
    for (int k = 0; k < depth; k += 16) {                                                       \
      const int whole = k + 8 < depth;                                                          \
      const int k_odd = whole ? k + odd : k, k_upper = whole ? k + upper : k;                   \
      uint b[2 * PANELS];                                                                       \
      _Pragma("unroll")                                                                         \
      for (int j = 0; j < PANELS; j += 2) {                                                     \
        const int n = PANELS > 1 ? column + 8 * j + upper : column;                             \
        const uint at = along_right ? square(right, right_first, right_pitch, n, k_odd, eighth) \
                                    : square(right, right_first, right_pitch, k_odd, n, eighth);\
        if (columns < (4 / DOWN) * PANELS * 8 && column + 8 * j >= columns) continue;           \
        if (PANELS > 1 && along_right) SQUARES_4(b + 2 * j, at, "");                            \
        else if (PANELS > 1) SQUARES_4(b + 2 * j, at, ".trans");                                \
        else if (along_right) SQUARES_2(b, at, "");                                             \
        else SQUARES_2(b, at, ".trans");                                                        \
      }                                                                                         \
      _Pragma("unroll")                                                                         \
      for (int i = 0; i < BLOCKS; ++i) {                                                        \
        const int m = row + 16 * i;                                                             \
        uint a[4];                                                                              \
        if (rows < DOWN * BLOCKS * 16 && m >= rows) continue;                                   \
        if (along_left)                                                                         \
          SQUARES_4(a, square(left, left_first, left_pitch, m + odd, k_upper, eighth), "");     \
        else                                                                                    \
          SQUARES_4(a, square(left, left_first, left_pitch, k_upper, m + odd, eighth), ".trans");\
        _Pragma("unroll")                                                                       \
        for (int j = 0; j < PANELS; ++j) {                                                      \
          float c[4] = {0.f, 0.f, 0.f, 0.f}, *own = tile + (i * PANELS + j) * 2 * HALVES;       \
          for (int e = 0; e < 2 * HALVES; ++e) c[e] = own[e];                                   \
          multiply(c, a, b + 2 * j, whole);                                                     \
          for (int e = 0; e < 2 * HALVES; ++e) own[e] = c[e];                                   \
        }                                                                                       \
      }                                                                                         \
      if (summed)                                                                               \
        _Pragma("unroll")                                                                       \
        for (int j = 0; j < PANELS; ++j)                                                        \
          if (PANELS < DOWN || j / (PANELS / DOWN) == warp / (4 / DOWN)) {                      \
            float c[4] = {0.f, 0.f, 0.f, 0.f}, *own = sums + j % max(1, PANELS / DOWN) * 2;     \
            for (int e = 0; e < 2; ++e) c[e] = own[e];                                          \
            multiply(c, ones, b + 2 * j, whole);                                                \
            for (int e = 0; e < 2; ++e) own[e] = c[e];                                          \
          }                                                                                     \
    }                                                                                           \
  }

TILE_PRODUCT(tile_product_1, 1, 1, 1, 2)
TILE_PRODUCT(tile_product_2, 1, 1, 2, 2)
TILE_PRODUCT(tile_product_4, 2, 1, 2, 4)
TILE_PRODUCT(tile_product_8, 2, 2, 2, 4)
TILE_PRODUCT(tile_product_narrow, 4, 1, 2, 1)

// The column sums that TILE_PRODUCT left with some lanes, for all of them.
#define TILE_COLUMNS(NAME, DOWN, PANELS)                                                        \
  static void NAME(__local float *columns, const float *sums) {                                 \
    const int lane = get_local_id(0) % 32, warp = get_local_id(0) / 32;                         \
    const int own = max(1, PANELS / DOWN), part = PANELS < DOWN ? 0 : warp / (4 / DOWN) * own;  \
    const int first = warp % (4 / DOWN) * PANELS * 8 + part * 8 + lane * 2;                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
    if (lane < 4 && (PANELS >= DOWN || warp == 0))                                              \
      for (int j = 0; j < own; ++j) {                                                           \
        columns[first + 8 * j] = sums[2 * j];                                                   \
        columns[first + 8 * j + 1] = sums[2 * j + 1];                                           \
      }                                                                                         \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
  }

TILE_COLUMNS(tile_columns_1, 1, 2)
TILE_COLUMNS(tile_columns_2, 1, 2)
TILE_COLUMNS(tile_columns_4, 2, 4)
TILE_COLUMNS(tile_columns_8, 2, 4)
TILE_COLUMNS(tile_columns_narrow, 4, 1)
