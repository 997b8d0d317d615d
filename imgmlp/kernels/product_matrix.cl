// A tile of a matrix product by a work-group of LANES = 4 x 32, on matrix units (NVIDIA).
//
//   tile[rows][columns] += left[rows][inner] x right[inner][columns]
//
// A factor in local memory (`near`) has elements of FACTOR_BYTES: 2 in half precision, 4 in float32.
// It keeps its orientation in memory, with lines of neighbours `pitch` elements apart. Other factors
// are copied there in slices of DEPTH inner elements, or are read where they are (`far`, in float32).
// Products are summed in float32. A matrix unit multiplies 16 by STEP elements of the left factor
// with STEP by 8 of the right one. The four warps of a group have DOWN by 4 / DOWN parts of the tile,
// each of BLOCKS times 16 rows (HALVES * 8 of which are wanted) and PANELS times 8 columns. Of 8 by 8
// sums a lane has two neighbours in row lane / 4. A register of a factor is a lane's part of a
// square, which is 8 lines of SQUARE elements: in line lane / 4 the element at lane % 4, or in half
// precision two neighbours there.
//
// In float32 each element is split into two numbers of TF32, which has 11 bits: the nearest one and
// the rest. Of their four products that of both rests, 2^-22 of the whole, is left out. An infinite
// element has a rest of NaN, so its sums are NaN; so are those of an element above 3.4019e38, whose
// nearest number is infinite. Matrix units round sums towards zero, so lanes add up the sums of
// several slices or tiles themselves.

#define SQUARE (16 / FACTOR_BYTES)  // inner elements of a square: 16 bytes
#define STEP (2 * SQUARE)
#define LINE (128 / FACTOR_BYTES)   // elements that cover all banks once
#define DEPTH LINE                  // inner elements of an unrolled product

typedef struct {
  int near;
  uint base;  // where it begins, in bytes of local memory
  int first;  // element that the product begins with
  int pitch;
  int along;  // whether neighbours of a line are multiplied with one another's (inner elements)
  __global const float *from;
  int stride, inner_stride;
} Factor;

static Factor near(uint base, int first, int pitch, int along) {
  const Factor f = {1, base, first, pitch, along, 0, 0, 0};
  return f;
}

static Factor far(__global const float *from, int stride, int inner_stride) {
  const Factor f = {0, 0, 0, 1, 0, from, stride, inner_stride};
  return f;
}

// The swizzle of a line: by it the squares of a line are permuted, so that eight lines of one square,
// or four lines of two squares, cover all banks once. LocalBuffer.cell in Python does the same.
#define TURNED(line) (FACTOR_BYTES == 2 ? (line) * 8 : (line) % 4 * 8 + (line) / 4 * 4)

// The address in local memory of an element of line `line + eighth`, with `eighth` below 8.
static uint cell(Factor f, int line, int column, int eighth) {
  const int turned = f.first % f.pitch + column ^ (f.pitch % LINE ? 0 : TURNED(eighth));
  return f.base + FACTOR_BYTES * ((f.first / f.pitch + line + eighth) * f.pitch + turned);
}

// Loads a lane's parts of squares, along lines or transposed. Each lane passes the address of a line.
#define SQUARES_2(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                \
               : "=r"((x)[0]), "=r"((x)[1]) : "r"(at) : "memory")
#define SQUARES_4(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
               : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3]) : "r"(at) : "memory")

#if FACTOR_BYTES == 2
#define FACTOR half
#define ONES 0x3c003c00u
#define KEEPS_SUMS 1  // whether matrix units add to a tile's sums
#define WHOLE(k, inner) ((k) + 8 < (inner))  // whether there are more inner elements than 8

// Element n of two or four elements that were loaded at once; n is a constant to the compiler.
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

// sums += a x b. A lane holds parts of squares: of `a` those from rows 0 and 8 on, then the same for
// the next inner elements; of `b` those of its columns; of the sums two elements in row lane / 4 and
// two in the row 8 below.
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

static void store_four(__local half *to, float4 x) {
  *(__local uint2 *)to = halves_4(x.x, x.y, x.z, x.w);
}

#else
#define FACTOR float
#define ONES 0x3f800000u
#define KEEPS_SUMS 0
#define WHOLE(k, inner) 1

static uint tf32(float x) { return as_uint(x) + 0x1000u & ~0x1fffu; }  // PTX's asks for NaN too

