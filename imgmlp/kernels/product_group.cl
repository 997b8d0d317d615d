// A tile of a matrix product by a work-group of LANES = 8 x 16, for GPUs without matrix units.
//
//   tile[8 * ROWS_PER_LANE][TILE] += left[rows][inner] x right[inner][columns]
//
// Registers: each lane accumulates ROWS_PER_LANE neighbouring rows by 4 neighbouring columns of the
// tile. The narrow tile has 64 rows and NARROW columns, so there are fewer lanes to a row.
//
// Local memory: both factors pass through it in slices of DEPTH inner elements, which are stored as
// slice[inner element][row or column]. While the lanes multiply one slice, the next one is already
// being loaded into their registers. A barrier before a slice is stored and another one after it
// separate its reads from its writes. Lines of a slice are padded by 4 elements, so that the stores
// of the lanes have fewer bank conflicts.
//
// The finished tile is spread over local memory, where a short loop can use it: instructions for each
// register would not fit into the instruction cache.
//
// The generated code defines LANES, TILE (columns of a tile) and NARROW (codegen/render.py).

#define TILE_PITCH (TILE + 4)
#define TILE_FLOATS (64 * (8 + 4 + TILE_PITCH))  // room for the largest slices, or for the tile

// A position in a slice: row (or column) m of the factor, and inner element k.
typedef struct {
  int m, k;
} SlicePosition;

// Where the `j`th group of four neighbours lies that a lane moves of a slice with `width` rows (or
// columns). The lanes of a warp read 8 inner elements of each of up to 16 rows if inner elements
// are contiguous, and neighbours of one line otherwise.

static SlicePosition slice_position(int j, int width, int is_inner_contiguous) {
  const int i = j * LANES + get_local_id(0);
  SlicePosition p;
  p.m = is_inner_contiguous ? i / 2 % width : i % (width / 4) * 4;
  p.k = is_inner_contiguous ? i / 2 / width * 8 + i % 2 * 4 : i / (width / 4);
  return p;
}

// Loads the lane's elements of a slice of a factor from global memory to registers. The slice has
// `depth` inner elements from number `first` on. Only `count` rows (or columns) exist.
static void load_slice(float4 *x, int fours_per_lane, int width, int depth,
                       __global const float *from, int stride, int inner_stride, int aligned,
                       int count, int first, int inner) {
  #pragma unroll
  for (int j = 0; j < fours_per_lane; ++j) {
    const SlicePosition p = slice_position(j, width, inner_stride == 1);
    x[j] = 0.f;
    if (p.k < depth)
      x[j] = load_four(from, stride, inner_stride, aligned, p.m, first + p.k, count, inner);
  }
}

// Stores the lane's elements to slice[depth][width] in local memory, whose lines are padded by 4
// elements.
static void store_slice(__local float *slice, const float4 *x, int fours_per_lane, int width, int depth,
                        int inner_stride) {
  const int is_inner_contiguous = inner_stride == 1, pitch = width + 4;
  #pragma unroll
  for (int j = 0; j < fours_per_lane; ++j) {
    const SlicePosition p = slice_position(j, width, is_inner_contiguous);
    __local float *to = slice + p.k * pitch + p.m;
    if (p.k >= depth) continue;
    if (is_inner_contiguous) {
      to[0] = x[j].x;
      to[pitch] = x[j].y;
      to[2 * pitch] = x[j].z;
      to[3 * pitch] = x[j].w;
    } else {
      *(__local float4 *)to = x[j];
    }
  }
}

// Loads 1, 2, 4 or 8 neighbouring elements of local memory, at most four at once.
#define LOAD_1(x, from) (x)[0] = (from)[0];
#define LOAD_2(x, from) *(float2 *)(x) = *(__local const float2 *)(from);
#define LOAD_4(x, from) *(float4 *)(x) = *(__local const float4 *)(from);
#define LOAD_8(x, from) LOAD_4(x, from) LOAD_4((x) + 4, (from) + 4)

