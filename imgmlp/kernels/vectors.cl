// Vectors of 8 or of NARROW (8 or 16) elements, for CPUs.

// Vectors in memory that need only the alignment of their elements. Types of 16 elements are declared
// only if the device has them, since PoCL 3.0 aborts on a float16 otherwise.
typedef float8 unaligned_float8 __attribute__((aligned(4)));
typedef int8 unaligned_int8 __attribute__((aligned(4)));
#if NARROW == 16
typedef float16 unaligned_float16 __attribute__((aligned(4)));
typedef int16 unaligned_int16 __attribute__((aligned(4)));
#endif

// Conversions of vectors. PoCL's own are function calls, before which all registers are spilled.
#ifdef POCL_DEVICE_ADDRESS_BITS
#define to_float8(x) __builtin_convertvector(x, float8)
#define to_int8(x) __builtin_convertvector(x, int8)
#define to_float16(x) __builtin_convertvector(x, float16)
#define to_int16(x) __builtin_convertvector(x, int16)
#else
#define to_float8(x) convert_float8(x)
#define to_int8(x) convert_int8(x)
#define to_float16(x) convert_float16(x)
#define to_int16(x) convert_int16(x)
#endif

// A vector of N elements: every other element from `address` on. With clang's shuffles, which PoCL
// has, it takes two loads. The second one ends with the last element, so that nothing behind it is
// read.
#define EVERY_OTHER(TYPE, N, address) EVERY_OTHER_##N(TYPE, address)
#ifdef POCL_DEVICE_ADDRESS_BITS
#define EVERY_OTHER_8(TYPE, address)                                                             \
  __builtin_shufflevector(*(__global const unaligned_##TYPE##8 *)(address),                      \
                          *(__global const unaligned_##TYPE##8 *)((address) + 7), 0, 2, 4, 6, 9, \
                          11, 13, 15)
#define EVERY_OTHER_16(TYPE, address)                                                              \
  __builtin_shufflevector(*(__global const unaligned_##TYPE##16 *)(address),                       \
                          *(__global const unaligned_##TYPE##16 *)((address) + 15), 0, 2, 4, 6, 8, \
                          10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)
#else
#define EVERY_OTHER_8(TYPE, address) ((TYPE##8)(FOUR_ALTERNATE(address), FOUR_ALTERNATE((address) + 8)))
#define EVERY_OTHER_16(TYPE, address)                                 \
  ((TYPE##16)(FOUR_ALTERNATE(address), FOUR_ALTERNATE((address) + 8), \
              FOUR_ALTERNATE((address) + 16), FOUR_ALTERNATE((address) + 24)))
#define FOUR_ALTERNATE(address) (address)[0], (address)[2], (address)[4], (address)[6]
#endif
