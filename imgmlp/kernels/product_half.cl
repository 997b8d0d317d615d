// A tile of a matrix product by a work-group of LANES = 4 x 32, on matrix units (NVIDIA).
//
//   tile[8 * OWN][TILE] = left[rows][inner] x right[inner][columns]
//
// Both factors are rounded to half precision on their way into local memory, DEPTH inner elements
// at a time, and stay there the way round that they have in memory: lines of neighbours. Products
// are summed in float32. Matrix units take 16 by 16 elements of one factor and 16 by 8 of the
// other; the first is the right one, transposed, so that a tile of 8 rows leaves nothing idle.
// Each warp has 16 columns, each of its lanes 2 of them and 2 rows of every 8.

#define DEPTH 64
#define PITCH 36  // words of a line: 64 halves, and 8 more so that 8 lines meet all banks once

static uint two_halves(float low, float high) {
  uint both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// sums += a x b. Lanes hold: a, element 2 * (lane % 4) and the next of lines lane / 4; so of b.
static void multiply(float *sums, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[2]), "+f"(sums[1]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Squares of 8 by 8 halves, a lane's two neighbours of each: along lines, or across them.
#define SQUARES_2(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                \
               : "=r"((x)[0]), "=r"((x)[1]) : "r"(at) : "memory")
#define SQUARES_4(x, at, how)                                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
               : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3]) : "r"(at) : "memory")

// Where 16 inner elements of 8 or 16 rows (or columns) begin that this lane asks for.
static uint square(__local const uint *slice, int along_inner, int m, int k) {
  const int line = along_inner ? m : k, element = along_inner ? k : m;
  return (uint)(size_t)(slice + line * PITCH) + 2 * element;
}

// How many inner elements a slice has: whole steps of 16, those beyond the last are zero.
static int filled(int inner, int first) {
  return min(DEPTH, (inner - first + 15) / 16 * 16);
}

// `width` rows (or columns) of a factor; each lane moves four neighbours at once.
static void load_slice(__local uint *slice, int width, __global const float *from, int stride,
                       int inner_stride, int count, int first, int inner) {
  const int along_inner = inner_stride == 1, depth = filled(inner, first);
  const int lines = along_inner ? width : depth;
  const int fours = (along_inner ? depth : width) / 4;
  const int next = along_inner ? 1 : stride;
  const int whole = count >= width && inner - first >= depth && next == 1
      && (along_inner ? stride : inner_stride) % 4 == 0 && (size_t)from % 16 == 0;
  #pragma unroll
  for (int i = get_local_id(0); i < lines * fours; i += LANES) {
    const int line = i / fours, begin = i % fours * 4;
    const int m = along_inner ? line : begin, k = first + (along_inner ? begin : line);
    __global const float *at = from + m * stride + k * inner_stride;
    float4 x = 0.f;
    if (whole) {
      x = *(__global const float4 *)at;
    } else if (along_inner ? m < count : k < inner) {
      const int left = along_inner ? inner - k : count - m;
      if (left > 0) x.x = at[0];
      if (left > 1) x.y = at[next];
      if (left > 2) x.z = at[2 * next];
      if (left > 3) x.w = at[3 * next];
    }
    *(__local uint2 *)(slice + line * PITCH + begin / 2) =
        (uint2)(two_halves(x.x, x.y), two_halves(x.z, x.w));
  }
}

// The sum of one column of the right factor's slice.
static float sum_column(__local const uint *slice, int along_inner, int column, int depth) {
  __local const half *at = (__local const half *)slice + column * (along_inner ? 2 * PITCH : 1);
  const int next = along_inner ? 1 : 2 * PITCH;
  float sum[4] = {0.f, 0.f, 0.f, 0.f};
  for (int k = 0; k < depth; k += 4)
    for (int i = 0; i < 4; ++i) sum[i] += vload_half((k + i) * next, at);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// sums[0] = the sum of column get_local_id(0) of the right factor, for lanes below TILE.
#define TILE_PRODUCT(NAME, OWN)                                                                 \
  static void NAME(float *own, float *sums, __global const float *left, int left_row,           \
                   int left_inner, __global const float *right, int right_inner,                \
                   int right_column, int rows, int columns, int inner,                          \
                   __local uint *left_slice, __local uint *right_slice) {                       \
    const int lane = get_local_id(0), warp = lane / 32, along_left = left_inner == 1,           \
              along_right = right_inner == 1;                                                   \
    const int eighth = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 % 2 * 8;             \
    for (int i = 0; i < 4 * OWN; ++i) own[i] = 0.f;                                             \
    sums[0] = 0.f;                                                                              \
    for (int first = 0; first < inner; first += DEPTH) {                                        \
      const int depth = filled(inner, first);                                                   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      load_slice(left_slice, 8 * OWN, left, left_row, left_inner, rows, first, inner);          \
      load_slice(right_slice, TILE, right, right_column, right_inner, columns, first, inner);   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                             \
      for (int k = 0; k < depth; k += 16) {                                                     \
        uint a[4], b[4];                                                                        \
        if (along_right)                                                                        \
          SQUARES_4(a, square(right_slice, 1, warp * 16 + odd + eighth, k + upper), "");        \
        else                                                                                    \
          SQUARES_4(a, square(right_slice, 0, warp * 16 + odd, k + upper + eighth), ".trans");  \
        for (int j = 0; j < OWN; j += 2) {                                                      \
          const int m = 8 * j + (OWN > 1 ? upper : 0);                                          \
          if (OWN > 1 && along_left)                                                            \
            SQUARES_4(b, square(left_slice, 1, m + eighth, k + odd), "");                       \
          else if (OWN > 1)                                                                     \
            SQUARES_4(b, square(left_slice, 0, m, k + odd + eighth), ".trans");                 \
          else if (along_left)                                                                  \
            SQUARES_2(b, square(left_slice, 1, m + eighth, k + odd), "");                       \
          else                                                                                  \
            SQUARES_2(b, square(left_slice, 0, m, k + odd + eighth), ".trans");                 \
          multiply(own + 4 * j, a, b);                                                          \
          if (OWN > 1) multiply(own + 4 * j + 4, a, b + 2);                                     \
        }                                                                                       \
      }                                                                                         \
      if (lane < TILE) sums[0] += sum_column(right_slice, along_right, lane, depth);            \
    }                                                                                           \
  }

TILE_PRODUCT(tile_product_1, 1)
TILE_PRODUCT(tile_product_2, 2)
TILE_PRODUCT(tile_product_4, 4)
TILE_PRODUCT(tile_product_8, 8)
