// A tile of a matrix product by one work-item, for CPUs.
//
//   tile[rows][columns] = left[rows][inner] x right[inner][columns]
//
// The micro-kernel is a rank-1 update in registers: 6 rows by 16 columns, which are 12
// independent chains of multiply-adds, the left element broadcast, the right row two float8.
// Plain pointer dereferences and a * b + c: PoCL inlines neither vload8 nor fma in a large
// kernel, and a call spills all registers.

#define INNER 256  // inner elements of a packed panel: 16 KiB, half of a first-level cache
#define UNROLL _Pragma("unroll")

typedef float8 unaligned8 __attribute__((aligned(4)));  // eight floats, wherever they begin

// sums[R][V] += left[R][inner] x panel[inner][V]. R and V, which counts float8, are literals and
// `sums` is an array of the caller's that no variable indexes, so that all of it is in registers.
// left[i * left_row + k * left_inner]; panel: row k at k * step, aligned; SPACE is where it lies.
// Rows from number `rows` on are copies of the last one below: what is not there is not read.
#define MULTIPLY(R, V, sums, left, left_row, left_inner, SPACE, panel, step, rows, inner) \
  {                                                                                       \
    __global const float *x_[R];                                                          \
    UNROLL for (int r_ = 0; r_ < (R); ++r_)                                               \
      x_[r_] = (left) + (r_ < (rows) ? r_ : (rows) - 1) * (left_row);                     \
    for (int k_ = 0; k_ < (inner); ++k_) {                                                \
      SPACE const float8 *y_ = (SPACE const float8 *)((panel) + k_ * (step));             \
      UNROLL for (int r_ = 0; r_ < (R); ++r_) {                                           \
        const float a_ = x_[r_][k_ * (left_inner)];                                       \
        UNROLL for (int v_ = 0; v_ < (V); ++v_) sums[r_ * (V) + v_] += a_ * y_[v_];       \
      }                                                                                   \
    }                                                                                     \
  }

// A product that begins at zero, in an array of the given name.
#define PRODUCT(R, V, sums, ...)                              \
  float8 sums[(R) * (V)];                                     \
  UNROLL for (int r_ = 0; r_ < (R) * (V); ++r_) sums[r_] = 0.f; \
  MULTIPLY(R, V, sums, __VA_ARGS__)

// The same elements where variables may index them.
#define TO_MEMORY(R, V, tile, sums)                                       \
  float tile[(R) * (V) * 8] __attribute__((aligned(64)));                 \
  UNROLL for (int r_ = 0; r_ < (R) * (V); ++r_) *(float8 *)(tile + 8 * r_) = sums[r_];

// Columns of the right factor side by side, zero from number `columns` to `width`.
static void pack_panel(float *panel, __global const float *right, int right_inner,
                       int right_column, int columns, int width, int inner) {
  for (int k = 0; k < inner; ++k) {
    for (int n = 0; n < columns; ++n)
      panel[k * width + n] = right[k * right_inner + n * right_column];
    for (int n = columns; n < width; ++n) panel[k * width + n] = 0.f;
  }
}

// Factors so long that a tile of VECTOR columns is added up panel by panel, in memory.

#define ROWS(R, SPACE)                                                                  \
  for (; i + R <= rows; i += R) {                                                       \
    float8 *out = (float8 *)(tile + i * VECTOR), sums[2 * R];                           \
    UNROLL for (int r = 0; r < 2 * R; ++r) sums[r] = first ? 0.f : out[r];              \
    MULTIPLY(R, 2, sums, left + i * left_row, left_row, left_inner, SPACE, panel, step, \
             R, inner)                                                                  \
    UNROLL for (int r = 0; r < 2 * R; ++r) out[r] = sums[r];                            \
  }

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

// The right factor read in place: rows of at least VECTOR aligned, neighbouring elements.
static void tile_product_direct(float *tile, __global const float *left, int left_row,
                                int left_inner, __global const float *right, int right_inner,
                                int right_column, int rows, int columns, int inner) {
  for (int k = 0; k < inner; k += INNER) {
    multiply_global(tile, left + k * left_inner, left_row, left_inner, right + k * right_inner,
                    right_inner, rows, min(INNER, inner - k), k == 0);
  }
}

// Any strides and any number of columns: the right factor is copied to a panel first.
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

// sums[n] = the sum of right[k][n] over all inner k, for n below columns. Four rows at once, as
// one addition waits for the other.
static void column_sums(float *sums, __global const float *right, int right_inner,
                        int right_column, int columns, int inner) {
  for (int n = 0; n < VECTOR; ++n) sums[n] = 0.f;
  int k = 0;
  if (columns == VECTOR && right_column == 1) {
    float8 parts[8];
    UNROLL for (int r = 0; r < 8; ++r) parts[r] = 0.f;
    for (; k + 4 <= inner; k += 4) {
      UNROLL for (int r = 0; r < 8; ++r)
        parts[r] += *(__global const unaligned8 *)(right + (k + r / 2) * right_inner + r % 2 * 8);
    }
    float8 *out = (float8 *)sums;
    UNROLL for (int r = 0; r < 2; ++r)
      out[r] = (parts[r] + parts[r + 2]) + (parts[r + 4] + parts[r + 6]);
  }
  for (; k < inner; ++k)
    for (int n = 0; n < columns; ++n) sums[n] += right[k * right_inner + n * right_column];
}
