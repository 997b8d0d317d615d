// A tile of a matrix product by one work-item, for CPUs.
//
//   tile[rows][columns] = left[rows][inner] x right[inner][columns]
//
// The micro-kernel is a rank-1 update in registers: the left element is broadcast, and the right row
// is two vectors. A tile of 6 rows by 16 columns has 12 independent chains of multiply-adds. With
// AVX-512, where vectors have NARROW = 16 elements, it is 8 rows by 32 columns. PoCL 3.0 aborts on
// any float16 if the processor has no such vectors, so other devices must not see one.
// Use plain pointer dereferences and a * b + c: PoCL inlines neither vload8 nor fma in a large
// kernel, and a call spills all registers.

#define INNER 256  // inner elements of a packed panel: 16 KiB, half of a first-level cache

#if NARROW == 16
typedef float16 vector;
typedef float16 row_vector __attribute__((aligned(32)));  // of a right factor read in place
#else
typedef float8 vector;
typedef float8 row_vector;
#endif
typedef vector unaligned_vector __attribute__((aligned(4)));

// M(0, ...) to M(R - 1, ...), written out. LLVM takes longer for each loop the more loops a kernel
// has, even if they are unrolled.
#define REPEAT(R, M, ...) REPEAT_##R(M, __VA_ARGS__)
#define REPEAT_1(M, ...) M(0, __VA_ARGS__)
#define REPEAT_2(M, ...) REPEAT_1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define REPEAT_3(M, ...) REPEAT_2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define REPEAT_4(M, ...) REPEAT_3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define REPEAT_5(M, ...) REPEAT_4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define REPEAT_6(M, ...) REPEAT_5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define REPEAT_7(M, ...) REPEAT_6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define REPEAT_8(M, ...) REPEAT_7(M, __VA_ARGS__) M(7, __VA_ARGS__)

