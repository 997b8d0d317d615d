// A tile of a matrix product by a work-group of LANES = 4 warps x 32 lanes, on NVIDIA's matrix units.
//
//   tile[rows][columns] += left[rows][inner] x right[inner][columns]
//
// Squares. Matrix units work on squares: 8 lines of SQUARE elements, 16 bytes a line. A register of
// a factor holds a lane's part of a square: in line lane / 4 the element lane % 4, or in half
// precision the two neighbours there. Of 8 by 8 sums a lane holds two neighbours in row lane / 4.
// One instruction multiplies 16 rows by STEP inner elements of the left factor with STEP inner
// elements by 8 columns of the right one. Products are summed in float32.
//
// Warps. The four warps divide the tile into DOWN parts from top to bottom and 4 / DOWN from left to
// right. The part of a warp has BLOCKS times 16 rows, of which HALVES * 8 of each 16 are wanted, and
// PANELS times 8 columns.
//
// Factors. A factor in local memory has elements of FACTOR_BYTES bytes: 2 in half precision, 4 in
// float32. It keeps the orientation that it has in global memory, with lines `pitch` elements
// apart. Other factors are copied to local memory in slices of DEPTH inner elements, or are read in
// place from global memory, in float32. The caller places barriers around the copying of slices
// (codegen/matrix_units.py).
//
// Float32. Each element is split into two numbers of TF32, which has 11 significant bits: the
// nearest one, and the rest. Of the four products of two split elements, that of both rests is left
// out: it is 2^-22 of the whole. An infinite element has a rest of NaN, so its sums are NaN; so are
// those of an element above 3.4019e38, whose nearest TF32 number is infinite. Matrix units round
// sums towards zero, so the lanes themselves add up the sums of several slices or tiles.

#define SQUARE (16 / FACTOR_BYTES)  // inner elements of a square: 16 bytes
#define STEP (2 * SQUARE)
#define LINE (128 / FACTOR_BYTES)   // elements that cover all memory banks once
#define DEPTH LINE                  // inner elements of a slice, whose product is unrolled

typedef struct {
  int is_local;  // whether it lies in local memory; if so, the next four fields describe it
  uint base;     // its first byte in local memory
  int first;     // the element that the product begins with
  int pitch;     // elements from one line to the next
  int is_inner_contiguous;  // whether a line holds inner elements, which are summed over
  __global const float *from;  // in global memory: the first element, and the strides in elements
  int stride, inner_stride;
} Factor;

static Factor local_factor(uint base, int first, int pitch, int is_inner_contiguous) {
  const Factor f = {1, base, first, pitch, is_inner_contiguous, 0, 0, 0};
  return f;
}

static Factor global_factor(__global const float *from, int stride, int inner_stride) {
  const Factor f = {0, 0, 0, 1, 0, from, stride, inner_stride};
  return f;
}

// Permutes the squares of a line in local memory: an element's position in its line is combined
// with this number by exclusive or. Then eight lines of one square, or four lines of two squares,
// cover all memory banks once. LocalBuffer.cell (ir/local_memory.py) computes the same.
#define SWIZZLE(line) (FACTOR_BYTES == 2 ? (line) * 8 : (line) % 4 * 8 + (line) / 4 * 4)

// The address in bytes in local memory of an element in line `line + eighth`, with `eighth` below
// 8. Only `eighth` decides the swizzle.
static uint local_address(Factor f, int line, int column, int eighth) {
  const int swizzled = f.first % f.pitch + column ^ (f.pitch % LINE ? 0 : SWIZZLE(eighth));
  return f.base + FACTOR_BYTES * ((f.first / f.pitch + line + eighth) * f.pitch + swizzled);
}

// Loads a lane's parts of 2 or 4 squares from local memory, transposed if `how` is ".trans". Each lane
// passes the address of one line.
#define SQUARES_2(x, at, how)                                                    \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];" \
               : "=r"((x)[0]), "=r"((x)[1]) : "r"(at) : "memory")
#define SQUARES_4(x, at, how)                                                            \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3]) : "r"(at) : "memory")

#if FACTOR_BYTES == 2
#define FACTOR half
#define ONES 0x3c003c00u
#define ADDS_IN_PLACE 1  // whether matrix units add to the tile's own sums
// Whether more than 8 inner elements are left from k on, so that a whole STEP is multiplied.
#define HAS_WHOLE_STEP(k, inner) ((k) + 8 < (inner))

// Element n of two or four halves that were loaded at once. n is a constant after loops are unrolled.
#define HALF_OF_2(loaded, n) half_of(loaded, n)
#define HALF_OF_4(loaded, n) half_of((n) < 2 ? (loaded).x : (loaded).y, (n) & 1)

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

