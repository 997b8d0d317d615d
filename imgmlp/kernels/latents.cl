// Decodes or encodes the latents of a grid one after the other, in a single work-item, for CPUs.
// codec/latent/latents.py computes the same with NumPy. All arithmetic is on integers, of 32 bits in the
// network and of 64 bits in the range coder.
//
// Compile-time constants:
// WRITING     1 to encode, 0 to decode
// NEIGHBOURS  number of neighbours that the network sees of a latent
// MAPS        number of hyperlatent maps that it sees
// VECTORS     number of int8 vectors that hold a hidden layer; the last one may be padded

#define HIDDEN_WIDTH (8 * VECTORS)
#define VALUE_BITS 10  // fractional bits of the network's inputs and activations
#define MAX_VALUE ((1 << 18) - 1)
#define MARGIN 3              // zeros that pad the grid: columns on either side, and rows above
#define WAVES_BETWEEN_ROWS 4  // from a latent's wave to that of the latent below it
#define MIN_LATENT -64
#define MAX_LATENT 63
#define MEAN_BITS 6  // fractional bits of a mean
#define PHASES (1 << MEAN_BITS)
#define SCALE_BITS 5  // fractional bits of the logarithm of a scale
#define SCALES 256
#define UNIT_SCALE_INDEX 112  // index of the scale 1
#define LOG_SCALE_OFFSET 4    // subtracted from the network's output
#define MAX_DISTANCE 128      // distances from the rounded mean are -128 to 127
#define TOTAL_BITS 26         // frequencies add up to 2**26
#define MIN_FREQUENCY 16
#define LAPLACE_FREQUENCY ((1ul << TOTAL_BITS) - 2 * MAX_DISTANCE * MIN_FREQUENCY)
#define PROBABILITY_BITS 31  // fractional bits of tail probabilities
#define WORD_BITS 16         // of a word of the stream
#define MIN_INTERVAL_BITS 40
#define MIN_INTERVAL_WIDTH (1ul << MIN_INTERVAL_BITS)  // of the range coder between two latents

// x * smoothstep(x / 4 + 1/2): 0 up to x = -2, x from x = 2 on.
static int8 activation(int8 x) {
  x = x < MAX_VALUE ? x : MAX_VALUE;
  const int8 near = x < (2 << VALUE_BITS) ? x : (2 << VALUE_BITS);
  int8 u = near + (2 << VALUE_BITS);
  u = u > 0 ? u : 0;
  const int8 smoothstep_ = ((u * u) >> 12) * (3 * (4 << VALUE_BITS) - 2 * u) >> 12;
  return ((near * smoothstep_ + (2 << VALUE_BITS)) >> 12) + (x - near);
}

// Computes a hidden layer: values[k] = activation(sum of VALUE * weights, >> shift, rounded). VALUE is an
// expression for input n. A row of biases follows the INPUTS rows of weights. The loops over vectors are
// unrolled so that the sums stay in registers.
#define FOR_EACH_VECTOR _Pragma("unroll") for (int k = 0; k < VECTORS; ++k)
#define LAYER(INPUTS, VALUE, weights, shift, values)                                \
  {                                                                                 \
    int8 sums_[VECTORS];                                                            \
    FOR_EACH_VECTOR sums_[k] = (weights)[(INPUTS) * VECTORS + k];                   \
    for (int n = 0; n < (INPUTS); ++n) {                                            \
      const int value_ = VALUE;                                                     \
      FOR_EACH_VECTOR sums_[k] += value_ * (weights)[n * VECTORS + k];              \
    }                                                                               \
    FOR_EACH_VECTOR                                                                 \
      ((int8 *)(values))[k] = activation((sums_[k] + (1 << (shift) >> 1)) >> (shift)); \
  }

#if WRITING
#define WORD uint  // 16 bits and a carry
#else
#define WORD const ushort
#endif

#define INPUT (n < NEIGHBOURS ? here[offsets[n]] << VALUE_BITS : maps[n - NEIGHBOURS])

static int sum_elements(int8 x) { return x.s0 + x.s1 + x.s2 + x.s3 + x.s4 + x.s5 + x.s6 + x.s7; }

