// A tile of a matrix product by a work-group of LANES = 8 x 16, for GPUs.
//
//   tile[8 * OWN][TILE] = left[rows][inner] x right[inner][columns]
//
// Both factors pass through local memory, DEPTH inner elements at a time. Each lane keeps OWN
// neighbouring rows and every sixteenth column in registers: its rows come as vectors, which
// all lanes of a row share, and neighbouring lanes read and store neighbouring columns. Rows of
// local memory are padded by four elements so that lanes that store meet fewer banks twice.

#define DEPTH 32
#define PITCH (TILE + 4)

// Lanes read neighbouring elements, whichever axis those lie along, and store to other banks.
static void load_slice(__local float *slice, int width, __global const float *from, int stride,
                       int inner_stride, int count, int first, int inner) {
  const int lane = get_local_id(0);
  const int across = inner_stride == 1 ? LANES / 8 : width;  // rows or columns at once
  const int k0 = inner_stride == 1 ? lane % 8 : lane / width;
  const int m0 = inner_stride == 1 ? lane / 8 : lane % width;
  #pragma unroll
  for (int mm = 0; mm < width; mm += across) {
    #pragma unroll
    for (int kk = 0; kk < DEPTH; kk += LANES / across) {
      const int m = m0 + mm, k = k0 + kk;
      slice[k * PITCH + m] = m < count && first + k < inner
          ? from[m * stride + (first + k) * inner_stride] : 0.f;
    }
  }
}

// Neighbouring elements of local memory as one load.
#define NEXT_1(x, from) x[0] = (from)[0];
#define NEXT_2(x, from) *(float2 *)(x) = *(__local const float2 *)(from);
#define NEXT_4(x, from) *(float4 *)(x) = *(__local const float4 *)(from);
#define NEXT_8(x, from) NEXT_4(x, from) NEXT_4(x + 4, from + 4)

// sums[0] = the sum of column get_local_id(0) of the right factor, for lanes below TILE.
#define TILE_PRODUCT(NAME, OWN)                                                                 \
  static void NAME(float *own, float *sums, __global const float *left, int left_row,           \
                   int left_inner, __global const float *right, int right_inner,                \
                   int right_column, int rows, int columns, int inner,                          \
                   __local float *left_slice, __local float *right_slice) {                     \
    const int lane = get_local_id(0), row = lane / 16 * OWN, column = lane % 16;                \
    for (int i = 0; i < OWN * (TILE / 16); ++i) own[i] = 0.f;                                   \
    sums[0] = 0.f;                                                                              \
    for (int first = 0; first < inner; first += DEPTH) {                                        \
      const int depth = min(DEPTH, inner - first);                                              \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      load_slice(left_slice, 8 * OWN, left, left_row, left_inner, rows, first, inner);          \
      load_slice(right_slice, TILE, right, right_column, right_inner, columns, first, inner);   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      for (int begin = 0; begin < depth; begin += 8) /* beyond the last, slices are zero */     \
        for (int k = begin; k < begin + 8; ++k) {                                               \
          float x[OWN] __attribute__((aligned(16))), y[TILE / 16];                              \
          NEXT_##OWN(x, left_slice + k * PITCH + row)                                           \
          for (int j = 0; j < TILE / 16; ++j) y[j] = right_slice[k * PITCH + column + 16 * j];  \
          for (int i = 0; i < OWN; ++i)                                                         \
            for (int j = 0; j < TILE / 16; ++j) own[i * (TILE / 16) + j] += x[i] * y[j];        \
        }                                                                                       \
      if (lane < TILE)                                                                          \
        for (int begin = 0; begin < depth; begin += 8)                                          \
          for (int k = begin; k < begin + 8; ++k) sums[0] += right_slice[k * PITCH + lane];     \
    }                                                                                           \
  }

TILE_PRODUCT(tile_product_1, 1)
TILE_PRODUCT(tile_product_2, 2)
TILE_PRODUCT(tile_product_4, 4)
TILE_PRODUCT(tile_product_8, 8)
