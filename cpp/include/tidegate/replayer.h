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

// Where answers go, each at the position of its request. Null where they are not wanted.
struct AnswerColumns {
  uint8_t* allowed = nullptr;
  int64_t* remaining = nullptr;
  int64_t* retry_after_ns = nullptr;  // Decision::kNever where the request can never pass
  int64_t* delay_ns = nullptr;
  uint32_t* rule = nullptr;  // the number of the limit or rule that binds

  void Write(size_t at, const Decision& decision, uint32_t binding) const {
    if (allowed != nullptr) allowed[at] = decision.allowed ? 1 : 0;
    if (remaining != nullptr) remaining[at] = decision.remaining();
    if (retry_after_ns != nullptr) retry_after_ns[at] = decision.retry_after_ns;
    if (delay_ns != nullptr) delay_ns[at] = decision.delay_ns;
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