static void multiply(float *sums, const uint *a, const uint *b, int whole) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static void store_four(__local float *to, float4 x) { *(__local float4 *)to = x; }

static uint word_at(uint at) {
  uint found;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found) : "r"(at) : "memory");
  return found;
}
#endif

// Copies `width` rows (or columns) of a factor to a slice: DEPTH inner elements of each, or all that
// exist and zeros up to a multiple of 8. Each lane moves four neighbours at once.
static void load_slice(__local FACTOR *slice, int width, __global const float *from, int stride,
                       int inner_stride, int aligned, int count, int inner) {
  const int along = inner_stride == 1, depth = min(DEPTH, (inner + 7) / 8 * 8);
  const int lines = along ? width : depth, pitch = along ? DEPTH : TILE;
  const int fours = (along ? depth : width) / 4, all = lines * fours;
  #pragma unroll
  for (int start = 0; start < all; start += 4 * LANES) {
    float4 x[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0), line = i / fours, begin = i % fours * 4;
      const int m = along ? line : begin, k = along ? begin : line;
      x[j] = 0.f;
      if (i < all) x[j] = four_of(from, stride, inner_stride, aligned, m, k, count, inner);
    }
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0), line = i / fours, begin = i % fours * 4;
      if (i < all) store_four(slice + line * pitch + (begin ^ TURNED(line % 8)), x[j]);
    }
  }
}

// Loads a lane's parts of squares of a factor: of the left one 16 rows and STEP inner elements, in the
// order rows 0, rows 8, then the next inner elements; of the right one 4 * `count` columns, in the
// order of inner elements first.
static void fetch(uint *x, Factor f, int right, int outer, int k, int count, int limit,
                  int inner) {
  const int lane = get_local_id(0) % 32, square = lane / 8, whole = WHOLE(k, inner);
  const int line = outer + 8 * (right ? square / 2 : square % 2);
  const int next = whole ? k + SQUARE * (right ? square % 2 : square / 2) : k;
  if (f.near && f.along) {
    if (count == 4) SQUARES_4(x, cell(f, line, next, lane % 8), "");
    else SQUARES_2(x, cell(f, line, next, lane % 8), "");
  } else {
#if FACTOR_BYTES == 2
    if (count == 4) SQUARES_4(x, cell(f, next, line, lane % 8), ".trans");
    else SQUARES_2(x, cell(f, next, line, lane % 8), ".trans");
#else
    #pragma unroll
    for (int e = 0; e < count; ++e) {
      const int own = outer + 8 * (right ? e / 2 : e % 2) + lane / 4;
      const int beside = SQUARE * (right ? e % 2 : e / 2) + lane % 4;
      if (f.near) x[e] = word_at(cell(f, k, own, beside));
      else if (own >= limit || k + beside >= inner) x[e] = 0u;
      else x[e] = as_uint(f.from[own * f.stride + (k + beside) * f.inner_stride]);
    }
#endif
  }
}

// Rounds float32 elements to TF32, and computes the rests. Matrix units use only as many bits of a
// rest as TF32 has.
static void split(uint *rest, uint *x, int count) {
#if FACTOR_BYTES == 4
  #pragma unroll
  for (int e = 0; e < count; ++e) {
    const float all = as_float(x[e]);
    x[e] = tf32(all);
    rest[e] = as_uint(all - as_float(x[e]));
  }
#endif
}

// Adds the products with each panel of the right factor to sums[16][8].
static void multiply_panels(float *sums, const uint *a, const uint *a_rest, const uint *b,
                            const uint *b_rest, int panels, int whole) {
#if FACTOR_BYTES == 4
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a_rest, b + 2 * j, whole);
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a, b_rest + 2 * j, whole);
#endif
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a, b + 2 * j, whole);
}

