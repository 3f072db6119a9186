// Replay of columns: what would these limits have said to millions of requests?
//
//   Replayer replayer({*Limit::Parse("100/minute")}, {users});
//   replayer.Run(columns, 0, columns.size, answers);
//
// Keys are numbers from 0 up, so that the state of a key is found without hashing. Requests are
// taken in the order of their times, through the steps that the stores take, with exact and
// unbounded state.
#ifndef TIDEGATE_REPLAYER_H_
#define TIDEGATE_REPLAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "tidegate/decision.h"
#include "tidegate/limit.h"

namespace tidegate {

// What all requests have, each column as long as `size`. Views of what the caller keeps.
struct RequestColumns {
  size_t size = 0;
  const int64_t* times_ns = nullptr;  // each within [0, kMaxInstantNs]
  // The position of each request in the order of their times; null where they lie in it.
  const int64_t* order = nullptr;

  size_t At(size_t n) const { return order == nullptr ? n : static_cast<size_t>(order[n]); }
};

// The key and the cost of each request under one limit.
struct ChargeColumns {
  const uint32_t* keys = nullptr;
  const int64_t* costs = nullptr;  // each from 1 up; null: 1 each
  int64_t CostAt(size_t at) const { return costs == nullptr ? 1 : costs[at]; }
};

// Where answers go, each at the position of its request. Null where they are not wanted. Most of
// what a replay takes is the memory that it writes for the first time.
struct AnswerColumns {
  uint8_t* allowed = nullptr;
  int64_t* remaining = nullptr;
  uint32_t* few_remaining = nullptr;  // in place of it, where no limit has 2^32 units or more
  int64_t* retry_after_ns = nullptr;  // Decision::kNever where the request can never pass
  int64_t* delay_ns = nullptr;
  uint32_t* rule = nullptr;  // the number of the limit or rule that binds
  // The two columns of durations hold zeros already, and each request is answered once: pages that
  // would have zeros alone are not touched.
  bool zeroed = false;

  void Write(size_t at, const Decision& decision, uint32_t binding) const {
    Put(at, decision.allowed, decision.retry_after_ns, decision.delay_ns, binding,
        [&decision] { return decision.remaining(); });
  }

  // `left()` is what remains, computed where that is wanted.
  template <typename Left>
  void Put(size_t at, bool is_allowed, int64_t wait_ns, int64_t waits_ns, uint32_t binding,
           const Left& left) const {
    if (allowed != nullptr) allowed[at] = is_allowed ? 1 : 0;
    if (few_remaining != nullptr) few_remaining[at] = static_cast<uint32_t>(left());
    if (remaining != nullptr) remaining[at] = left();
    if (retry_after_ns != nullptr && !(zeroed && wait_ns == 0)) retry_after_ns[at] = wait_ns;
    if (delay_ns != nullptr && !(zeroed && waits_ns == 0)) delay_ns[at] = waits_ns;
    if (rule != nullptr) rule[at] = binding;
  }
};

// The state of all keys under limits that make one plan: a request is charged all of them or
// none. Thread-compatible. Decisions point into the replayer that made them.
class Replayer {
 public:
  // `keys` says for each limit how many keys there are; their numbers are below it.
  Replayer(std::vector<Limit> limits, absl::Span<const uint32_t> keys);
  ~Replayer();

  // Takes the requests number `from` to `to` - 1, which follow those that were taken before.
  // `charges` has the columns of each limit.
  void Run(const RequestColumns& requests, absl::Span<const ChargeColumns> charges, size_t from,
           size_t to, const AnswerColumns& answers);

  // Takes the request at position `at` alone, at another instant than its own.
  Decision Hit(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns);

 private:
  struct LimitState;

  // Where there is one limit, which is enforced.
  Decision HitOnly(LimitState& state, uint32_t key, int64_t now_ns, int64_t cost);
  Decision HitAll(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns);

  std::vector<LimitState> states_;
};

}  // namespace tidegate

#endif  // TIDEGATE_REPLAYER_H_
