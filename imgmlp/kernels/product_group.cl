// A tile of a matrix product by a work-group of LANES = 8 x 16, for GPUs.
//
//   tile[8 * OWN][TILE] += left[rows][inner] x right[inner][columns]
//
// Both factors pass through local memory in slices of DEPTH inner elements. While lanes multiply one
// slice, the next one is loaded into their registers. Each lane keeps OWN neighbouring rows and four
// neighbouring columns of the tile in registers. Before the tile is used it is spread over local
// memory, so that its use is a short loop: instructions for each register would not fit into the
// instruction cache. Lines in local memory are padded by four elements, so that stores of the lanes
// have fewer bank conflicts.

#define TILE_PITCH (TILE + 4)
#define TILE_FLOATS (64 * (8 + 4 + TILE_PITCH))  // for the largest slices, or for the tile

// The place of the `j`th four neighbours that a lane moves of a slice, which has `width` rows (or
// columns) of a factor. The lanes of a warp have 8 elements of 16 rows, or neighbours of one line.
typedef struct {
  int m, k;
} Place;

static Place place_of(int j, int width, int along_inner) {
  const int i = j * LANES + get_local_id(0);
  Place p;
  p.m = along_inner ? i / 2 % width : i % (width / 4) * 4;
  p.k = along_inner ? i / 2 / width * 8 + i % 2 * 4 : i / (width / 4);
  return p;
}

// Loads the lane's elements of a slice of `depth` inner elements of a factor, from `first` on. Only
// `count` rows (or columns) exist.
static void fetch_slice(float4 *x, int own, int width, int depth, __global const float *from,
                        int stride, int inner_stride, int aligned, int count, int first,
                        int inner) {
  #pragma unroll
  for (int j = 0; j < own; ++j) {
    const Place p = place_of(j, width, inner_stride == 1);
    x[j] = 0.f;
    if (p.k < depth)
      x[j] = four_of(from, stride, inner_stride, aligned, p.m, first + p.k, count, inner);
  }
}

// Stores the lane's elements to slice[depth][width], with 4 elements of padding between lines.
static void leave_slice(__local float *slice, const float4 *x, int own, int width, int depth,
                        int inner_stride) {
  const int along_inner = inner_stride == 1, pitch = width + 4;
  #pragma unroll
  for (int j = 0; j < own; ++j) {
    const Place p = place_of(j, width, along_inner);
    __local float *to = slice + p.k * pitch + p.m;
    if (p.k >= depth) continue;
    if (along_inner) {
      to[0] = x[j].x;
      to[pitch] = x[j].y;
      to[2 * pitch] = x[j].z;
      to[3 * pitch] = x[j].w;
    } else {
      *(__local float4 *)to = x[j];
    }
  }
}

// Loads neighbouring elements of local memory at once.
#define NEXT_1(x, from) (x)[0] = (from)[0];
#define NEXT_2(x, from) *(float2 *)(x) = *(__local const float2 *)(from);
#define NEXT_4(x, from) *(float4 *)(x) = *(__local const float4 *)(from);
#define NEXT_8(x, from) NEXT_4(x, from) NEXT_4((x) + 4, (from) + 4)

