// Persistent work-groups, which run several training steps in one launch, for CPUs (PoCL).
//
// A step consists of phases, and a phase of units of work. A phase begins when all units of the phase
// before are finished. Any running work-group may take any unit, so that no group waits for another one
// that the driver may not have started yet. A group tries the same units first in every step, because
// its core's cache then holds their memory.
//
// The groups synchronise through three counters in global memory, `turns`, with atomic operations:
// TAKEN_UNITS is replaced by compare-and-exchange to take a unit, and the group that finishes the last
// unit of a phase resets FINISHED_UNITS and publishes the next phase in TAKEN_UNITS.

// Indices of the counters in `turns`. They are 64 bytes apart: each has a cache line of its own.
#define TAKEN_UNITS 0  // the low UNIT_BITS bits say which units are taken, the others hold the phase
#define FINISHED_UNITS 16  // units of the phase that are finished
#define EXITED_GROUPS 32  // work-groups that have left the launch
#define UNIT_BITS 24  // so a phase has at most 24 units
// How often a group checks for a free unit before it leaves the launch to the others. This takes
// 0.1 ms, ten times as long as a thread takes to wake.
#ifndef MAX_IDLE_CHECKS
#define MAX_IDLE_CHECKS 4000
#endif

// The unit of work that a group has taken.
typedef struct {
  int phase;  // numbered through all steps
  int unit;   // -1 before the first one
} Turn;

#ifdef POCL_DEVICE_ADDRESS_BITS
#define memory_barrier() __sync_synchronize()  // earlier stores are visible to later loads of others
#define atomic_read(place) (*(place))
#else
#define memory_barrier() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define atomic_read(place) atomic_or(place, 0u)
#endif
#if defined(POCL_DEVICE_ADDRESS_BITS) && defined(__x86_64__)
#define spin_wait_hint() __asm__ volatile("pause" ::: "memory")
#else
#define spin_wait_hint()
#endif

// Finishes the current unit, if there is one, and takes the next one, which may belong to a later
// phase. Returns 1 if a unit was taken. Returns 0 if nothing is left to do, or after
// MAX_IDLE_CHECKS checks without a free unit: other groups finish the rest then, and may need this
// core. A step has `phases` phases with units[phase] units each; all steps together have `end`
// phases. The last group that leaves resets `turns` to zeros for the next launch.
static int take_turn(volatile __global uint *turns, Turn *turn, const int *units, int phases,
                     int end) {
  if (turn->unit >= 0) {
    memory_barrier();
    if (atomic_inc(turns + FINISHED_UNITS) + 1 == (uint)units[turn->phase % phases]) {
      atomic_xchg(turns + FINISHED_UNITS, 0u);
      atomic_xchg(turns + TAKEN_UNITS, (uint)(turn->phase + 1) << UNIT_BITS);
    }
  }
  for (int idle_checks = 0; idle_checks < MAX_IDLE_CHECKS;) {
    const uint taken = atomic_read(turns + TAKEN_UNITS);
    const int phase = taken >> UNIT_BITS;
    if (phase == end) break;
    const int count = units[phase % phases], first = get_group_id(0) * count / get_num_groups(0);
    int unit = first;
    while (taken >> unit & 1) {
      unit = unit + 1 < count ? unit + 1 : 0;
      if (unit == first) break;
    }
    if (taken >> unit & 1) {
      spin_wait_hint();
      ++idle_checks;
    } else if (atomic_cmpxchg(turns + TAKEN_UNITS, taken, taken | 1u << unit) == taken) {
      memory_barrier();
      turn->phase = phase;
      turn->unit = unit;
      return 1;
    }
  }
  if (atomic_inc(turns + EXITED_GROUPS) + 1 == get_num_groups(0)) {
    atomic_xchg(turns + EXITED_GROUPS, 0u);
    atomic_xchg(turns + TAKEN_UNITS, 0u);
  }
  return 0;
}