// sums += a x b, of 16 rows by 8 columns. The lane's registers hold parts of squares. `a` has those
// of rows 0 to 7 and of rows 8 to 15, then the same rows of the next inner elements. `b` has those
// of the first and of the next inner elements. `sums` has two elements in row lane / 4 and two in
// the row 8 below.
static void multiply(float *sums, const uint *a, const uint *b, int is_whole_step) {
  if (is_whole_step)
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
#define ADDS_IN_PLACE 0
#define HAS_WHOLE_STEP(k, inner) 1

// The nearest number of TF32. PTX's own conversion also tests for NaN.
static uint tf32(float x) { return as_uint(x) + 0x1000u & ~0x1fffu; }

static void multiply(float *sums, const uint *a, const uint *b, int is_whole_step) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static void store_four(__local float *to, float4 x) { *(__local float4 *)to = x; }

static uint load_word(uint at) {
  uint total;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(total) : "r"(at) : "memory");
  return total;
}
#endif

// Copies `width` rows (or columns) of a factor from global memory to a slice in local memory: DEPTH
// inner elements of each, or all that exist and zeros up to a multiple of 8. All lanes of the group
// take part; each moves four neighbours at once.
static void load_slice(__local FACTOR *slice, int width, __global const float *from, int stride,
                       int inner_stride, int aligned, int count, int inner) {
  const int is_inner_contiguous = inner_stride == 1;
  const int depth = min(DEPTH, (inner + 7) / 8 * 8);
  const int lines = is_inner_contiguous ? width : depth;
  const int pitch = is_inner_contiguous ? DEPTH : TILE;
  const int fours = (is_inner_contiguous ? depth : width) / 4;  // groups of four elements in a line
  const int count_of_fours = lines * fours;
  #pragma unroll
  for (int start = 0; start < count_of_fours; start += 4 * LANES) {
    float4 x[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0);
      const int line = i / fours, begin = i % fours * 4;
      const int m = is_inner_contiguous ? line : begin, k = is_inner_contiguous ? begin : line;
      x[j] = 0.f;
      if (i < count_of_fours)
        x[j] = load_four(from, stride, inner_stride, aligned, m, k, count, inner);
    }
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = start + j * LANES + get_local_id(0);
      const int line = i / fours, begin = i % fours * 4;
      if (i < count_of_fours) store_four(slice + line * pitch + (begin ^ SWIZZLE(line % 8)), x[j]);
    }
  }
}

// Loads a lane's parts of `count` squares of a factor, from row (or column) `outer` and inner
// element `k` on. Of the left factor: 16 rows and STEP inner elements; the order is rows 0 to 7,
// rows 8 to 15, then the next inner elements. Of the right factor: 4 * `count` columns; the squares
// of the same columns follow each other. In global memory only `limit` rows (or columns) exist.
static void load_squares(uint *x, Factor f, int right, int outer, int k, int count, int limit,
                         int inner) {
  const int lane = get_local_id(0) % 32, square = lane / 8;
  const int is_whole_step = HAS_WHOLE_STEP(k, inner);
  const int line = outer + 8 * (right ? square / 2 : square % 2);
  const int next = is_whole_step ? k + SQUARE * (right ? square % 2 : square / 2) : k;
  if (f.is_local && f.is_inner_contiguous) {
    if (count == 4) SQUARES_4(x, local_address(f, line, next, lane % 8), "");
    else SQUARES_2(x, local_address(f, line, next, lane % 8), "");
  } else {
#if FACTOR_BYTES == 2
    if (count == 4) SQUARES_4(x, local_address(f, next, line, lane % 8), ".trans");
    else SQUARES_2(x, local_address(f, next, line, lane % 8), ".trans");
#else
    #pragma unroll
    for (int e = 0; e < count; ++e) {
      const int line_of_lane = outer + 8 * (right ? e / 2 : e % 2) + lane / 4;
      const int k_in_square = SQUARE * (right ? e % 2 : e / 2) + lane % 4;
      if (f.is_local) x[e] = load_word(local_address(f, k, line_of_lane, k_in_square));
      else if (line_of_lane >= limit || k + k_in_square >= inner) x[e] = 0u;
      else x[e] = as_uint(f.from[line_of_lane * f.stride + (k + k_in_square) * f.inner_stride]);
    }
#endif
  }
}

// In float32: rounds elements to TF32 and computes the rests. Rests are not rounded: matrix units
// ignore the bits that TF32 does not have. Does nothing in half precision.
static void split(uint *rest, uint *x, int count) {
#if FACTOR_BYTES == 4
  #pragma unroll
  for (int e = 0; e < count; ++e) {
    const float value = as_float(x[e]);
    x[e] = tf32(value);
    rest[e] = as_uint(value - as_float(x[e]));
  }
#endif
}

// Adds the products of 16 rows of the left factor with each panel (8 columns) of the right one to
// sums[panel][16][8]. The smallest terms are added first.
static void multiply_panels(float *sums, const uint *a, const uint *a_rest, const uint *b,
                            const uint *b_rest, int panels, int is_whole_step) {
#if FACTOR_BYTES == 4
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a_rest, b + 2 * j, is_whole_step);
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a, b_rest + 2 * j, is_whole_step);
#endif
  #pragma unroll
  for (int j = 0; j < panels; ++j) multiply(sums + 4 * j, a, b + 2 * j, is_whole_step);
}