// If `summed`, column sums of the right factor are computed as its product with ones; the warps above
// one another share the panels of a part. Only `rows` rows and `columns` columns exist.
#define TILE_PRODUCT(NAME, DOWN, BLOCKS, HALVES, PANELS)                                        \
  static void NAME(float *tile, float *sums, int summed, Factor left, Factor right, int rows,   \
                   int columns, int inner) {                                                    \
    const int warp = get_local_id(0) / 32, own_sums = max(1, PANELS / DOWN);                    \
    const int row = warp / (4 / DOWN) * BLOCKS * 16, column = warp % (4 / DOWN) * PANELS * 8;   \
    const uint ones[4] = {ONES, 0u, ONES, 0u};                                                  \
    float c[4 * BLOCKS * PANELS], s[4 * (PANELS > DOWN ? PANELS / DOWN : 1)];                   \
    _Pragma("unroll")                                                                           \
    for (int e = 0; e < 4 * BLOCKS * PANELS; ++e)                                               \
      c[e] = KEEPS_SUMS && e % 4 < 2 * HALVES ? tile[e / 4 * 2 * HALVES + e % 4] : 0.f;         \
    _Pragma("unroll")                                                                           \
    for (int e = 0; e < 4 * own_sums; ++e)                                                      \
      s[e] = KEEPS_SUMS && e % 4 < 2 ? sums[e / 4 * 2 + e % 4] : 0.f;                           \
    _Pragma("unroll")                                                                           \
    for (int k = 0; k < inner; k += STEP) {                                                     \
      const int whole = WHOLE(k, inner);                                                        \
      uint b[2 * PANELS], b_rest[2 * PANELS];                                                   \
      _Pragma("unroll")                                                                         \
      for (int j = 0; j < PANELS; j += 2) {                                                     \
        if (columns < (4 / DOWN) * PANELS * 8 && column + 8 * j >= columns) continue;           \
        fetch(b + 2 * j, right, 1, column + 8 * j, k, PANELS > 1 ? 4 : 2, columns, inner);      \
      }                                                                                         \
      split(b_rest, b, 2 * PANELS);                                                             \
      _Pragma("unroll")                                                                         \
      for (int i = 0; i < BLOCKS; ++i) {                                                        \
        uint a[4], a_rest[4];                                                                   \
        if (rows < DOWN * BLOCKS * 16 && row + 16 * i >= rows) continue;                        \
        fetch(a, left, 0, row + 16 * i, k, 4, rows, inner);                                     \
        split(a_rest, a, 4);                                                                    \
        multiply_panels(c + 4 * i * PANELS, a, a_rest, b, b_rest, PANELS, whole);               \
      }                                                                                         \
      if (summed)                                                                               \
        _Pragma("unroll")                                                                       \
        for (int j = 0; j < PANELS; ++j)                                                        \
          if (PANELS < DOWN || j / (PANELS / DOWN) == warp / (4 / DOWN)) {                      \
            if (!KEEPS_SUMS) multiply(s + 4 * (j % own_sums), ones, b_rest + 2 * j, whole);     \
            multiply(s + 4 * (j % own_sums), ones, b + 2 * j, whole);                           \
          }                                                                                     \
    }                                                                                           \
    _Pragma("unroll")                                                                           \
    for (int e = 0; e < 2 * HALVES * BLOCKS * PANELS; ++e) {                                    \
      const float found = c[e / (2 * HALVES) * 4 + e % (2 * HALVES)];                           \
      tile[e] = KEEPS_SUMS ? found : tile[e] + found;                                           \
    }                                                                                           \
    _Pragma("unroll")                                                                           \
    for (int e = 0; e < 2 * own_sums; ++e)                                                      \
      sums[e] = KEEPS_SUMS ? s[e / 2 * 4 + e % 2] : sums[e] + s[e / 2 * 4 + e % 2];             \
  }

TILE_PRODUCT(tile_product_1, 1, 1, 1, 2)
TILE_PRODUCT(tile_product_2, 1, 1, 2, 2)
TILE_PRODUCT(tile_product_4, 2, 1, 2, 4)
TILE_PRODUCT(tile_product_8, 2, 2, 2, 4)
TILE_PRODUCT(tile_product_1_slim, 1, 1, 1, 1)
TILE_PRODUCT(tile_product_2_slim, 1, 1, 2, 1)
TILE_PRODUCT(tile_product_4_slim, 2, 1, 2, 2)
TILE_PRODUCT(tile_product_8_slim, 2, 2, 2, 2)
TILE_PRODUCT(tile_product_narrow, 4, 1, 2, 1)

// Copies the column sums, which TILE_PRODUCT left in some lanes, to local memory for all of them.
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
TILE_COLUMNS(tile_columns_1_slim, 1, 1)
TILE_COLUMNS(tile_columns_2_slim, 1, 1)
TILE_COLUMNS(tile_columns_4_slim, 2, 2)
TILE_COLUMNS(tile_columns_8_slim, 2, 2)
TILE_COLUMNS(tile_columns_narrow, 4, 1)
