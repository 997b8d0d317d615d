// A kernel whose work-groups stay for several steps. A step is some phases, a phase some units,
// and a phase begins when all units of the one before are done. Whoever is there takes the next
// unit, so that nobody depends on one that the driver has not started yet, or not at all.

// What `turns` counts, in lines of a cache of their own.
#define NEXT 0  // the phase and, in its low bits, the unit that is taken next
#define DONE 16  // units of the phase that are done
#define GONE 32  // groups that have left
#define UNIT_BITS 16
#ifndef PATIENCE
#define PATIENCE 20000  // looks at a phase that others are still busy with, some 0.3 ms
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
// phase. False: nothing is left to do, or others do the rest. A step has `phases` of them, the
// first one units[0] units; `end` of them are to be done. The last group leaves zeros in `turns`.
static int take_turn(volatile __global uint *turns, Turn *turn, const int *units, int phases,
                     int end) {
  if (turn->unit >= 0) {
    in_order();
    if (atomic_inc(turns + DONE) + 1 == (uint)units[turn->phase % phases]) {
      atomic_xchg(turns + DONE, 0u);
      atomic_xchg(turns + NEXT, (uint)(turn->phase + 1) << UNIT_BITS);
    }
  }
  for (int looks = 0; looks < PATIENCE;) {
    const uint next = look_at(turns + NEXT);
    const int phase = next >> UNIT_BITS, unit = next & ((1u << UNIT_BITS) - 1);
    if (phase == end) break;
    if (unit == units[phase % phases]) {
      relax();
      ++looks;
    } else if (atomic_cmpxchg(turns + NEXT, next, next + 1) == next) {
      in_order();
      turn->phase = phase;
      turn->unit = unit;
      return 1;
    }
  }
  if (atomic_inc(turns + GONE) + 1 == get_num_groups(0)) {
    atomic_xchg(turns + GONE, 0u);
    atomic_xchg(turns + NEXT, 0u);
  }
  return 0;
}
