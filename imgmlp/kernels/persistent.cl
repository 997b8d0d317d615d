// A kernel whose work-groups stay for several steps. A step is some phases, a phase some units,
// and a phase begins when all units of the one before are done. Whoever is there takes what is
// left, so that nobody depends on one that the driver has not started yet, or not at all; but a
// group begins with the same units in each step, whose memory its core's cache then holds.

// What `turns` holds, in lines of a cache of their own.
#define TAKEN 0  // the phase and, in its low bits, one for each unit that is taken
#define DONE 16  // units of the phase that are done
#define GONE 32  // groups that have left
#define MOST_UNITS 24
#ifndef PATIENCE
#define PATIENCE 4000  // looks at a phase that others are busy with: 0.1 ms, ten times of waking up
#endif

typedef struct {
  int phase, unit;  // phases are counted through all steps
} Turn;

#ifdef POCL_DEVICE_ADDRESS_BITS
#define in_order() __sync_synchronize()  // what is stored before is seen by who looks after
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

// Ends the unit that the turn is at, if it is at one, and takes the next, which may be of a later
// phase. False: nothing is left to do, or others do the rest, who get the core if they need it. A
// step has `phases` of them, the first one units[0] units; `end` of them are to be done. The last
// group leaves zeros in `turns`.
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
