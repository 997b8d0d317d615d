// Rounds to the nearest number of half precision, ties to even, and returns it as a float.
// Magnitudes from 65520 on become infinite. Integer arithmetic is used because PoCL's conversion is
// a function call, which keeps a loop from being vectorised. Below 2^-14 halves are multiples of
// 2^-24, which is the last place of floats in [1/2, 1): adding and subtracting 1/2 rounds to it.
static float round_half(float x) {
  const uint bits = as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const float absolute = as_float(magnitude);
  const float normal = as_float((magnitude + 0xfffu + (magnitude >> 13 & 1u)) & ~0x1fffu);
  const float rounded = absolute < 0x1p-14f ? (absolute + 0.5f) - 0.5f : normal;
  return absolute < 65520.f     ? as_float(as_uint(rounded) | sign)
         : absolute == absolute ? as_float(0x7f800000u | sign)
                                : x;  // NaN
}
