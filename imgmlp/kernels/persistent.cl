// Persistent work-groups, which stay for several steps. A step consists of phases, and a phase of
// units of work. A phase begins when all units of the one before are done. Running groups take the
// units that are left, so that no group depends on another one that the driver may not have started.
// A group tries the same units first in each step, whose memory its core's cache then holds.

// The counters in `turns`, each in a cache line of its own.
#define TAKEN 0  // the phase, and in the low bits one bit for each unit that is taken
#define DONE 16  // how many units of the phase are done
#define GONE 32  // how many groups have left
#define MOST_UNITS 24
#ifndef PATIENCE
#define PATIENCE 4000  // checks while others work: 0.1 ms, ten times as long as a thread takes to wake
#endif

typedef struct {
  int phase, unit;  // phases are numbered through all steps
} Turn;

#ifdef POCL_DEVICE_ADDRESS_BITS
#define in_order() __sync_synchronize()  // earlier stores are visible to later loads of others
#define look_at(place) (*(place))
#else
#define in_order() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define look_at(place) atomic_or(place, 0u)
#endif
#if defined(POCL_DEVICE_ADDRESS_BITS) && defined(__x86_64__)
#define relax() __asm__ volatile("pause" ::: "memory")
#else
#define relax()
#endif

// Ends the current unit, if there is one, and takes the next, which may belong to a later phase.
// Returns 0 if nothing is left to do, or if other groups do the rest; they may need the core. A step
// has `phases` phases, of units[phase] units each; `end` phases are to be done in all steps. The
// last group to leave resets `turns` to zeros.
static int take_turn(volatile __global uint *turns, Turn *turn, const int *units, int phases,
                     int end) {
  if (turn->unit >= 0) {
    in_order();
    if (atomic_inc(turns + DONE) + 1 == (uint)units[turn->phase % phases]) {
      atomic_xchg(turns + DONE, 0u);
      atomic_xchg(turns + TAKEN, (uint)(turn->phase + 1) << MOST_UNITS);
    }
  }
  for (int looks = 0; looks < PATIENCE;) {
    const uint taken = look_at(turns + TAKEN);
    const int phase = taken >> MOST_UNITS;
    if (phase == end) break;
    const int count = units[phase % phases], first = get_group_id(0) * count / get_num_groups(0);
    int unit = first;
    while (taken >> unit & 1) {
      unit = unit + 1 < count ? unit + 1 : 0;
      if (unit == first) break;
    }
    if (taken >> unit & 1) {
      relax();
      ++looks;
    } else if (atomic_cmpxchg(turns + TAKEN, taken, taken | 1u << unit) == taken) {
      in_order();
      turn->phase = phase;
      turn->unit = unit;
      return 1;
    }
  }
  if (atomic_inc(turns + GONE) + 1 == get_num_groups(0)) {
    atomic_xchg(turns + GONE, 0u);
    atomic_xchg(turns + TAKEN, 0u);
  }
  return 0;
}