// Adds the product of up to DEPTH inner elements to the lane's registers `tile`. If
// `has_column_sums`, also adds the sums of the right factor's columns to `sums`, computed as its
// product with ones; warps that are above one another divide their panels among them. Only `rows`
// rows and `columns` columns exist.
#define TILE_PRODUCT(NAME, DOWN, BLOCKS, HALVES, PANELS)                                          \
  static void NAME(float *tile, float *sums, int has_column_sums, Factor left, Factor right,      \
                   int rows, int columns, int inner) {                                            \
    const int warp = get_local_id(0) / 32, sum_panels = max(1, PANELS / DOWN);                    \
    const int row = warp / (4 / DOWN) * BLOCKS * 16, column = warp % (4 / DOWN) * PANELS * 8;     \
    const uint ones[4] = {ONES, 0u, ONES, 0u};                                                    \
    float c[4 * BLOCKS * PANELS], s[4 * (PANELS > DOWN ? PANELS / DOWN : 1)];                     \
    _Pragma("unroll")                                                                             \
    for (int e = 0; e < 4 * BLOCKS * PANELS; ++e)                                                 \
      c[e] = ADDS_IN_PLACE && e % 4 < 2 * HALVES ? tile[e / 4 * 2 * HALVES + e % 4] : 0.f;        \
    _Pragma("unroll")                                                                             \
    for (int e = 0; e < 4 * sum_panels; ++e)                                                      \
      s[e] = ADDS_IN_PLACE && e % 4 < 2 ? sums[e / 4 * 2 + e % 4] : 0.f;                          \
    _Pragma("unroll")                                                                             \
    for (int k = 0; k < inner; k += STEP) {                                                       \
      const int is_whole_step = HAS_WHOLE_STEP(k, inner);                                         \
      uint b[2 * PANELS], b_rest[2 * PANELS];                                                     \
      _Pragma("unroll")                                                                           \
      for (int j = 0; j < PANELS; j += 2) {                                                       \
        if (columns < (4 / DOWN) * PANELS * 8 && column + 8 * j >= columns) continue;             \
        load_squares(b + 2 * j, right, 1, column + 8 * j, k, PANELS > 1 ? 4 : 2, columns, inner); \
      }                                                                                           \
      split(b_rest, b, 2 * PANELS);                                                               \
      _Pragma("unroll")                                                                           \
      for (int i = 0; i < BLOCKS; ++i) {                                                          \
        uint a[4], a_rest[4];                                                                     \
        if (rows < DOWN * BLOCKS * 16 && row + 16 * i >= rows) continue;                          \
        load_squares(a, left, 0, row + 16 * i, k, 4, rows, inner);                                \
        split(a_rest, a, 4);                                                                      \
        multiply_panels(c + 4 * i * PANELS, a, a_rest, b, b_rest, PANELS, is_whole_step);         \
      }                                                                                           \
      if (has_column_sums)                                                                        \
        _Pragma("unroll")                                                                         \
        for (int j = 0; j < PANELS; ++j)                                                          \
          if (PANELS < DOWN || j / (PANELS / DOWN) == warp / (4 / DOWN)) {                        \
            if (!ADDS_IN_PLACE)                                                                   \
              multiply(s + 4 * (j % sum_panels), ones, b_rest + 2 * j, is_whole_step);            \
            multiply(s + 4 * (j % sum_panels), ones, b + 2 * j, is_whole_step);                   \
          }                                                                                       \
    }                                                                                             \
    _Pragma("unroll")                                                                             \
    for (int e = 0; e < 2 * HALVES * BLOCKS * PANELS; ++e) {                                      \
      const float total = c[e / (2 * HALVES) * 4 + e % (2 * HALVES)];                             \
      tile[e] = ADDS_IN_PLACE ? total : tile[e] + total;                                          \
    }                                                                                             \
    _Pragma("unroll")                                                                             \
    for (int e = 0; e < 2 * sum_panels; ++e)                                                      \
      sums[e] = ADDS_IN_PLACE ? s[e / 2 * 4 + e % 2] : sums[e] + s[e / 2 * 4 + e % 2];            \
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

// Copies the column sums, which TILE_PRODUCT leaves in some lanes' registers, to local memory for all
// lanes.
#define TILE_COLUMNS(NAME, DOWN, PANELS)                                    \
  static void NAME(__local float *columns, const float *sums) {             \
    const int lane = get_local_id(0) % 32, warp = get_local_id(0) / 32;     \
    const int panels = max(1, PANELS / DOWN);                               \
    const int part = PANELS < DOWN ? 0 : warp / (4 / DOWN) * panels;        \
    const int first = warp % (4 / DOWN) * PANELS * 8 + part * 8 + lane * 2; \
    barrier(CLK_LOCAL_MEM_FENCE);                                           \
    if (lane < 4 && (PANELS >= DOWN || warp == 0))                          \
      for (int j = 0; j < panels; ++j) {                                    \
        columns[first + 8 * j] = sums[2 * j];                               \
        columns[first + 8 * j + 1] = sums[2 * j + 1];                       \
      }                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                           \
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
