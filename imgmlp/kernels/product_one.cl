// A tile of a matrix product by one work-item, for CPUs.
//
//   tile[rows][VECTOR] = left[rows][inner] x right[inner][VECTOR]
//
// The micro-kernel is a rank-1 update in registers: 4 rows by 16 columns, the left
// element broadcast, the right row two float8. Plain pointer dereferences and a * b + c:
// PoCL inlines neither vload8 nor fma in a large kernel, and a call spills all registers.

#define INNER 256  // inner elements of a packed panel: 16 KiB, half of a first-level cache

// left[i * left_row + k * left_inner]; panel: row k at k * step, aligned float8.
#define MICRO_KERNEL(NAME, SPACE)                                                          \
  static void NAME(float *tile, __global const float *left, int left_row, int left_inner,  \
                   SPACE const float *panel, int step, int rows, int inner, int first) {   \
    int i = 0;                                                                             \
    for (; i + 4 <= rows; i += 4) {                                                        \
      float8 *out = (float8 *)(tile + i * VECTOR);                                         \
      float8 a0 = 0.f, a1 = 0.f, b0 = 0.f, b1 = 0.f, c0 = 0.f, c1 = 0.f, d0 = 0.f, d1 = 0.f; \
      if (!first) {                                                                        \
        a0 = out[0]; a1 = out[1]; b0 = out[2]; b1 = out[3];                                \
        c0 = out[4]; c1 = out[5]; d0 = out[6]; d1 = out[7];                                \
      }                                                                                    \
      __global const float *x = left + i * left_row;                                       \
      for (int k = 0; k < inner; ++k) {                                                    \
        SPACE const float8 *y = (SPACE const float8 *)(panel + k * step);                  \
        const float8 y0 = y[0], y1 = y[1];                                                 \
        const float xa = x[k * left_inner], xb = x[k * left_inner + left_row];             \
        const float xc = x[k * left_inner + 2 * left_row];                                 \
        const float xd = x[k * left_inner + 3 * left_row];                                 \
        a0 += xa * y0; a1 += xa * y1; b0 += xb * y0; b1 += xb * y1;                        \
        c0 += xc * y0; c1 += xc * y1; d0 += xd * y0; d1 += xd * y1;                        \
      }                                                                                    \
      out[0] = a0; out[1] = a1; out[2] = b0; out[3] = b1;                                  \
      out[4] = c0; out[5] = c1; out[6] = d0; out[7] = d1;                                  \
    }                                                                                      \
    for (; i < rows; ++i) {                                                                \
      float8 *out = (float8 *)(tile + i * VECTOR);                                         \
      float8 a0 = 0.f, a1 = 0.f;                                                           \
      if (!first) { a0 = out[0]; a1 = out[1]; }                                            \
      __global const float *x = left + i * left_row;                                       \
      for (int k = 0; k < inner; ++k) {                                                    \
        SPACE const float8 *y = (SPACE const float8 *)(panel + k * step);                  \
        a0 += x[k * left_inner] * y[0];                                                    \
        a1 += x[k * left_inner] * y[1];                                                    \
      }                                                                                    \
      out[0] = a0; out[1] = a1;                                                            \
    }                                                                                      \
  }

MICRO_KERNEL(multiply_global, __global)
MICRO_KERNEL(multiply_private, __private)

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
  for (int k0 = 0; k0 < inner; k0 += INNER) {
    const int depth = min(INNER, inner - k0);
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < VECTOR; ++n) {
        panel[k * VECTOR + n] =
            n < columns ? right[(k0 + k) * right_inner + n * right_column] : 0.f;
      }
    }
    multiply_private(tile, left + k0 * left_inner, left_row, left_inner, panel, VECTOR, rows,
                     depth, k0 == 0);
  }
}

// sums[n] = the sum of right[k][n] over all inner k, for n below columns.
static void column_sums(float *sums, __global const float *right, int right_inner,
                        int right_column, int columns, int inner) {
  for (int n = 0; n < VECTOR; ++n) sums[n] = 0.f;
  if (columns == VECTOR && right_column == 1) {
    for (int k = 0; k < inner; ++k)
      for (int n = 0; n < VECTOR; ++n) sums[n] += right[k * right_inner + n];
  } else {
    for (int k = 0; k < inner; ++k)
      for (int n = 0; n < columns; ++n) sums[n] += right[k * right_inner + n * right_column];
  }
}
