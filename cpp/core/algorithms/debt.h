// How the state of a key that owes tells its debt from a clock that went back.
//
// A debt (Limiter::ChargeInFull()) makes a state lie further ahead than admissions explain, as does
// a clock that went back. So the state of a key that owes also says how far ahead the debt has put
// it: its code. A state that lies further ahead than the limit and its code allow is moved back to
// that (step.h). Without a debt the code is 0, and states are what they would be without debts.
//
// A code has 9 bits, 3 of them for the digits: it is exact up to 15 and rounds up beyond, by 12.5 %
// at most. It is written anew by each charge and goes when the debt is paid; until then it allows
// as much as was owed after the last charge.
//
//   bucket            nanoseconds beyond the burst, in the highest bits of w1; a bucket of a limit
//                     with an id has none, but as many periods in its span (step.h)
//   fixed window      full windows before the one in w0, in the highest bits of w1
//   sliding window    the same, in the lowest bits of w1 in place of the units of the window before
//   log               nanoseconds by which the newest end is later than a period from now
//   quota             none: periods are never taken for a debt
#ifndef TIDEGATE_SRC_ALGORITHMS_DEBT_H_
#define TIDEGATE_SRC_ALGORITHMS_DEBT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate {

inline constexpr uint64_t kMostDebtCode = 0x1ff;
inline constexpr int kDebtDigits = 3;

// Rounds up. Requires value < 2^62.
inline uint64_t CodeOfDebt(int64_t value) {
  if (value <= 0) return 0;
  const auto exact = static_cast<uint64_t>(value);
  const int shift = std::max(0, static_cast<int>(std::bit_width(exact)) - kDebtDigits - 1);
  // A carry into the next digit is that of the exponent.
  const uint64_t digits = (exact + (uint64_t{1} << shift) - 1) >> shift;
  return (static_cast<uint64_t>(shift) << kDebtDigits) + digits;
}

inline int64_t DebtOfCode(uint64_t code) {
  constexpr uint64_t kFirst = uint64_t{1} << kDebtDigits;
  if (code < kFirst) return static_cast<int64_t>(code);
  const uint64_t shift = (code >> kDebtDigits) - 1;
  // Any server may have sent it.
  if (shift > 58) return Limit::kMaxPeriodNs;
  const uint64_t digits = (code & (kFirst - 1)) + kFirst;
  return std::min(static_cast<int64_t>(digits << shift), Limit::kMaxPeriodNs);
}

// Where w1 of a bucket and of a fixed window has the code.
inline uint64_t DebtCodeIn(uint64_t w1) { return w1 >> kDebtShift & kMostDebtCode; }
// The same bits of a bucket.
inline uint64_t DebtBitsOf(uint64_t code) { return code == 0 ? 0 : kOwesBit | code << kDebtShift; }
inline uint64_t WithoutDebtCode(uint64_t w1) { return w1 & ((uint64_t{1} << kDebtShift) - 1); }

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_DEBT_H_
