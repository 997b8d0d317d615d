// Loads four neighbouring elements of a factor of a matrix product from global memory, for GPUs.
//
// A factor has `count` rows (for the left factor) or columns (for the right one), numbered m, of
// `inner` elements each, numbered k. Strides are in elements. If inner elements are contiguous
// (inner_stride is 1), the four elements are (m, k) to (m, k + 3); else they are (m, k) to (m + 3,
// k). Elements beyond the matrix are 0. `aligned` says that lines of memory begin at multiples of
// 16 bytes; then one load suffices.
static float4 load_four(__global const float *from, int stride, int inner_stride, int aligned,
                        int m, int k, int count, int inner) {
  const int is_inner_contiguous = inner_stride == 1, step = is_inner_contiguous ? 1 : stride;
  const int remaining = is_inner_contiguous ? inner - k : count - m;
  const int line_length = is_inner_contiguous ? inner : count;
  __global const float *address = from + m * stride + k * inner_stride;
  float4 x = 0.f;
  if (is_inner_contiguous ? m >= count : k >= inner) return x;
  if (aligned && step == 1 && line_length % 4 == 0)
    return remaining > 0 ? *(__global const float4 *)address : x;
  if (remaining > 0) x.x = address[0];
  if (remaining > 1) x.y = address[step];
  if (remaining > 2) x.z = address[2 * step];
  if (remaining > 3) x.w = address[3 * step];
  return x;
}
