// Scalar functions that every generated kernel may call.

// `count` items are divided evenly among `groups` work-groups: group number `group` takes the range
// [group_begin, group_end). The first groups take one item more if the division leaves a remainder.
static int group_begin(int count, int group, int groups) {
  return group * (count / groups) + min(group, count % groups);
}

static int group_end(int count, int group, int groups) { return group_begin(count, group + 1, groups); }

// The range of this work-group among all work-groups of the launch.
static int share_begin(int count) { return group_begin(count, get_group_id(0), get_num_groups(0)); }

static int share_end(int count) { return group_end(count, get_group_id(0), get_num_groups(0)); }

// A hash of 32 bits, which is a bijection of low bias; the constants are from C. Wellons'
// hash-prospector.
static uint lowbias32(uint x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Sums and products of ints that wrap around. In C signed arithmetic must not overflow, and compilers
// draw conclusions from that, such as x + 1 > x. Arithmetic on vectors wraps by itself.
static int wrap_add(int a, int b) { return (int)((uint)a + (uint)b); }

static int wrap_subtract(int a, int b) { return (int)((uint)a - (uint)b); }

static int wrap_multiply(int a, int b) { return (int)((uint)a * (uint)b); }

// Division and remainder that round towards minus infinity, like Python's. In C the smallest int by
// -1, and any int by 0, are undefined; here the first wraps around, and the second is 0.
static int floor_div(int a, int b) {
  const int d = b == -1 || b == 0 ? 1 : b, q = a / d;
  return b == 0 ? 0 : b == -1 ? (int)(0u - (uint)a) : q - (a % d != 0 && (a < 0) != (d < 0));
}

static int floor_mod(int a, int b) {
  const int d = b == -1 || b == 0 ? 1 : b, r = a % d;
  return r + (r != 0 && (r < 0) != (d < 0)) * d;
}

// PoCL's sqrt is a function call, which keeps a loop from being vectorised. The compiler's builtin
// is an instruction.
#ifdef POCL_DEVICE_ADDRESS_BITS
#define square_root(x) __builtin_sqrtf(x)
#else
#define square_root(x) sqrt(x)
#endif

// The difference of two products, both of which are rounded. NVIDIA's compiler would fuse it with
// one of the products, which is not rounded then: a * b - c * d would not be 0 for equal products.
// PoCL's compiler fuses within an expression only.
static float difference_of_products(float a, float b) {
#ifdef __NV_CL_C_VERSION
  float result;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));  // .rn is never fused
  return result;
#else
  return a - b;
#endif
}

// 2^x, within the 3 units in the last place that OpenCL allows. PoCL's exp2 is a function call,
// which keeps a loop from being vectorised. There 2^x is computed as 2^n * 2^(x - n), where n is
// the integer nearest to x. 2^(x - n) is a polynomial. 2^n is built from its exponent bits, in two
// factors because n may be below -126. The result is within 1.5 units, and exact for integral x.
#ifdef POCL_DEVICE_ADDRESS_BITS
#define POWER_OF_TWO(FLOAT, INT, UINT)                                               \
  static FLOAT __attribute__((overloadable)) power_of_two(FLOAT x) {                 \
    /* Comparisons with NaN are false, so NaN stays. */                              \
    const FLOAT clamped = x < -151.f ? (FLOAT)-151.f : x > 129.f ? (FLOAT)129.f : x; \
    const FLOAT rounded = clamped + 0x1.8p23f;           /* n is in the low bits */  \
    const FLOAT fraction = clamped - (rounded - 0x1.8p23f);  /* from -1/2 to 1/2 */  \
    const INT n = as_##INT(rounded) - as_int(0x1.8p23f), low_exponent = n >> 1;      \
    FLOAT p = 0.00015353362f;                                                        \
    p = p * fraction + 0.0013398875f;                                                \
    p = p * fraction + 0.009618437f;                                                 \
    p = p * fraction + 0.055503324f;                                                 \
    p = p * fraction + 0.24022648f;                                                  \
    p = p * fraction + 0.6931472f;                                                   \
    p = p * fraction + 1.f;                                                          \
    const UINT low_factor = as_##UINT(low_exponent + 127);                           \
    const UINT high_factor = as_##UINT(n - low_exponent + 127);                      \
    return p * as_##FLOAT(low_factor << 23) * as_##FLOAT(high_factor << 23);         \
  }
POWER_OF_TWO(float, int, uint)
POWER_OF_TWO(float8, int8, uint8)
#if NARROW == 16
POWER_OF_TWO(float16, int16, uint16)
#endif
#else
#define power_of_two(x) exp2(x)
#endif

// Prefetches the cache line of an address that will soon be read or written. The address may lie
// beyond its buffer.
#ifdef POCL_DEVICE_ADDRESS_BITS
#define prefetch_line(address, is_written) __builtin_prefetch(address, is_written, 2)
#else
#define prefetch_line(address, is_written)
#endif

// Element n of a vector that was loaded at once. n is a constant after loops are unrolled.
#define FLOAT_OF_2(all, n) ((n) ? (all).y : (all).x)
#define FLOAT_OF_4(all, n) ((n) < 2 ? FLOAT_OF_2((all).lo, n) : FLOAT_OF_2((all).hi, (n) - 2))

// log2(x), within 2 units in the last place, or within 1e-7 where the result is near 0. PoCL's log2
// is a function call as well. x is m * 2^n with m from 1/sqrt(2) to sqrt(2), and log2(m) is a
// series in s = (m - 1) / (m + 1).
#ifdef POCL_DEVICE_ADDRESS_BITS
static float logarithm(float x) {
  const int is_subnormal = x < 0x1p-126f;
  const int bits = as_int(is_subnormal ? x * 0x1p24f : x);
  const int n = (bits - 0x3f3504f3) >> 23;
  const float m = as_float(bits - (n << 23)), s = (m - 1.f) / (m + 1.f), t = s * s;
  float p = 0.32059889f;
  p = p * t + 0.41219858f;
  p = p * t + 0.57707802f;
  p = p * t + 0.96179669f;
  p = p * t + 2.8853901f;
  const float result = p * s + (float)(is_subnormal ? n - 24 : n);
  return x > 0.f ? (x < INFINITY ? result : x) : x == 0.f ? -INFINITY : NAN;
}
#else
#define logarithm(x) log2(x)
#endif
