// Scalar functions that every generated kernel may call.

// The share of `count` things that this work-group takes: [share_begin, share_end).
static int share_begin(int count) {
  const int groups = get_num_groups(0), group = get_group_id(0);
  return group * (count / groups) + min(group, count % groups);
}

static int share_end(int count) {
  const int groups = get_num_groups(0), group = get_group_id(0) + 1;
  return group * (count / groups) + min(group, count % groups);
}

// A bijection on 32-bit integers of low bias; constants by C. Wellons' hash-prospector.
static uint lowbias32(uint x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Division and remainder that round towards minus infinity, as Python's.
static int floor_div(int a, int b) {
  const int q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

static int floor_mod(int a, int b) {
  const int r = a % b;
  return r + (r != 0 && (r < 0) != (b < 0)) * b;
}

// PoCL calls its sqrt, which keeps a loop from being vectorised; the compiler's own does not.
#ifdef POCL_DEVICE_ADDRESS_BITS
#define square_root(x) __builtin_sqrtf(x)
#else
#define square_root(x) sqrt(x)
#endif
