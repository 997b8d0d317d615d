// Four elements of a factor of a matrix product that are neighbours in memory, for GPUs. They are of
// row (or column) m from inner element k on or, if rows (or columns) are contiguous, of inner element
// k from row m on. Elements that do not exist are 0. It takes one load if `aligned` says that lines
// begin on 16 bytes. Strides are in elements.
static float4 four_of(__global const float *from, int stride, int inner_stride, int aligned, int m,
                      int k, int count, int inner) {
  const int along = inner_stride == 1, next = along ? 1 : stride;
  const int left = along ? inner - k : count - m, all = along ? inner : count;
  __global const float *at = from + m * stride + k * inner_stride;
  float4 x = 0.f;
  if (along ? m >= count : k >= inner) return x;
  if (aligned && next == 1 && all % 4 == 0) return left > 0 ? *(__global const float4 *)at : x;
  if (left > 0) x.x = at[0];
  if (left > 1) x.y = at[next];
  if (left > 2) x.z = at[2 * next];
  if (left > 3) x.w = at[3 * next];
  return x;
}
