// Vectors of 8 or of NARROW elements, for CPUs.

// Vectors in memory that need not be aligned. Types of 16 are declared only if the device has them.
typedef float8 unaligned_float8 __attribute__((aligned(4)));
typedef int8 unaligned_int8 __attribute__((aligned(4)));
#if NARROW == 16
typedef float16 unaligned_float16 __attribute__((aligned(4)));
typedef int16 unaligned_int16 __attribute__((aligned(4)));
#endif

// PoCL's conversions of vectors are calls, before which all registers are spilled.
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

// Every other element from a place on, N of them. PoCL has clang's shuffles, and takes two loads. The
// second one ends with the last element, so that nothing behind it is read.
#define EVERY_OTHER(KIND, N, place) EVERY_OTHER_##N(KIND, place)
#ifdef POCL_DEVICE_ADDRESS_BITS
#define EVERY_OTHER_8(KIND, place)                                                             \
  __builtin_shufflevector(*(__global const unaligned_##KIND##8 *)(place),                      \
                          *(__global const unaligned_##KIND##8 *)((place) + 7), 0, 2, 4, 6, 9, \
                          11, 13, 15)
#define EVERY_OTHER_16(KIND, place)                                                              \
  __builtin_shufflevector(*(__global const unaligned_##KIND##16 *)(place),                       \
                          *(__global const unaligned_##KIND##16 *)((place) + 15), 0, 2, 4, 6, 8, \
                          10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)
#else
#define EVERY_OTHER_8(KIND, place) ((KIND##8)(BY_TWO(place), BY_TWO((place) + 8)))
#define EVERY_OTHER_16(KIND, place) \
  ((KIND##16)(BY_TWO(place), BY_TWO((place) + 8), BY_TWO((place) + 16), BY_TWO((place) + 24)))
#define BY_TWO(place) (place)[0], (place)[2], (place)[4], (place)[6]
#endif
