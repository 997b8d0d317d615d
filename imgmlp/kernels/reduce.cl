// Reduction of the values of all lanes of a work-group to `results` values, by a tree in local memory.
//
// Lane i passes `value` and receives result i % results, which joins the values of all lanes whose
// number is i modulo `results`. `scratch` has an element for each lane; `lanes` and `results` are
// powers of two. All lanes of the work-group must call it, as it contains barriers.

#define GROUP_REDUCTION(NAME, TYPE, JOIN)                                       \
  static TYPE NAME(__local TYPE *scratch, TYPE value, int lanes, int results) { \
    const int lane = get_local_id(0);                                           \
    scratch[lane] = value;                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                               \
    for (int half_ = lanes / 2; half_ >= results; half_ /= 2) {                 \
      if (lane < half_) {                                                       \
        const TYPE a = scratch[lane], b = scratch[lane + half_];                \
        scratch[lane] = JOIN;                                                   \
      }                                                                         \
      barrier(CLK_LOCAL_MEM_FENCE);                                             \
    }                                                                           \
    return scratch[lane % results];                                             \
  }

GROUP_REDUCTION(group_sum_float, float, a + b)
GROUP_REDUCTION(group_sum_int, int, wrap_add(a, b))
GROUP_REDUCTION(group_sum_uint, uint, a + b)
GROUP_REDUCTION(group_sum_char, char, a + b)
GROUP_REDUCTION(group_sum_uchar, uchar, a + b)
GROUP_REDUCTION(group_max_float, float, (a >= b || a != a) ? a : b)
GROUP_REDUCTION(group_max_int, int, a >= b ? a : b)
GROUP_REDUCTION(group_max_uint, uint, a >= b ? a : b)
GROUP_REDUCTION(group_max_char, char, a >= b ? a : b)
GROUP_REDUCTION(group_max_uchar, uchar, a >= b ? a : b)
