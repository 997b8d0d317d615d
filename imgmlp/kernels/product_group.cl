// A TILE x TILE tile of a matrix product by a work-group of LANES = 16 x 16, for GPUs.
//
//   tile[rows][columns] = left[rows][inner] x right[inner][columns]
//
// Both factors pass through local memory, 16 inner elements at a time; each lane keeps
// every sixteenth row and column of the tile in registers. Rows of local memory are padded
// by four elements so that neighbouring lanes meet different banks.

static void tile_product(float *own, __global const float *left, int left_row, int left_inner,
                         __global const float *right, int right_inner, int right_column, int rows,
                         int columns, int inner, __local float *left_tile,
                         __local float *right_tile) {
  const int lane = get_local_id(0), row = lane / 16, column = lane % 16;
  for (int i = 0; i < (TILE / 16) * (TILE / 16); ++i) own[i] = 0.f;
  for (int k0 = 0; k0 < inner; k0 += 16) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lane; i < 16 * TILE; i += LANES) {
      // neighbouring lanes read neighbouring elements, whichever axis those lie along
      const int lm = left_inner == 1 ? i / 16 : i % TILE, lk = left_inner == 1 ? i % 16 : i / TILE;
      left_tile[lk * (TILE + 4) + lm] = lm < rows && k0 + lk < inner
          ? left[lm * left_row + (k0 + lk) * left_inner] : 0.f;
      const int rn = right_inner == 1 ? i / 16 : i % TILE, rk = right_inner == 1 ? i % 16 : i / TILE;
      right_tile[rk * (TILE + 4) + rn] = rn < columns && k0 + rk < inner
          ? right[(k0 + rk) * right_inner + rn * right_column] : 0.f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < 16; ++k) {
      float x[TILE / 16], y[TILE / 16];
      for (int i = 0; i < TILE / 16; ++i) {
        x[i] = left_tile[k * (TILE + 4) + row + 16 * i];
        y[i] = right_tile[k * (TILE + 4) + column + 16 * i];
      }
      for (int i = 0; i < TILE / 16; ++i)
        for (int j = 0; j < TILE / 16; ++j) own[i * (TILE / 16) + j] += x[i] * y[j];
    }
  }
}

// sum[0] = the sum of right[k][column] over all inner k, where the lane is the column.
static void column_sums(float *sum, __global const float *right, int right_inner,
                        int right_column, int columns, int inner) {
  const int column = get_local_id(0);
  sum[0] = 0.f;
  if (column < columns)
    for (int k = 0; k < inner; ++k) sum[0] += right[k * right_inner + column * right_column];
}
