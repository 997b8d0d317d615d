// A work-group with matrix units on a processor: lanes are fibers that switch at barriers and
// inside of warps' instructions. What tests/warps.py makes of OpenCL C is compiled behind this.
//
// mma and ldmatrix are those of PTX ISA 8.0, sections 9.7.13.4.7, 9.7.13.4.8 and 9.7.13.4.15.

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define MOST 128  // lanes of a group

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
struct half { ushort bits; };
struct float2 { float x, y; float2(float a = 0, float b = 0) : x(a), y(b) {} };
struct float4 {
  float x, y, z, w;
  float4(float a = 0) : x(a), y(a), z(a), w(a) {}
  float4(float a, float b, float c, float d) : x(a), y(b), z(c), w(d) {}
};
struct uint2 { uint x, y; uint2(uint a, uint b) : x(a), y(b) {} };

static float from_half(uint bits) { return _cvtsh_ss((ushort)bits); }
static uint to_half(float x) { return _cvtss_sh(x, 0); }
static float vload_half(size_t i, const half *p) { return from_half(p[i].bits); }
static void vstore_half_rte(float x, size_t i, half *p) { p[i].bits = (ushort)to_half(x); }
static float half_of(uint two, int high) { return from_half(high ? two >> 16 : two & 0xffff); }
static uint halves_2(float low, float high) { return to_half(low) | to_half(high) << 16; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }

// --- work-items ---

static int lane_, lanes_, group_, groups_;
static void *host_, *fibers_[MOST];  // where each one's stack ends
static void **stacks_[MOST];
static bool over_[MOST];

static int get_local_id(int) { return lane_; }
static int get_group_id(int) { return group_; }
static int get_num_groups(int) { return groups_; }
static int get_global_id(int) { return group_ * lanes_ + lane_; }

// Leave one stack for another: swapcontext without its calls of the system, which take the time.
extern "C" void change_stack(void **from, void *to);
asm("change_stack:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

static void others_turn() {
  const int lane = lane_;
  change_stack(&fibers_[lane], host_);
  lane_ = lane;
}

// Local memory holds anything when a group begins: what is not a number.
static int leader_;  // the lane that runs first
#define NOTHING(memory) (leader_ == lane_ ? (void)memset(memory, 0xff, sizeof memory) : (void)0)

struct Meeting {
  int came = 0, round = 0;
  void wait(int all) {
    const int now = round;
    if (++came == all) came = 0, ++round;
    while (now == round) others_turn();
  }
};
static Meeting everybody_, warps_[MOST / 32];

static void barrier(int) { everybody_.wait(lanes_); }
static void meet_warp() { warps_[lane_ / 32].wait(32); }

// --- matrix units ---

static uint a_[MOST][4], b_[MOST][2], at_[MOST];

static float float_of(uint bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint bits_of(float x) { uint bits; memcpy(&bits, &x, 4); return bits; }
#define as_float float_of
#define as_uint bits_of

static float as_tf32(uint bits) { return float_of(bits & ~0x1fffu); }

static void multiply(float *sums, const uint *a, const uint *b, int whole) {
  const int each = FACTOR_BYTES == 2 ? 2 : 1, inner = each * (whole ? 8 : 4);
  const int warp = lane_ / 32 * 32, group = lane_ % 32 / 4;
  memcpy(a_[lane_], a, whole ? 16 : 8);
  memcpy(b_[lane_], b, whole ? 8 : 4);
  meet_warp();
  for (int e = 0; e < 4; ++e) {
    const int row = group + e / 2 * 8, column = lane_ % 4 * 2 + e % 2;
    for (int k = 0; k < inner; ++k) {
      const int holder = k / each % 4, square = k / each / 4;
      const uint x = a_[warp + row % 8 * 4 + holder][square * 2 + row / 8];
      const uint y = b_[warp + column * 4 + holder][square];
      sums[e] += each == 2 ? half_of(x, k % 2) * half_of(y, k % 2) : as_tf32(x) * as_tf32(y);
    }
  }
  meet_warp();
}

static char anchor_;  // local memory is near it, so the low half of an address says which

static void load_squares(uint *x, uint at, int count, bool across) {
  const int warp = lane_ / 32 * 32;
  if (at % 16) { fprintf(stderr, "a line begins at %u, not on 16 bytes\n", at); abort(); }
  at_[lane_] = at;
  meet_warp();
  for (int i = 0; i < count; ++i) {
    uint two[2];
    for (int e = 0; e < 2; ++e) {
      const int g = lane_ % 32 / 4, n = lane_ % 4 * 2 + e;
      const size_t high = (size_t)&anchor_ >> 32 << 32;
      const char *line = (const char *)(high | at_[warp + 8 * i + (across ? n : g)]);
      two[e] = ((const half *)line)[across ? g : n].bits;
    }
    x[i] = two[0] | two[1] << 16;
  }
  meet_warp();
}

static uint load_word(uint at) {
  const size_t high = (size_t)&anchor_ >> 32 << 32;
  return *(const uint *)(high | at);
}

#define SQUARES_2(x, at, how) load_squares(x, at, 2, *how)
#define SQUARES_4(x, at, how) load_squares(x, at, 4, *how)

// --- launches ---

typedef void (*Kernel)(void **);
static Kernel kernel_;
static void **arguments_;

static void fiber() {
  if (leader_ < 0) leader_ = lane_;
  kernel_(arguments_);
  over_[lane_] = true;
  others_turn();
}

static void launch(Kernel kernel, void **arguments, int items, int lanes) {
  kernel_ = kernel, arguments_ = arguments, lanes_ = lanes, groups_ = items / lanes;
  for (group_ = 0; group_ < groups_; ++group_) {
    for (int i = 0; i < lanes; ++i) {
      const size_t words = 1 << 13;
      if (!stacks_[i]) stacks_[i] = (void **)aligned_alloc(16, words * sizeof(void *));
      fibers_[i] = stacks_[i] + words - 8;  // six registers, then where to go
      stacks_[i][words - 2] = (void *)fiber;
      over_[i] = false;
    }
    leader_ = -1;
    for (int left = lanes; left;) {  // one warp at a time runs ahead of the others
      const int warp = rand() % ((lanes + 31) / 32), rounds = rand() % 64;
      for (int i = 0; i < 32 * rounds; ++i) {
        const int lane = warp * 32 + i % 32;
        if (lane >= lanes || over_[lane]) continue;
        lane_ = lane;
        change_stack(&host_, fibers_[lane]);
        left -= over_[lane];
      }
    }
  }
}
