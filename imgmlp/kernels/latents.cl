// The latents of a grid out of their stream or into it, one after the other, by one work-item, for
// CPUs: the NumPy twin is codec/latent/latents.py. Whole numbers only, 32 bits wide but for the range
// coder.
//
// Constants: WRITING, whether latents go into the stream; NEIGHBOURS; ABOVE, the maps of hyperlatents;
// VECTORS, the int8 that hold a hidden layer (the last one padded).

#define WIDTH (8 * VECTORS)  // of a hidden layer
#define ONE_BITS 10          // of the fraction of values in the network
#define LIMIT ((1 << 18) - 1)
#define LAG 4         // a row's latents come that many waves after those above them
#define LEAST -64     // latent
#define LARGEST 63
#define PHASE_BITS 6  // of the fraction of a mean
#define PHASES (1 << PHASE_BITS)
#define SCALE_BITS 5
#define SCALES 256
#define MIDDLE 112  // number of the scale 1
#define MOST_AWAY 128   // how far a latent may lie from its mean
#define TOTAL_BITS 26
#define FLOOR 16
#define NARROWEST (1ul << 40)  // width of the interval between two latents
#define SHARED ((1ul << TOTAL_BITS) - 2 * MOST_AWAY * FLOOR)

// x times a share that grows from 0 at x = -2 to 1 at x = 2.
static int8 activation(int8 x) {
  x = x < LIMIT ? x : LIMIT;
  const int8 near = x < (2 << ONE_BITS) ? x : (2 << ONE_BITS);
  int8 u = near + (2 << ONE_BITS);
  u = u > 0 ? u : 0;
  const int8 share = ((u * u) >> 12) * (3 * (4 << ONE_BITS) - 2 * u) >> 12;
  return ((near * share + (2 << ONE_BITS)) >> 12) + (x - near);
}

// What a layer makes of values: rounded to 2**-shift of its sums.
#define LAYER(INPUTS, VALUE, weights, shift, values)                              \
  {                                                                               \
    int8 sums_[VECTORS];                                                          \
    for (int k = 0; k < VECTORS; ++k) sums_[k] = (weights)[(INPUTS) * VECTORS + k]; \
    for (int n = 0; n < (INPUTS); ++n) {                                          \
      const int value_ = VALUE;                                                   \
      for (int k = 0; k < VECTORS; ++k) sums_[k] += value_ * (weights)[n * VECTORS + k]; \
    }                                                                             \
    for (int k = 0; k < VECTORS; ++k)                                             \
      ((int8 *)(values))[k] = activation((sums_[k] + (1 << (shift) >> 1)) >> (shift)); \
  }

#if WRITING
#define WORDS uint
#else
#define WORDS const ushort
#endif

#define INPUT (n < NEIGHBOURS ? here[offsets[n]] << ONE_BITS : maps[n - NEIGHBOURS])

static int total(int8 x) { return x.s0 + x.s1 + x.s2 + x.s3 + x.s4 + x.s5 + x.s6 + x.s7; }

