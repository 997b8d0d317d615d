// Rounds to the nearest half, ties to even, as a float; from 65520 on the result is infinite. It
// uses integer arithmetic, because PoCL's conversion is a call that keeps a loop from being
// vectorised. Below 2^-14 halves are multiples of 2^-24, the last place of floats in [1/2, 1).
static float round_half(float x) {
  const uint bits = as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const float size = as_float(magnitude);
  const float near = as_float((magnitude + 0xfffu + (magnitude >> 13 & 1u)) & ~0x1fffu);
  const float found = size < 0x1p-14f ? (size + 0.5f) - 0.5f : near;
  return size < 65520.f ? as_float(as_uint(found) | sign) : size == size ? as_float(0x7f800000u | sign) : x;
}
