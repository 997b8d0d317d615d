// Declarations of the functions of OpenCL C that generated kernels call. They replace the driver's
// header with all functions, which takes longer to read than most kernels take to compile.
//
// A function is declared in all its scalar forms; otherwise C would convert an argument to a type that
// is declared. Vector forms are not declared, since kernels do not call them.
// The types and constants come from a small header of clang's, which is read in any case.

#define OVERLOADED __attribute__((overloadable))
#define CONST __attribute__((overloadable, const))

size_t CONST get_global_id(uint axis);
size_t CONST get_group_id(uint axis);
size_t CONST get_local_id(uint axis);
size_t CONST get_num_groups(uint axis);

void __attribute__((overloadable, convergent)) barrier(cl_mem_fence_flags);

#define ATOMICS(SPACE, TYPE)                                \
  TYPE OVERLOADED atomic_inc(volatile SPACE TYPE *);        \
  TYPE OVERLOADED atomic_xchg(volatile SPACE TYPE *, TYPE); \
  TYPE OVERLOADED atomic_cmpxchg(volatile SPACE TYPE *, TYPE, TYPE);
ATOMICS(__global, int)
ATOMICS(__global, uint)
ATOMICS(__local, int)
ATOMICS(__local, uint)
float OVERLOADED atomic_xchg(volatile __global float *, float);
float OVERLOADED atomic_xchg(volatile __local float *, float);

#define BINARY(NAME, TYPE) TYPE CONST NAME(TYPE, TYPE);
#define BINARY_OF_INTEGERS(NAME)                                                  \
  BINARY(NAME, char) BINARY(NAME, uchar) BINARY(NAME, short) BINARY(NAME, ushort) \
  BINARY(NAME, int) BINARY(NAME, uint) BINARY(NAME, long) BINARY(NAME, ulong)
#define UNARY_OF_FLOATS(NAME) float CONST NAME(float); double CONST NAME(double);
BINARY_OF_INTEGERS(min)
BINARY_OF_INTEGERS(max)
BINARY(min, float)
BINARY(min, double)
BINARY(max, float)
BINARY(max, double)
BINARY(fmod, float)
BINARY(fmod, double)
UNARY_OF_FLOATS(sin)
UNARY_OF_FLOATS(cos)

#define HALF_ACCESS(SPACE)                                                          \
  float __attribute__((overloadable, pure)) vload_half(size_t, const SPACE half *); \
  void OVERLOADED vstore_half_rte(float, size_t, SPACE half *);                     \
  void OVERLOADED vstore_half_rte(double, size_t, SPACE half *);
HALF_ACCESS(__global)
HALF_ACCESS(__local)
HALF_ACCESS(__private)

#undef OVERLOADED
#undef CONST
#undef ATOMICS
#undef BINARY
#undef BINARY_OF_INTEGERS
#undef UNARY_OF_FLOATS
#undef HALF_ACCESS