static int within(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

// The sum of the frequencies before the place that lies d from the mean's, of 2**26.
static long edge(int d, __global const uint *whole, ulong below, ulong above) {
  if (d <= -MOST_AWAY) return 0;
  if (d >= MOST_AWAY) return 1l << TOTAL_BITS;
  const ulong tail = d > 0 ? (2ul << 31) - (whole[d - 1] * above >> 31) : whole[-d] * below >> 31;
  return (tail * SHARED >> 32) + FLOOR * (d + MOST_AWAY);
}

// Waves begin to end - 1 of a grid, which has 3 columns of zeros on either side and 3 rows above.
// state: code, width, words taken, and then 1 if the stream is damaged; in writing the interval's low
// end, width, words made. Those have a carry into the word before, as bit 16.
// offsets: of neighbours; over: of every place of the grid's the ABOVE values of its maps.
// weights: two layers of [inputs][WIDTH] and a row of biases, then 2 rows of WIDTH, 2 biases.
// fine [SCALES][PHASES + 1], whole [SCALES][MOST_AWAY + 1]: tails (codec/latent/probabilities.py).
__kernel void imgmlp_latents(__global ulong *state, __global WORDS *words, int count,
                             __global char *grid, int height, int width, int begin, int end,
                             __global const int *offsets, __global const int *over,
                             __global const int8 *weights, int shift0, int shift1, int shift2,
                             __global const uint *fine, __global const uint *whole) {
  __global const int8 *second = weights + (NEIGHBOURS + ABOVE + 1) * VECTORS;
  __global const int8 *last = second + (WIDTH + 1) * VECTORS;
  __global const int *biases = (__global const int *)(last + 2 * VECTORS);
  ulong code = state[0], share = state[1];
  long taken = state[2];
  // What the network says among zeros, if there are no hyperlatents.
  int calm_mean = 0, calm_scale = 0;
  bool calm_known = false;
  for (int wave = begin; wave < end; ++wave) {
    const int top = wave < width ? 0 : (wave - width) / LAG + 1;
    const int bottom = min(height, wave / LAG + 1);
    for (int y = top; y < bottom; ++y) {
      const long place = (long)(y + 3) * (width + 6) + 3 + wave - LAG * y;
      __global char *here = grid + place;
      __global const int *maps = over + place * ABOVE;
      int around = ABOVE, mean = calm_mean, scale = calm_scale;
      for (int n = 0; n < NEIGHBOURS; ++n) around |= here[offsets[n]];
      if (around || !calm_known) {
        int hidden[WIDTH] __attribute__((aligned(64))), values[WIDTH] __attribute__((aligned(64)));
        LAYER(NEIGHBOURS + ABOVE, INPUT, weights, shift0, hidden)
        LAYER(WIDTH, hidden[n], second, shift1, values)
        int8 means = 0, scales = 0;
        for (int k = 0; k < VECTORS; ++k) {
          means += ((int8 *)values)[k] * last[k];
          scales += ((int8 *)values)[k] * last[VECTORS + k];
        }
        const int to_mean = shift2 + ONE_BITS - PHASE_BITS;
        const int to_scale = shift2 + ONE_BITS - SCALE_BITS;
        mean = (total(means) + biases[0] + (1 << to_mean >> 1)) >> to_mean;
        scale = (total(scales) + biases[1] + (1 << to_scale >> 1)) >> to_scale;
        mean = within(mean, LEAST * PHASES, LARGEST * PHASES) + PHASES / 2;
        scale = within(scale + MIDDLE - (4 << SCALE_BITS), 0, SCALES - 1);
        if (!around) {
          calm_mean = mean;
          calm_scale = scale;
          calm_known = true;
        }
      }

      const int phase = mean & (PHASES - 1);
      const ulong below = fine[scale * (PHASES + 1) + phase];
      const ulong above = fine[scale * (PHASES + 1) + PHASES - phase];
      __global const uint *tails = whole + scale * (MOST_AWAY + 1);
      const ulong unit = share >> TOTAL_BITS;
#if WRITING
      const int d = *here - (mean >> PHASE_BITS);
      const long low = edge(d, tails, below, above);
      code += low * unit;
      share = (edge(d + 1, tails, below, above) - low) * unit;
      while (share < NARROWEST && taken < count) {
        words[taken++] = code >> 40;
        code = (code & (NARROWEST - 1)) << 16;
        share <<= 16;
      }
#else
      const long wanted = code / unit;
      int d = 0;
      long low = edge(0, tails, below, above), high = edge(1, tails, below, above);
      while (wanted < low) {
        high = low;
        low = edge(--d, tails, below, above);
      }
      while (wanted >= high && d < MOST_AWAY) {
        low = high;
        high = edge(++d + 1, tails, below, above);
      }
      code -= low * unit;
      share = (high - low) * unit;
      while (share < NARROWEST && taken < count) {
        code = code << 16 | words[taken++];
        share <<= 16;
      }
      const int latent = (mean >> PHASE_BITS) + d;
      if (d == MOST_AWAY || share < NARROWEST || latent < LEAST || latent > LARGEST) {
        state[3] = 1;
        return;
      }
      *here = latent;
#endif
    }
  }
  state[0] = code;
  state[1] = share;
  state[2] = taken;
}
