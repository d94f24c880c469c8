// What kernels do with an inbox (inbox.h): send values, and wait for them or for a member.
#pragma once

#include "cuda/common.cuh"
#include "cuda/inbox.h"

namespace dsv32::cuda {

// What stands where no value has arrived: a NaN that no product makes. A value with these bits is sent as
// another NaN.
constexpr uint32_t kAbsent = 0xffffffffu, kOtherNan = 0x7fffffffu;

DSV32_DEVICE uint32_t word_of(float value) {
  const uint32_t word = __float_as_uint(value);
  return word == kAbsent ? kOtherNan : word;
}
DSV32_DEVICE void send_word(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
// `to` and `from` are aligned to 16 bytes.
DSV32_DEVICE void send_words(uint32_t* to, uint4 words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
DSV32_DEVICE uint4 load_arriving(const void* from) {
  uint4 words;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

// Sends the result of a row for a token of a problem to all members. Not inlined, like what waits for x
// (decode_rows.cuh): kernels of a device alone keep their registers.
__device__ __noinline__ inline void send_row(const Mail& mail, int problem, int token, int row, float y) {
  const int64_t at = problem * mail.problem_stride + token * mail.token_stride + row;
  for (int member = 0; member < mail.n_members; ++member) send_word(mail.to[member] + at, word_of(y));
}

DSV32_DEVICE bool has_absent(uint4 words) {
  return max(max(words.x, words.y), max(words.z, words.w)) == kAbsent;
}
DSV32_DEVICE bool has_absent(float4 v) {
  return has_absent({__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)});
}
// The first absent one of four words.
DSV32_DEVICE int absent_in(uint4 words) {
  return words.x == kAbsent ? 0 : words.y == kAbsent ? 1 : words.z == kAbsent ? 2 : 3;
}

// What the hosts are told: `waiter` has waited in vain for `member`. 0 means that nobody has.
__host__ __device__ constexpr uint32_t late_code(int waiter, int member) {
  return static_cast<uint32_t>(1 + waiter * kMostMembers + member);
}

// Tells all members' devices and hosts that a member did not come.
DSV32_DEVICE void report_late(const Alarm& alarm, int member) {
  for (int m = 0; m < alarm.n_members; ++m) {
    *static_cast<volatile uint32_t*>(alarm.flags[m]) = 1;
    *static_cast<volatile uint32_t*>(alarm.lates[m]) = late_code(alarm.number, member);
  }
}

// Has waited long enough for a member, after n reads? Then reports it as late, or somebody has reported one,
// and nobody is waited for.
struct Patience {
  uint64_t begin = 0;
  uint32_t n = 0;

  DSV32_DEVICE bool ends(const Alarm& alarm, int member) {
    constexpr uint32_t kReadsBetween = 256;  // of the timer
    if (++n % kReadsBetween != 0) return false;
    if (n == kReadsBetween) begin = nanoseconds();
    if (*static_cast<const volatile uint32_t*>(alarm.flags[alarm.number]) != 0) return true;
    if (nanoseconds() - begin < alarm.most_nanoseconds) return false;
    report_late(alarm, member);
    return true;
  }
};

}  // namespace dsv32::cuda
