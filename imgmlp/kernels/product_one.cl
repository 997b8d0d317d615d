// A tile of a matrix product by one work-item, for CPUs.
//
//   tile[rows][columns] = left[rows][inner] x right[inner][columns]
//
// The micro-kernel is a rank-1 update in registers: a left element is broadcast and multiplied with
// a row of the right factor, which is two vectors. A tile of 6 rows by 16 columns has 12
// independent chains of multiply-adds. With AVX-512, where vectors have NARROW = 16 elements, it is
// 8 rows by 32 columns. PoCL 3.0 aborts on any float16 if the processor has no such vectors, so
// other devices must not see one.
//
// Use plain pointer dereferences and a * b + c: PoCL inlines neither vload8 nor fma in a large
// kernel, and a call spills all registers.
//
// The generated code defines NARROW (elements of a vector) and VECTOR = 2 * NARROW
// (codegen/render.py).

#define PANEL_DEPTH 256  // inner elements of a packed panel: 16 KiB, half of a first-level cache

#if NARROW == 16
typedef float16 vector;
typedef float16 row_vector __attribute__((aligned(32)));  // of a right factor that is read in place
#else
typedef float8 vector;
typedef float8 row_vector;
#endif
typedef vector unaligned_vector __attribute__((aligned(4)));

// Expands to M(0, ...) to M(R - 1, ...). It replaces a loop over R rows: the more loops a kernel
// has, the longer LLVM takes for each of them, even if they are unrolled.
#define REPEAT(R, M, ...) REPEAT_##R(M, __VA_ARGS__)
#define REPEAT_1(M, ...) M(0, __VA_ARGS__)
#define REPEAT_2(M, ...) REPEAT_1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define REPEAT_3(M, ...) REPEAT_2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define REPEAT_4(M, ...) REPEAT_3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define REPEAT_5(M, ...) REPEAT_4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define REPEAT_6(M, ...) REPEAT_5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define REPEAT_7(M, ...) REPEAT_6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define REPEAT_8(M, ...) REPEAT_7(M, __VA_ARGS__) M(7, __VA_ARGS__)

