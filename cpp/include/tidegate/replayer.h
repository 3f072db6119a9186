// Replay of columns: the decisions that limits would have made on millions of requests.
//
//   Replayer replayer({*Limit::Parse("100/minute")}, {users});
//   replayer.Run(columns, 0, columns.size, answers);
//
// Keys are numbers from 0 up, so that the state of a key is found without hashing. Requests are
// decided in the order of their times, by the steps that the stores use, with exact and unbounded
// state.
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

// The times of all requests; each column has `size` entries, which the caller owns.
struct RequestColumns {
  size_t size = 0;
  const int64_t* times_ns = nullptr;  // each within [0, kMaxInstantNs]
  // The positions of the requests in the order of their times; null if they are in that order.
  const int64_t* order = nullptr;

  size_t At(size_t n) const { return order == nullptr ? n : static_cast<size_t>(order[n]); }
};

// The key and the cost of each request under one limit.
struct ChargeColumns {
  const uint32_t* keys = nullptr;
  const int64_t* costs = nullptr;  // each from 1 up; null: 1 each
  // What each request used, from 0 up, which becomes its charge if it passes: the cost was an
  // estimate. What finds no room is owed. Null: the costs.
  const int64_t* used = nullptr;
  int64_t CostAt(size_t at) const { return costs == nullptr ? 1 : costs[at]; }
};

// Where answers are written, each at the position of its request; a null column is not written.
// Writing to new memory takes most of the time of a replay.
struct AnswerColumns {
  uint8_t* allowed = nullptr;
  int64_t* remaining = nullptr;
  uint32_t* few_remaining = nullptr;  // instead of it, if each limit has fewer than 2^32 units
  int64_t* retry_after_ns = nullptr;  // Decision::kNever if the request can never pass
  int64_t* delay_ns = nullptr;
  uint32_t* rule = nullptr;  // the number of the limit or rule that binds
  // Whether the two columns of durations already hold zeros and each request is answered once.
  // Zeros are then not written, so that pages of zeros alone are not touched.
  bool zeroed = false;

  void Write(size_t at, const Decision& decision, uint32_t binding) const {
    Put(at, decision.allowed, decision.retry_after_ns, decision.delay_ns, binding,
        [&decision] { return decision.remaining(); });
  }

  // `left()` returns the remaining units; it is called only if they are wanted.
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

// The state of all keys under the limits of one plan: either all of them are charged for a request,
// or none is. Thread-compatible. Decisions point into the replayer that made them.
class Replayer {
 public:
  // `keys` has the number of keys of each limit; the keys have the numbers below it.
  Replayer(std::vector<Limit> limits, absl::Span<const uint32_t> keys);
  ~Replayer();

  // Decides the requests number `from` to `to` - 1, which must follow those decided before.
  // `charges` has the columns of each limit.
  void Run(const RequestColumns& requests, absl::Span<const ChargeColumns> charges, size_t from,
           size_t to, const AnswerColumns& answers);

  // Decides the request at position `at` alone, at `now_ns` instead of its own time.
  Decision Hit(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns);

 private:
  struct LimitState;

  Decision HitAll(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns);

  std::vector<LimitState> states_;
};

}  // namespace tidegate

#endif  // TIDEGATE_REPLAYER_H_