// sums[R][V] += left[R][inner] x panel[inner][V]. R and V, a number of vectors, are literals. `sums`
// is an array of the caller that no variable indexes, so that all of it stays in registers.
// Element (i, k) of the left factor is left[i * left_row + k * left_inner]. Row k of the panel is at
// k * step, aligned, in the address space SPACE. Rows from number `rows` on repeat the last row that
// exists, so that nothing else is read.
#define MULTIPLY(KIND, R, V, sums, left, left_row, left_inner, SPACE, panel, step, rows, inner) \
  {                                                                                             \
    REPEAT(R, POINT, left, left_row, rows)                                                      \
    for (long k_ = 0; k_ < (inner); ++k_) {                                                     \
      SPACE const KIND *y_ = (SPACE const KIND *)((panel) + k_ * (step));                       \
      REPEAT(R, ADD_##V, sums, k_ * (left_inner))                                               \
    }                                                                                           \
  }
#define POINT(R, left, left_row, rows) \
  __global const float *x_##R = (left) + (R < (rows) ? R : (rows) - 1) * (left_row);
#define ADD_1(R, sums, at) sums[R] += x_##R[at] * y_[0];
#define ADD_2(R, sums, at)              \
  {                                     \
    const float a_ = x_##R[at];         \
    sums[2 * R] += a_ * y_[0];          \
    sums[2 * R + 1] += a_ * y_[1];      \
  }

// A product in a new array `sums`, which begins at zero. PRODUCT_8 always takes vectors of 8.
#define PRODUCT(R, V, sums, ...)               \
  vector sums[(R) * (V)];                      \
  REPEAT(R, CLEAR_##V, sums)                   \
  MULTIPLY(row_vector, R, V, sums, __VA_ARGS__)
#define PRODUCT_8(R, V, sums, ...)         \
  float8 sums[(R) * (V)];                  \
  REPEAT(R, CLEAR_##V, sums)               \
  MULTIPLY(float8, R, V, sums, __VA_ARGS__)
#define CLEAR_1(R, sums) sums[R] = 0.f;
#define CLEAR_2(R, sums) sums[2 * R] = sums[2 * R + 1] = 0.f;

// The elements of `sums` in an array `tile` in memory, which variables may index.
#define TO_MEMORY(R, V, tile, sums)                            \
  float tile[(R) * (V) * NARROW] __attribute__((aligned(64))); \
  REPEAT(R, PUT_##V, (vector *)tile, sums)
#define TO_MEMORY_8(R, V, tile, sums)                     \
  float tile[(R) * (V) * 8] __attribute__((aligned(64))); \
  REPEAT(R, PUT_##V, (float8 *)tile, sums)
#define PUT_1(R, out, sums) (out)[R] = sums[R];
#define PUT_2(R, out, sums)    \
  (out)[2 * R] = sums[2 * R];  \
  (out)[2 * R + 1] = sums[2 * R + 1];

// found[R][C] = left[R][inner] x right[C][inner], where the terms of both factors are contiguous. The
// products of NARROW terms at once are added to as many partial sums, which TOTALS adds up. `found`
// is a new array of EIGHTS float8, with the elements one after the other. Element (i, k) of the left
// factor is left[i * left_row + k]. Rows from number `rows` on repeat the last row that exists.
// `inner` is a multiple of NARROW.
#define PRODUCT_ALONG(R, C, EIGHTS, found, left, left_row, right, right_column, rows, inner) \
  float8 found[EIGHTS];                                                                      \
  {                                                                                          \
    vector sums_[8 * EIGHTS] = {0.f};                                                        \
    REPEAT(R, POINT, left, left_row, rows)                                                   \
    ACROSS(C, POINT_ACROSS, right, right_column)                                             \
    for (long k_ = 0; k_ < (inner); k_ += NARROW) {                                          \
      REPEAT(R, READ_ALONG, )                                                                \
      ACROSS(C, ADD_ACROSS, R, C, sums_)                                                     \
    }                                                                                        \
    REPEAT(EIGHTS, TOTALS, found, sums_)                                                     \
  }
#define POINT_ACROSS(N, right, step) __global const float *y_##N = (right) + N * (step);
#define READ_ALONG(R, ...) const vector a_##R = *(__global const unaligned_vector *)(x_##R + k_);
#define ADD_ACROSS(N, R, C, sums)                                                \
  {                                                                              \
    const vector b_ = *(__global const unaligned_vector *)(y_##N + k_);          \
    REPEAT(R, ADD_ALONG, N, C, sums)                                             \
  }
#define ADD_ALONG(R, N, C, sums) sums[(R) * (C) + N] += a_##R * b_;
#define TOTALS(N, found, sums)                                                             \
  found[N] = each_total(sums[8 * N], sums[8 * N + 1], sums[8 * N + 2], sums[8 * N + 3],    \
                        sums[8 * N + 4], sums[8 * N + 5], sums[8 * N + 6], sums[8 * N + 7]);

// ACROSS is REPEAT under another name, as a macro cannot be used within itself.
#define ACROSS(C, M, ...) ACROSS_##C(M, __VA_ARGS__)
#define ACROSS_1(M, ...) M(0, __VA_ARGS__)
#define ACROSS_2(M, ...) ACROSS_1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define ACROSS_3(M, ...) ACROSS_2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define ACROSS_4(M, ...) ACROSS_3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define ACROSS_5(M, ...) ACROSS_4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define ACROSS_6(M, ...) ACROSS_5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define ACROSS_7(M, ...) ACROSS_6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define ACROSS_8(M, ...) ACROSS_7(M, __VA_ARGS__) M(7, __VA_ARGS__)

// The sum of the elements of each of eight vectors. Neighbours are added like x86's horizontal
// additions do within 128 bits.
#if NARROW == 16
#define HALVED(a) ((a).lo + (a).hi)
#else
#define HALVED(a) (a)
#endif
#define PAIRS(a, b) \
  ((float8)((a).s02, (b).s02, (a).s46, (b).s46) + (float8)((a).s13, (b).s13, (a).s57, (b).s57))
#define FOURS(a, b, c, d) PAIRS(PAIRS(HALVED(a), HALVED(b)), PAIRS(HALVED(c), HALVED(d)))
static inline __attribute__((always_inline)) float8 each_total(
    vector a, vector b, vector c, vector d, vector e, vector f, vector g, vector h) {
  const float8 low = FOURS(a, b, c, d), high = FOURS(e, f, g, h);
  return (float8)(low.lo, high.lo) + (float8)(low.hi, high.hi);
}

// Copies columns of the right factor to panel[inner][width], with zeros from number `columns` on.
static void pack_panel(float *panel, __global const float *right, int right_inner,
                       int right_column, int columns, int width, int inner) {
  for (int k = 0; k < inner; ++k) {
    for (int n = 0; n < width; ++n)
      panel[k * width + n] = n < columns ? right[k * right_inner + n * right_column] : 0.f;
  }
}

// Products of many terms: a tile of VECTOR columns is summed panel by panel, in memory.

#define ROWS(R, SPACE)                                                                  \
  for (; i + R <= rows; i += R) {                                                       \
    vector *out = (vector *)(tile + i * VECTOR), sums[2 * R];                           \
    REPEAT(R, BEGIN, out, sums)                                                         \
    MULTIPLY(row_vector, R, 2, sums, left + i * left_row, left_row, left_inner, SPACE,  \
             panel, step, R, inner)                                                     \
    REPEAT(R, PUT_2, out, sums)                                                         \
  }
#define BEGIN(R, out, sums)               \
  sums[2 * R] = first ? 0.f : out[2 * R]; \
  sums[2 * R + 1] = first ? 0.f : out[2 * R + 1];

#define MULTIPLY_TILE(NAME, SPACE)                                                          \
  static void NAME(float *tile, __global const float *left, int left_row, int left_inner,   \
                   SPACE const float *panel, int step, int rows, int inner, int first) {    \
    int i = 0;                                                                              \
    ROWS(6, SPACE)                                                                          \
    ROWS(4, SPACE)                                                                          \
    ROWS(1, SPACE)                                                                          \
  }

MULTIPLY_TILE(multiply_global, __global)
MULTIPLY_TILE(multiply_private, __private)

// The right factor is read in place: its rows have at least VECTOR aligned, contiguous elements.
static void tile_product_direct(float *tile, __global const float *left, int left_row,
                                int left_inner, __global const float *right, int right_inner,
                                int right_column, int rows, int columns, int inner) {
  for (int k = 0; k < inner; k += INNER) {
    multiply_global(tile, left + k * left_inner, left_row, left_inner, right + k * right_inner,
                    right_inner, rows, min(INNER, inner - k), k == 0);
  }
}

// The right factor is copied to a panel first: it may have any strides and number of columns.
static void tile_product_packed(float *tile, __global const float *left, int left_row,
                                int left_inner, __global const float *right, int right_inner,
                                int right_column, int rows, int columns, int inner) {
  float panel[INNER * VECTOR] __attribute__((aligned(64)));
  for (int k = 0; k < inner; k += INNER) {
    const int depth = min(INNER, inner - k);
    pack_panel(panel, right + k * right_inner, right_inner, right_column, columns, VECTOR, depth);
    multiply_private(tile, left + k * left_inner, left_row, left_inner, panel, VECTOR, rows,
                     depth, k == 0);
  }
}

#define ADD_ROW(R, parts)                                                                  \
  {                                                                                        \
    __global const unaligned_vector *row =                                                 \
        (__global const unaligned_vector *)(right + (k + R) * right_inner);                \
    parts[2 * R] += row[0];                                                                \
    parts[2 * R + 1] += row[1];                                                            \
  }

#define ADD_ONE(R, parts) \
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
      REPEAT(4, ADD_ONE, parts)
    }
    *(vector *)sums = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    return;
  }
#endif
  if (right_inner == 1 && right_column != 1 && inner % NARROW == 0) {
    for (int n = 0; n < columns; n += 2) {
      __global const float *one = right + n * right_column;
      __global const float *other = n + 1 < columns ? one + right_column : one;
      vector parts[2] = {0.f};
      for (int k = 0; k < inner; k += NARROW) {
        parts[0] += *(__global const unaligned_vector *)(one + k);
        parts[1] += *(__global const unaligned_vector *)(other + k);
      }
      const float8 both = each_total(parts[0], parts[1], 0.f, 0.f, 0.f, 0.f, 0.f, 0.f);
      sums[n] = both.s0;
      sums[n + 1] = both.s1;  // `sums` has VECTOR elements
    }
    return;
  }
  for (int n = 0; n < VECTOR; ++n) sums[n] = 0.f;
  for (int k = 0; k < inner; ++k)
    for (int n = 0; n < columns; ++n) sums[n] += right[k * right_inner + n * right_column];
}
