// A tile of a matrix product by a work-group of LANES = 4 x 32, on matrix units (NVIDIA).
//
//   tile[8 * OWN][TILE] += left[rows][inner] x right[inner][columns]
//
// Both factors are rounded to half precision on their way into local memory, DEPTH inner elements
// at a time, and stay there the way round that they have in memory: lines of neighbours. Products
// are summed in float32. Matrix units take 16 by 16 elements of the left factor and 16 by 8 of the
// right one. Each warp has 16 columns, of narrow tiles 16 rows; each of its lanes has two
// neighbouring columns of every 8, in every eighth row.

#define DEPTH 64
#define PITCH 36  // words of a line: 64 halves, and 8 more so that 8 lines meet all banks once
#define TILE_PITCH (TILE + 4)
#define TILE_ROOM (2 * DEPTH * PITCH)  // words for the slices, and then for the tile

static uint two_halves(float low, float high) {
  uint both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// sums += a x b. Lanes hold: a, elements 2 * (lane % 4) and the next of rows lane / 4; so of b's
// columns; of the sums, the same places of rows lane / 4 and 8 below.
static void multiply(float *sums, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Squares of 8 by 8 halves, a lane's two neighbours of each: along lines, or across them.
#define SQUARES_2(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                \
               : "=r"((x)[0]), "=r"((x)[1]) : "r"(at) : "memory")
#define SQUARES_4(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
               : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3]) : "r"(at) : "memory")

// Where 16 inner elements of 8 or 16 rows (or columns) begin that this lane asks for.
static uint square(__local const uint *slice, int along_inner, int m, int k) {
  const int line = along_inner ? m : k, element = along_inner ? k : m;
  return (uint)(size_t)(slice + line * PITCH) + 2 * element;
}

// How many inner elements a slice has: whole steps of 16, those beyond the last are zero.
static int filled(int inner, int first) {
  return min(DEPTH, (inner - first + 15) / 16 * 16);
}

// `width` rows (or columns) of a factor; each lane moves four neighbours at once.
static void load_slice(__local uint *slice, int width, __global const float *from, int stride,
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
        *(__local uint2 *)(slice + line * PITCH + begin / 2) =
            (uint2)(two_halves(x[j].x, x[j].y), two_halves(x[j].z, x[j].w));
    }
  }
}