static int clamp_int(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

// The sum of the frequencies of all distances below d. `below` and `above` are the tail probabilities of
// the fractions that the phase leaves on either side of an integer; `whole` holds those of integers.
static long cumulative_frequency(int d, __global const uint *whole, ulong below, ulong above) {
  if (d <= -MAX_DISTANCE) return 0;
  if (d >= MAX_DISTANCE) return 1l << TOTAL_BITS;
  const ulong probability = d > 0 ? (2ul << PROBABILITY_BITS) - (whole[d - 1] * above >> PROBABILITY_BITS)
                                  : whole[-d] * below >> PROBABILITY_BITS;
  return (probability * LAPLACE_FREQUENCY >> (PROBABILITY_BITS + 1)) + MIN_FREQUENCY * (d + MAX_DISTANCE);
}

// Codes the waves `begin` to `end - 1` of a padded grid.
// state       of the range coder. Decoding: code, interval width, position in `words`, and 1 if the stream
//             is damaged. Encoding: low end of the interval, its width, number of words written.
// words       of the stream, `count` of them; in encoding, bit 16 is a carry into the word before
// offsets     [NEIGHBOURS] from a latent to its neighbours in the padded grid
// map_values  [MAPS] values of the hyperlatent maps for every index of the padded grid
// weights     two layers of [inputs][HIDDEN_WIDTH] and a row of biases each; then [2][HIDDEN_WIDTH] and 2
//             biases
// fine        [SCALES][PHASES + 1] and whole [SCALES][MAX_DISTANCE + 1]: tail probabilities, as in
//             codec/latent/probabilities.py
__kernel void imgmlp_latents(__global ulong *state, __global WORD *words, int count,
                             __global char *grid, int height, int width, int begin, int end,
                             __global const int *offsets, __global const int *map_values,
                             __global const int8 *weights, int shift0, int shift1, int shift2,
                             __global const uint *fine, __global const uint *whole) {
  __global const int8 *weights1 = weights + (NEIGHBOURS + MAPS + 1) * VECTORS;
  __global const int8 *weights2 = weights1 + (HIDDEN_WIDTH + 1) * VECTORS;
  __global const int *biases = (__global const int *)(weights2 + 2 * VECTORS);
  ulong code = state[0], interval_width = state[1];
  long position = state[2];
  // The network's outputs where all inputs are zero, computed once. Used only without hyperlatents.
  int zeros_mean = 0, zeros_scale = 0;
  bool has_zeros_output = false;
  for (int wave = begin; wave < end; ++wave) {
    const int top = wave < width ? 0 : (wave - width) / WAVES_BETWEEN_ROWS + 1;
    const int bottom = min(height, wave / WAVES_BETWEEN_ROWS + 1);
    for (int y = top; y < bottom; ++y) {
      const int x = wave - WAVES_BETWEEN_ROWS * y;
      const long index = (long)(y + MARGIN) * (width + 2 * MARGIN) + MARGIN + x;
      __global char *here = grid + index;
      __global const int *maps = map_values + index * MAPS;
      int any_input = MAPS, mean = zeros_mean, scale = zeros_scale;
      for (int n = 0; n < NEIGHBOURS; ++n) any_input |= here[offsets[n]];
      if (any_input || !has_zeros_output) {
        int hidden[HIDDEN_WIDTH] __attribute__((aligned(64)));
        int values[HIDDEN_WIDTH] __attribute__((aligned(64)));
        LAYER(NEIGHBOURS + MAPS, INPUT, weights, shift0, hidden)
        LAYER(HIDDEN_WIDTH, hidden[n], weights1, shift1, values)
        int8 means = 0, scales = 0;
        FOR_EACH_VECTOR {
          means += ((int8 *)values)[k] * weights2[k];
          scales += ((int8 *)values)[k] * weights2[VECTORS + k];
        }
        const int mean_shift = shift2 + VALUE_BITS - MEAN_BITS;
        const int scale_shift = shift2 + VALUE_BITS - SCALE_BITS;
        mean = (sum_elements(means) + biases[0] + (1 << mean_shift >> 1)) >> mean_shift;
        scale = (sum_elements(scales) + biases[1] + (1 << scale_shift >> 1)) >> scale_shift;
        mean = clamp_int(mean, MIN_LATENT * PHASES, MAX_LATENT * PHASES) + PHASES / 2;
        scale = clamp_int(scale + UNIT_SCALE_INDEX - (LOG_SCALE_OFFSET << SCALE_BITS), 0, SCALES - 1);
        if (!any_input) {
          zeros_mean = mean;
          zeros_scale = scale;
          has_zeros_output = true;
        }
      }

      const int phase = mean & (PHASES - 1);
      const ulong below = fine[scale * (PHASES + 1) + phase];
      const ulong above = fine[scale * (PHASES + 1) + PHASES - phase];
      __global const uint *tails = whole + scale * (MAX_DISTANCE + 1);
      const ulong unit = interval_width >> TOTAL_BITS;
#if WRITING
      const int d = *here - (mean >> MEAN_BITS);
      const long low = cumulative_frequency(d, tails, below, above);
      code += low * unit;
      interval_width = (cumulative_frequency(d + 1, tails, below, above) - low) * unit;
      while (interval_width < MIN_INTERVAL_WIDTH && position < count) {
        words[position++] = code >> MIN_INTERVAL_BITS;
        code = (code & (MIN_INTERVAL_WIDTH - 1)) << WORD_BITS;
        interval_width <<= WORD_BITS;
      }
#else
      const long target = code / unit;
      int d = 0;
      long low = cumulative_frequency(0, tails, below, above);
      long high = cumulative_frequency(1, tails, below, above);
      while (target < low) {
        high = low;
        low = cumulative_frequency(--d, tails, below, above);
      }
      while (target >= high && d < MAX_DISTANCE) {
        low = high;
        high = cumulative_frequency(++d + 1, tails, below, above);
      }
      code -= low * unit;
      interval_width = (high - low) * unit;
      while (interval_width < MIN_INTERVAL_WIDTH && position < count) {
        code = code << WORD_BITS | words[position++];
        interval_width <<= WORD_BITS;
      }
      const int latent = (mean >> MEAN_BITS) + d;
      const bool is_valid = MIN_LATENT <= latent && latent <= MAX_LATENT;
      if (d == MAX_DISTANCE || interval_width < MIN_INTERVAL_WIDTH || !is_valid) {
        state[3] = 1;
        return;
      }
      *here = latent;
#endif
    }
  }
  state[0] = code;
  state[1] = interval_width;
  state[2] = position;
}