// Adds the product of two factors to the lane's registers `tile`. `workspace` in local memory holds
// the slices. Also returns the sum of column get_local_id(0) of the right factor, in lanes below
// WIDTH.
#define TILE_PRODUCT(NAME, HEIGHT, WIDTH, ROWS_PER_LANE, DEPTH)                                   \
  static float NAME(                                                                              \
      float *tile, __local float *workspace, __global const float *left, int left_row,            \
      int left_inner, int left_aligned, __global const float *right, int right_inner,             \
      int right_column, int right_aligned, int rows, int columns, int inner) {                    \
    __local float *right_slice = workspace + DEPTH * (HEIGHT + 4);                                \
    const int lane = get_local_id(0);                                                             \
    const int row = lane / (WIDTH / 4) * ROWS_PER_LANE, column = lane % (WIDTH / 4) * 4;          \
    float4 a[FOURS_PER_LANE(HEIGHT, DEPTH)], b[FOURS_PER_LANE(WIDTH, DEPTH)];                     \
    float sum = 0.f;                                                                              \
    LOAD_SLICES(HEIGHT, WIDTH, DEPTH, 0) /* not in the loop, where PoCL would lose some of it */  \
    for (int first = 0, next_first = 0; first < inner; first = next_first) {                      \
      const int depth = min(DEPTH, (inner - first + 7) / 8 * 8);                                  \
      barrier(CLK_LOCAL_MEM_FENCE);                                                               \
      store_slice(workspace, a, FOURS_PER_LANE(HEIGHT, DEPTH), HEIGHT, depth, left_inner);        \
      store_slice(right_slice, b, FOURS_PER_LANE(WIDTH, DEPTH), WIDTH, depth, right_inner);       \
      barrier(CLK_LOCAL_MEM_FENCE);                                                               \
      next_first = first + DEPTH;                                                                 \
      if (next_first < inner) LOAD_SLICES(HEIGHT, WIDTH, DEPTH, next_first)                       \
      _Pragma("unroll 1")                                                                         \
      for (int begin = 0; begin < min(DEPTH, inner - first); begin += 8) {                        \
        _Pragma("unroll") /* slices are zero beyond the last inner element */                     \
        for (int k = begin; k < begin + 8; ++k) {                                                 \
          float x[ROWS_PER_LANE] __attribute__((aligned(16))), y[4] __attribute__((aligned(16))); \
          LOAD_##ROWS_PER_LANE(x, workspace + k * (HEIGHT + 4) + row)                             \
          LOAD_4(y, right_slice + k * (WIDTH + 4) + column)                                       \
          _Pragma("unroll")                                                                       \
          for (int i = 0; i < ROWS_PER_LANE; ++i) {                                               \
            _Pragma("unroll")                                                                     \
            for (int j = 0; j < 4; ++j) tile[4 * i + j] += x[i] * y[j];                           \
          }                                                                                       \
        }                                                                                         \
      }                                                                                           \
      if (lane < WIDTH) {                                                                         \
        _Pragma("unroll 1")                                                                       \
        for (int begin = 0; begin < min(DEPTH, inner - first); begin += 8) {                      \
          _Pragma("unroll")                                                                       \
          for (int k = begin; k < begin + 8; ++k) sum += right_slice[k * (WIDTH + 4) + lane];     \
        }                                                                                         \
      }                                                                                           \
    }                                                                                             \
    return sum;                                                                                   \
  }

// The groups of four elements of a slice that each lane moves.
#define FOURS_PER_LANE(WIDTH, DEPTH) ((WIDTH / 4 * DEPTH + LANES - 1) / LANES)
#define LOAD_SLICES(HEIGHT, WIDTH, DEPTH, FIRST)                                                \
  {                                                                                             \
    load_slice(a, FOURS_PER_LANE(HEIGHT, DEPTH), HEIGHT, DEPTH, left, left_row, left_inner,     \
                left_aligned, rows, FIRST, inner);                                              \
    load_slice(b, FOURS_PER_LANE(WIDTH, DEPTH), WIDTH, DEPTH, right, right_column, right_inner, \
                right_aligned, columns, FIRST, inner);                                          \
  }

TILE_PRODUCT(tile_product_1, 8, TILE, 1, 64)
TILE_PRODUCT(tile_product_2, 16, TILE, 2, 56)
TILE_PRODUCT(tile_product_4, 32, TILE, 4, 32)
TILE_PRODUCT(tile_product_8, 64, TILE, 8, 32)
TILE_PRODUCT(tile_product_narrow, 64, NARROW, 1, 32)

// Copies the tile from the lanes' registers to local memory, where all lanes can read it. Its rows are
// TILE_PITCH elements apart.
#define TILE_SPREAD(NAME, WIDTH, ROWS_PER_LANE)                                          \
  static void NAME(__local float *workspace, const float *tile) {                        \
    const int lane = get_local_id(0);                                                    \
    const int row = lane / (WIDTH / 4) * ROWS_PER_LANE, column = lane % (WIDTH / 4) * 4; \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    for (int i = 0; i < ROWS_PER_LANE; ++i)                                              \
      *(__local float4 *)(workspace + (row + i) * TILE_PITCH + column) =                 \
          (float4)(tile[4 * i], tile[4 * i + 1], tile[4 * i + 2], tile[4 * i + 3]);      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
  }

TILE_SPREAD(spread_1, TILE, 1)
TILE_SPREAD(spread_2, TILE, 2)
TILE_SPREAD(spread_4, TILE, 4)
TILE_SPREAD(spread_8, TILE, 8)
TILE_SPREAD(spread_narrow, NARROW, 1)