// Returns the sum of column get_local_id(0) of the right factor, in lanes below WIDTH.
#define TILE_PRODUCT(NAME, HEIGHT, WIDTH, OWN, DEPTH)                                           \
  static float NAME(                                                                            \
      float *tile, __local float *workspace, __global const float *left, int left_row,          \
      int left_inner, int left_aligned, __global const float *right, int right_inner,           \
      int right_column, int right_aligned, int rows, int columns, int inner) {                  \
    __local float *right_slice = workspace + DEPTH * (HEIGHT + 4);                              \
    const int lane = get_local_id(0);                                                           \
    const int row = lane / (WIDTH / 4) * OWN, column = lane % (WIDTH / 4) * 4;                  \
    float4 a[OWNED(HEIGHT, DEPTH)], b[OWNED(WIDTH, DEPTH)];                                     \
    float sum = 0.f;                                                                            \
    FETCH(HEIGHT, WIDTH, DEPTH, 0) /* if the loop did, PoCL would lose some of it */            \
    for (int first = 0, ahead = 0; first < inner; first = ahead) {                              \
      const int depth = min(DEPTH, (inner - first + 7) / 8 * 8);                                \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      leave_slice(workspace, a, OWNED(HEIGHT, DEPTH), HEIGHT, depth, left_inner);               \
      leave_slice(right_slice, b, OWNED(WIDTH, DEPTH), WIDTH, depth, right_inner);              \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      ahead = first + DEPTH;                                                                    \
      if (ahead < inner) FETCH(HEIGHT, WIDTH, DEPTH, ahead)                                     \
      _Pragma("unroll 1")                                                                       \
      for (int begin = 0; begin < min(DEPTH, inner - first); begin += 8) {                      \
        _Pragma("unroll") /* beyond the last, slices are zero */                                \
        for (int k = begin; k < begin + 8; ++k) {                                               \
          float x[OWN] __attribute__((aligned(16))), y[4] __attribute__((aligned(16)));         \
          NEXT_##OWN(x, workspace + k * (HEIGHT + 4) + row)                                     \
          NEXT_4(y, right_slice + k * (WIDTH + 4) + column)                                     \
          _Pragma("unroll")                                                                     \
          for (int i = 0; i < OWN; ++i) {                                                       \
            _Pragma("unroll")                                                                   \
            for (int j = 0; j < 4; ++j) tile[4 * i + j] += x[i] * y[j];                         \
          }                                                                                     \
        }                                                                                       \
      }                                                                                         \
      if (lane < WIDTH) {                                                                       \
        _Pragma("unroll 1")                                                                     \
        for (int begin = 0; begin < min(DEPTH, inner - first); begin += 8) {                    \
          _Pragma("unroll")                                                                     \
          for (int k = begin; k < begin + 8; ++k) sum += right_slice[k * (WIDTH + 4) + lane];   \
        }                                                                                       \
      }                                                                                         \
    }                                                                                           \
    return sum;                                                                                 \
  }

// How many times a lane moves four elements of a slice.
#define OWNED(WIDTH, DEPTH) ((WIDTH / 4 * DEPTH + LANES - 1) / LANES)
#define FETCH(HEIGHT, WIDTH, DEPTH, AT)                                                         \
  {                                                                                             \
    fetch_slice(a, OWNED(HEIGHT, DEPTH), HEIGHT, DEPTH, left, left_row, left_inner,             \
                left_aligned, rows, AT, inner);                                                 \
    fetch_slice(b, OWNED(WIDTH, DEPTH), WIDTH, DEPTH, right, right_column, right_inner,         \
                right_aligned, columns, AT, inner);                                             \
  }

TILE_PRODUCT(tile_product_1, 8, TILE, 1, 64)
TILE_PRODUCT(tile_product_2, 16, TILE, 2, 56)
TILE_PRODUCT(tile_product_4, 32, TILE, 4, 32)
TILE_PRODUCT(tile_product_8, 64, TILE, 8, 32)
TILE_PRODUCT(tile_product_narrow, 64, NARROW, 1, 32)

// Copies the tile to local memory, where all lanes can read it.
#define TILE_SPREAD(NAME, WIDTH, OWN)                                                           \
  static void NAME(__local float *workspace, const float *tile) {                               \
    const int lane = get_local_id(0);                                                           \
    const int row = lane / (WIDTH / 4) * OWN, column = lane % (WIDTH / 4) * 4;                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
    for (int i = 0; i < OWN; ++i)                                                               \
      *(__local float4 *)(workspace + (row + i) * TILE_PITCH + column) =                        \
          (float4)(tile[4 * i], tile[4 * i + 1], tile[4 * i + 2], tile[4 * i + 3]);             \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
  }

TILE_SPREAD(spread_1, TILE, 1)
TILE_SPREAD(spread_2, TILE, 2)
TILE_SPREAD(spread_4, TILE, 4)
TILE_SPREAD(spread_8, TILE, 8)
TILE_SPREAD(spread_narrow, NARROW, 1)