// sums[R][V] += left[R][inner] x panel[inner][V]. R, a number of rows, and V, a number of vectors, are
// literals. `sums` is an array of the caller that is only indexed by constants, so all of it stays in
// registers.
// Element (i, k) of the left factor is left[i * left_row + k * left_inner]. Row k of the panel is at
// k * step, aligned, in the address space SPACE. Rows from number `rows` on repeat the last row that
// exists, so that nothing else is read.
#define MULTIPLY(TYPE, R, V, sums, left, left_row, left_inner, SPACE, panel, step, rows, inner) \
  {                                                                                             \
    REPEAT(R, ROW_POINTER, left, left_row, rows)                                                \
    for (long k_ = 0; k_ < (inner); ++k_) {                                                     \
      SPACE const TYPE *y_ = (SPACE const TYPE *)((panel) + k_ * (step));                       \
      REPEAT(R, ADD_##V, sums, k_ * (left_inner))                                               \
    }                                                                                           \
  }
#define ROW_POINTER(R, left, left_row, rows) \
  __global const float *x_##R = (left) + (R < (rows) ? R : (rows) - 1) * (left_row);
#define ADD_1(R, sums, at) sums[R] += x_##R[at] * y_[0];
#define ADD_2(R, sums, at)         \
  {                                \
    const float a_ = x_##R[at];    \
    sums[2 * R] += a_ * y_[0];     \
    sums[2 * R + 1] += a_ * y_[1]; \
  }

// Declares an array `sums` and computes a product in it. PRODUCT_8 always uses vectors of 8 elements.
#define PRODUCT(R, V, sums, ...) \
  vector sums[(R) * (V)];        \
  REPEAT(R, CLEAR_##V, sums)     \
  MULTIPLY(row_vector, R, V, sums, __VA_ARGS__)
#define PRODUCT_8(R, V, sums, ...) \
  float8 sums[(R) * (V)];          \
  REPEAT(R, CLEAR_##V, sums)       \
  MULTIPLY(float8, R, V, sums, __VA_ARGS__)
#define CLEAR_1(R, sums) sums[R] = 0.f;
#define CLEAR_2(R, sums) sums[2 * R] = sums[2 * R + 1] = 0.f;

// Declares an array `tile` in memory, which variables may index, and copies `sums` to it.
#define TO_MEMORY(R, V, tile, sums)                            \
  float tile[(R) * (V) * NARROW] __attribute__((aligned(64))); \
  REPEAT(R, STORE_##V, (vector *)tile, sums)
#define TO_MEMORY_8(R, V, tile, sums)                     \
  float tile[(R) * (V) * 8] __attribute__((aligned(64))); \
  REPEAT(R, STORE_##V, (float8 *)tile, sums)
#define STORE_1(R, out, sums) (out)[R] = sums[R];
#define STORE_2(R, out, sums) \
  (out)[2 * R] = sums[2 * R]; \
  (out)[2 * R + 1] = sums[2 * R + 1];

// Dot products: out_[R][C] = left[R][inner] x right[C][inner], where the terms of both factors are
// contiguous. NARROW products at a time are added to NARROW partial sums, which STORE_TOTALS adds
// up. Declares `out_`, an array of EIGHTS float8, with the elements in row-major order. Element (i,
// k) of the left factor is left[i * left_row + k]. Rows from number `rows` on repeat the last row
// that exists. `inner` is a multiple of NARROW.
#define DOT_PRODUCTS(R, C, EIGHTS, out_, left, left_row, right, right_column, rows, inner) \
  float8 out_[EIGHTS];                                                                     \
  {                                                                                        \
    vector sums_[8 * EIGHTS] = {0.f};                                                      \
    REPEAT(R, ROW_POINTER, left, left_row, rows)                                           \
    REPEAT_INNER(C, COLUMN_POINTER, right, right_column)                                   \
    for (long k_ = 0; k_ < (inner); k_ += NARROW) {                                        \
      REPEAT(R, LOAD_ROW, )                                                                \
      REPEAT_INNER(C, ADD_COLUMN, R, C, sums_)                                             \
    }                                                                                      \
    REPEAT(EIGHTS, STORE_TOTALS, out_, sums_)                                              \
  }
#define COLUMN_POINTER(N, right, step) __global const float *y_##N = (right) + N * (step);
#define LOAD_ROW(R, ...) const vector a_##R = *(__global const unaligned_vector *)(x_##R + k_);
#define ADD_COLUMN(N, R, C, sums)                                       \
  {                                                                     \
    const vector b_ = *(__global const unaligned_vector *)(y_##N + k_); \
    REPEAT(R, ADD_PRODUCT, N, C, sums)                                  \
  }
#define ADD_PRODUCT(R, N, C, sums) sums[(R) * (C) + N] += a_##R * b_;
#define STORE_TOTALS(N, out_, sums)                                                  \
  out_[N] = sum_each(sums[8 * N], sums[8 * N + 1], sums[8 * N + 2], sums[8 * N + 3], \
                        sums[8 * N + 4], sums[8 * N + 5], sums[8 * N + 6], sums[8 * N + 7]);

// REPEAT_INNER does the same as REPEAT. A macro cannot be used within itself, so nested repetitions
// need a second name.
#define REPEAT_INNER(C, M, ...) REPEAT_INNER_##C(M, __VA_ARGS__)
#define REPEAT_INNER_1(M, ...) M(0, __VA_ARGS__)
#define REPEAT_INNER_2(M, ...) REPEAT_INNER_1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define REPEAT_INNER_3(M, ...) REPEAT_INNER_2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define REPEAT_INNER_4(M, ...) REPEAT_INNER_3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define REPEAT_INNER_5(M, ...) REPEAT_INNER_4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define REPEAT_INNER_6(M, ...) REPEAT_INNER_5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define REPEAT_INNER_7(M, ...) REPEAT_INNER_6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define REPEAT_INNER_8(M, ...) REPEAT_INNER_7(M, __VA_ARGS__) M(7, __VA_ARGS__)

// The sum of the elements of each of eight vectors. Neighbours are added as x86's horizontal
// additions do within 128 bits.
#if NARROW == 16
#define TO_EIGHT(a) ((a).lo + (a).hi)
#else
#define TO_EIGHT(a) (a)
#endif
#define ADD_PAIRS(a, b) \
  ((float8)((a).s02, (b).s02, (a).s46, (b).s46) + (float8)((a).s13, (b).s13, (a).s57, (b).s57))
#define ADD_FOURS(a, b, c, d) \
  ADD_PAIRS(ADD_PAIRS(TO_EIGHT(a), TO_EIGHT(b)), ADD_PAIRS(TO_EIGHT(c), TO_EIGHT(d)))
static inline __attribute__((always_inline)) float8 sum_each(
    vector a, vector b, vector c, vector d, vector e, vector f, vector g, vector h) {
  const float8 low = ADD_FOURS(a, b, c, d), high = ADD_FOURS(e, f, g, h);
  return (float8)(low.lo, high.lo) + (float8)(low.hi, high.hi);
}

// Copies columns of the right factor to panel[inner][width], with zeros from column `columns` on.
static void pack_panel(float *panel, __global const float *right, int right_inner,
                       int right_column, int columns, int width, int inner) {
  for (int k = 0; k < inner; ++k) {
    for (int n = 0; n < width; ++n)
      panel[k * width + n] = n < columns ? right[k * right_inner + n * right_column] : 0.f;
  }
}

// Products of many terms: a tile of VECTOR columns is summed panel by panel, in memory. ADD_ROWS
// adds a panel's product to R rows at a time, as long as R rows are left. `first` is 1 for the
// first panel.

#define ADD_ROWS(R, SPACE)                                                             \
  for (; i + R <= rows; i += R) {                                                      \
    vector *out = (vector *)(tile + i * VECTOR), sums[2 * R];                          \
    REPEAT(R, LOAD_SUMS, out, sums)                                                    \
    MULTIPLY(row_vector, R, 2, sums, left + i * left_row, left_row, left_inner, SPACE, \
             panel, step, R, inner)                                                    \
    REPEAT(R, STORE_2, out, sums)                                                      \
  }
#define LOAD_SUMS(R, out, sums)           \
  sums[2 * R] = first ? 0.f : out[2 * R]; \
  sums[2 * R + 1] = first ? 0.f : out[2 * R + 1];

#define MULTIPLY_TILE(NAME, SPACE)                                                        \
  static void NAME(float *tile, __global const float *left, int left_row, int left_inner, \
                   SPACE const float *panel, int step, int rows, int inner, int first) {  \
    int i = 0;                                                                            \
    ADD_ROWS(6, SPACE)                                                                    \
    ADD_ROWS(4, SPACE)                                                                    \
    ADD_ROWS(1, SPACE)                                                                    \
  }

MULTIPLY_TILE(multiply_global, __global)
MULTIPLY_TILE(multiply_private, __private)

// The right factor is read in place: its rows have at least VECTOR aligned, contiguous elements.
static void tile_product_direct(float *tile, __global const float *left, int left_row,
                                int left_inner, __global const float *right, int right_inner,
                                int right_column, int rows, int columns, int inner) {
  for (int k = 0; k < inner; k += PANEL_DEPTH) {
    multiply_global(tile, left + k * left_inner, left_row, left_inner, right + k * right_inner,
                    right_inner, rows, min(PANEL_DEPTH, inner - k), k == 0);
  }
}

// The right factor is copied to a panel first: it may have any strides and number of columns.
static void tile_product_packed(float *tile, __global const float *left, int left_row,
                                int left_inner, __global const float *right, int right_inner,
                                int right_column, int rows, int columns, int inner) {
  float panel[PANEL_DEPTH * VECTOR] __attribute__((aligned(64)));
  for (int k = 0; k < inner; k += PANEL_DEPTH) {
    const int depth = min(PANEL_DEPTH, inner - k);
    pack_panel(panel, right + k * right_inner, right_inner, right_column, columns, VECTOR, depth);
    multiply_private(tile, left + k * left_inner, left_row, left_inner, panel, VECTOR, rows,
                     depth, k == 0);
  }
}

#define ADD_ROW(R, parts)                                                   \
  {                                                                         \
    __global const unaligned_vector *row =                                  \
        (__global const unaligned_vector *)(right + (k + R) * right_inner); \
    parts[2 * R] += row[0];                                                 \
    parts[2 * R + 1] += row[1];                                             \
  }

#define ADD_NARROW_ROW(R, parts) \
  parts[R] += *(__global const unaligned_vector *)(right + (k + R) * right_inner);

// sums[n] = the sum of right[k][n] over all k < inner, for n < columns. Whole vectors are added four
// rows at once, as four independent chains of additions.
static void column_sums(float *sums, __global const float *right, int right_inner,
                        int right_column, int columns, int inner) {
  if (columns == VECTOR && right_column == 1 && inner % 4 == 0) {
    vector parts[8], *out = (vector *)sums;
    REPEAT(4, CLEAR_2, parts)
    for (int k = 0; k < inner; k += 4) {
      REPEAT(4, ADD_ROW, parts)
    }
    out[0] = (parts[0] + parts[2]) + (parts[4] + parts[6]);
    out[1] = (parts[1] + parts[3]) + (parts[5] + parts[7]);
    return;
  }
#if NARROW == 16
  if (columns == NARROW && right_column == 1 && inner % 4 == 0) {
    vector parts[4];
    REPEAT(4, CLEAR_1, parts)
    for (int k = 0; k < inner; k += 4) {
      REPEAT(4, ADD_NARROW_ROW, parts)
    }
    *(vector *)sums = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    return;
  }
#endif
  if (right_inner == 1 && right_column != 1 && inner % NARROW == 0) {
    for (int n = 0; n < columns; n += 2) {
      __global const float *first_column = right + n * right_column;
      __global const float *second_column =
          n + 1 < columns ? first_column + right_column : first_column;
      vector parts[2] = {0.f};
      for (int k = 0; k < inner; k += NARROW) {
        parts[0] += *(__global const unaligned_vector *)(first_column + k);
        parts[1] += *(__global const unaligned_vector *)(second_column + k);
      }
      const float8 totals = sum_each(parts[0], parts[1], 0.f, 0.f, 0.f, 0.f, 0.f, 0.f);
      sums[n] = totals.s0;
      sums[n + 1] = totals.s1;  // `sums` has VECTOR elements
    }
    return;
  }
  for (int n = 0; n < VECTOR; ++n) sums[n] = 0.f;
  for (int k = 0; k < inner; ++k)
    for (int n = 0; n < columns; ++n) sums[n] += right[k * right_inner + n * right_column];
}
