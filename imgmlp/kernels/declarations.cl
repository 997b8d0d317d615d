// What generated kernels use of OpenCL C's own functions: a driver's header with all of them takes
// longer to read than most kernels to compile. Of a function all forms for numbers are here, or C
// would convert an argument to what there is; of vectors there are no others. Types and constants
// are in a small header of clang's, which it reads nevertheless.

#define OVERLOADED __attribute__((overloadable))
#define CONST __attribute__((overloadable, const))

size_t CONST get_global_id(uint axis);
size_t CONST get_group_id(uint axis);
size_t CONST get_local_id(uint axis);
size_t CONST get_num_groups(uint axis);

void __attribute__((overloadable, convergent)) barrier(cl_mem_fence_flags);

#define ATOMICS(SPACE, KIND)                                                                  \
  KIND OVERLOADED atomic_inc(volatile SPACE KIND *);                                          \
  KIND OVERLOADED atomic_xchg(volatile SPACE KIND *, KIND);                                   \
  KIND OVERLOADED atomic_cmpxchg(volatile SPACE KIND *, KIND, KIND);
ATOMICS(__global, int)
ATOMICS(__global, uint)
ATOMICS(__local, int)
ATOMICS(__local, uint)
float OVERLOADED atomic_xchg(volatile __global float *, float);
float OVERLOADED atomic_xchg(volatile __local float *, float);

#define OF_TWO(NAME, KIND) KIND CONST NAME(KIND, KIND);
#define OF_INTEGERS(NAME)                                                                     \
  OF_TWO(NAME, char) OF_TWO(NAME, uchar) OF_TWO(NAME, short) OF_TWO(NAME, ushort)             \
  OF_TWO(NAME, int) OF_TWO(NAME, uint) OF_TWO(NAME, long) OF_TWO(NAME, ulong)
#define OF_FLOATS(NAME) float CONST NAME(float); double CONST NAME(double);
OF_INTEGERS(min)
OF_INTEGERS(max)
OF_TWO(min, float)
OF_TWO(min, double)
OF_TWO(max, float)
OF_TWO(max, double)
OF_TWO(fmod, float)
OF_TWO(fmod, double)
OF_FLOATS(sin)
OF_FLOATS(cos)

#define OF_HALVES(SPACE)                                                                        \
  float __attribute__((overloadable, pure)) vload_half(size_t, const SPACE half *);             \
  void OVERLOADED vstore_half_rte(float, size_t, SPACE half *);                                 \
  void OVERLOADED vstore_half_rte(double, size_t, SPACE half *);
OF_HALVES(__global)
OF_HALVES(__local)
OF_HALVES(__private)

#undef OVERLOADED
#undef CONST
#undef ATOMICS
#undef OF_TWO
#undef OF_INTEGERS
#undef OF_FLOATS
#undef OF_HALVES