// The sum of one column of the right factor's slice.
static float sum_column(__local const uint *slice, int along_inner, int column, int depth) {
  __local const half *at = (__local const half *)slice + column * (along_inner ? 2 * PITCH : 1);
  const int next = along_inner ? 1 : 2 * PITCH;
  float sum[4] = {0.f, 0.f, 0.f, 0.f};
  for (int k = 0; k < depth; k += 4)
    for (int i = 0; i < 4; ++i) sum[i] += vload_half((k + i) * next, at);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The value is the sum of column get_local_id(0) of the right factor, for lanes below WIDTH.
// ROWS of the lane's 2 in 16, and PANELS of 8 columns.
#define TILE_PRODUCT(NAME, HEIGHT, WIDTH, BLOCKS, ROWS, PANELS)                                 \
  static float NAME(                                                                            \
      float *tile, __local float *room, __global const float *left, int left_row,               \
      int left_inner, int left_aligned, __global const float *right, int right_inner,           \
      int right_column, int right_aligned, int rows, int columns, int inner) {                  \
    __local uint *left_slice = (__local uint *)room, *right_slice = left_slice + DEPTH * PITCH; \
    const int lane = get_local_id(0), warp = lane / 32, along_left = left_inner == 1,           \
              along_right = right_inner == 1;                                                   \
    const int eighth = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 % 2 * 8;             \
    const int row = WIDTH == TILE ? 0 : warp * 16, column = WIDTH == TILE ? warp * 16 : 0;      \
    float sum = 0.f;                                                                            \
    for (int first = 0; first < inner; first += DEPTH) {                                        \
      const int depth = filled(inner, first);                                                   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      load_slice(left_slice, max(16, HEIGHT), left, left_row, left_inner, left_aligned, rows,   \
                 first, inner);                                                                 \
      load_slice(right_slice, WIDTH, right, right_column, right_inner, right_aligned, columns,  \
                 first, inner);                                                                 \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      for (int k = 0; k < depth; k += 16) {                                                     \
        uint a[4], b[4];                                                                        \
        if (PANELS == 2 && along_right)                                                         \
          SQUARES_4(b, square(right_slice, 1, column + upper + eighth, k + odd), "");           \
        else if (PANELS == 2)                                                                   \
          SQUARES_4(b, square(right_slice, 0, column + upper, k + odd + eighth), ".trans");     \
        else if (along_right)                                                                   \
          SQUARES_2(b, square(right_slice, 1, eighth, k + odd), "");                            \
        else                                                                                    \
          SQUARES_2(b, square(right_slice, 0, 0, k + odd + eighth), ".trans");                  \
        for (int i = 0; i < BLOCKS; ++i) {                                                      \
          const int m = row + 16 * i;                                                           \
          if (along_left)                                                                       \
            SQUARES_4(a, square(left_slice, 1, m + odd + eighth, k + upper), "");               \
          else                                                                                  \
            SQUARES_4(a, square(left_slice, 0, m + odd, k + upper + eighth), ".trans");         \
          for (int j = 0; j < PANELS; ++j) {                                                    \
            float c[4] = {0.f, 0.f, 0.f, 0.f}, *own = tile + (i * PANELS + j) * 2 * ROWS;       \
            for (int e = 0; e < 2 * ROWS; ++e) c[e] = own[e];                                   \
            multiply(c, a, b + 2 * j);                                                          \
            for (int e = 0; e < 2 * ROWS; ++e) own[e] = c[e];                                   \
          }                                                                                     \
        }                                                                                       \
      }                                                                                         \
      if (lane < WIDTH) sum += sum_column(right_slice, along_right, lane, depth);               \
    }                                                                                           \
    return sum;                                                                                 \
  }

TILE_PRODUCT(tile_product_1, 8, TILE, 1, 1, 2)
TILE_PRODUCT(tile_product_2, 16, TILE, 1, 2, 2)
TILE_PRODUCT(tile_product_4, 32, TILE, 2, 2, 2)
TILE_PRODUCT(tile_product_8, 64, TILE, 4, 2, 2)
TILE_PRODUCT(tile_product_narrow, 64, NARROW, 1, 2, 1)

// The tile in local memory, where all lanes see it.
#define TILE_SPREAD(NAME, WIDTH, BLOCKS, ROWS, PANELS)                                          \
  static void NAME(__local float *room, const float *tile) {                                    \
    const int lane = get_local_id(0), warp = lane / 32;                                         \
    const int row = lane % 32 / 4 + (WIDTH == TILE ? 0 : warp * 16);                            \
    const int column = lane % 4 * 2 + (WIDTH == TILE ? warp * 16 : 0);                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
    for (int i = 0; i < BLOCKS; ++i)                                                            \
      for (int j = 0; j < PANELS; ++j)                                                          \
        for (int r = 0; r < ROWS; ++r) {                                                        \
          const float *own = tile + ((i * PANELS + j) * ROWS + r) * 2;                          \
          *(__local float2 *)(room + (row + 16 * i + 8 * r) * TILE_PITCH + column + 8 * j) =    \
              (float2)(own[0], own[1]);                                                         \
        }                                                                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
  }

TILE_SPREAD(spread_1, TILE, 1, 1, 2)
TILE_SPREAD(spread_2, TILE, 1, 2, 2)
TILE_SPREAD(spread_4, TILE, 2, 2, 2)
TILE_SPREAD(spread_8, TILE, 4, 2, 2)
TILE_SPREAD(spread_narrow, NARROW, 1, 2, 1)
