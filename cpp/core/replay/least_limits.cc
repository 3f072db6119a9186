#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tidegate/least_limit.h"
#include "tidegate/step.h"

namespace tidegate {
namespace {

using absl::int128;

// The requests of one key, in the order of their times.
struct KeyRequests {
  absl::Span<const int64_t> times_ns;
  absl::Span<const int64_t> costs;  // if empty, each cost is 1

  size_t size() const { return times_ns.size(); }
  int64_t cost(size_t i) const { return costs.empty() ? 1 : costs[i]; }
};

// All requests, grouped by key.
class ByKey {
 public:
  ByKey(size_t keys, size_t size, const uint32_t* codes, const int64_t* times_ns,
        const int64_t* costs)
      : begins_(keys + 1), times_ns_(size), costs_(costs == nullptr ? 0 : size) {
    for (size_t i = 0; i < size; ++i) ++begins_[codes[i] + 1];
    for (size_t key = 0; key < keys; ++key) begins_[key + 1] += begins_[key];
    std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
    for (size_t i = 0; i < size; ++i) {
      const size_t place = next[codes[i]]++;
      times_ns_[place] = times_ns[i];
      if (costs != nullptr) costs_[place] = costs[i];
    }
  }

  // Whether the times of each key never fall. Otherwise the search for a count would not end.
  bool InOrder() const {
    for (size_t key = 0; key + 1 < begins_.size(); ++key) {
      const KeyRequests requests = Of(key);
      if (!std::is_sorted(requests.times_ns.begin(), requests.times_ns.end())) return false;
    }
    return true;
  }

  KeyRequests Of(size_t key) const {
    const size_t begin = begins_[key];
    const size_t size = begins_[key + 1] - begin;
    return {absl::MakeConstSpan(times_ns_).subspan(begin, size),
            costs_.empty() ? absl::Span<const int64_t>()
                           : absl::MakeConstSpan(costs_).subspan(begin, size)};
  }

 private:
  std::vector<size_t> begins_;
  std::vector<int64_t> times_ns_;
  std::vector<int64_t> costs_;
};

// `shape` with another count, which must be one that a limit can have.
Limit WithCount(const Limit& shape, int64_t count) {
  LimitSpec spec = shape.spec();
  spec.count = count;
  spec.burst.reset();
  spec.shadow = false;
  spec.id.clear();
  spec.name.clear();
  spec.rule.clear();
  return *Limit::Create(std::move(spec));
}

// The least count that allows `units`, of which the first and the last are `span_ns` apart:
// units * period / (period + span), rounded up.
int128 NeededFor(int128 units, int64_t span_ns, int64_t period_ns) {
  const int128 divisor = int128(period_ns) + span_ns;
  return (units * period_ns + divisor - 1) / divisor;
}

// Finds the run that exceeds the limit of `count` the most: the units in a bucket that refuses
// nothing, when it is fullest, since it was last empty. Returns NeededFor() of that run. The search
// is approximate, in doubles; the count that it returns is exact for the run found.
int128 NeededBeyond(const KeyRequests& requests, int64_t count, int64_t period_ns) {
  const double interval_ns = static_cast<double>(period_ns) / static_cast<double>(count);
  double used_ns = 0;
  double most_ns = 0;
  int128 units = 0;
  int128 units_of_most = 0;
  int64_t begin_ns = requests.times_ns[0];
  int64_t last_ns = begin_ns;
  int64_t span_of_most_ns = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t now_ns = requests.times_ns[i];
    used_ns -= static_cast<double>(now_ns - last_ns);
    if (used_ns <= 0) {
      used_ns = 0;
      units = 0;
      begin_ns = now_ns;
    }
    last_ns = now_ns;
    used_ns += static_cast<double>(requests.cost(i)) * interval_ns;
    units += requests.cost(i);
    if (used_ns > most_ns) {
      most_ns = used_ns;
      units_of_most = units;
      span_of_most_ns = now_ns - begin_ns;
    }
  }
  return NeededFor(units_of_most, span_of_most_ns, period_ns);
}

bool Allows(const Limit& limit, const KeyRequests& requests) {
  CellState state;
  for (size_t i = 0; i < requests.size(); ++i) {
    CellState next;
    if (!Step(limit, state, requests.times_ns[i], requests.cost(i), &next).allowed) return false;
    state = next;
  }
  return true;
}

// A cache of the limits of one shape by their count: most keys need the same few.
class Limits {
 public:
  explicit Limits(const Limit& shape) : shape_(shape) {}

  const Limit& Of(int64_t count) {
    const auto found = limits_.find(count);
    if (found != limits_.end()) return found->second;
    return limits_.emplace(count, WithCount(shape_, count)).first->second;
  }

 private:
  const Limit& shape_;
  absl::flat_hash_map<int64_t, Limit> limits_;
};

// The most units in any span shorter than a period.
int128 MostInAnySpan(const KeyRequests& requests, int64_t period_ns) {
  int128 units = 0;
  int128 most = 0;
  size_t first = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    units += requests.cost(i);
    while (requests.times_ns[i] - requests.times_ns[first] >= period_ns) {
      units -= requests.cost(first++);
    }
    most = std::max(most, units);
  }
  return most;
}

// The most units that a window ever held under `widest`, the limit with the largest count; nothing
// if the key exceeds even that.
std::optional<int64_t> MostInWindows(const Limit& widest, const KeyRequests& requests) {
  CellState state;
  int64_t most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    CellState next;
    const Decision decision = Step(widest, state, requests.times_ns[i], requests.cost(i), &next);
    if (!decision.allowed) return std::nullopt;
    most = std::max(most, decision.used_units);
    state = next;
  }
  return most;
}

// The largest count of a limit of the algorithm of `shape`.
int64_t MostCount(const Limit& shape) {
  if (IsBucket(shape.algorithm())) return Limit::kMaxCount;
  return shape.algorithm() == Algorithm::kSlidingLog ? Limit::kMaxLogCount : Limit::kMaxWindowCount;
}

// Finds the least count of one key after another; nothing if no limit can count so much.
class Finder {
 public:
  explicit Finder(const Limit& shape)
      : shape_(shape), most_(MostCount(shape)), limits_(shape), widest_(WithCount(shape, most_)) {}

  std::optional<int64_t> Find(const KeyRequests& requests) {
    if (IsBucket(shape_.algorithm())) return LeastOfBucket(requests);
    if (shape_.algorithm() != Algorithm::kSlidingLog) return MostInWindows(widest_, requests);
    const int128 most = MostInAnySpan(requests, shape_.period_ns());
    if (most > most_) return std::nullopt;
    return static_cast<int64_t>(most);
  }

  int64_t most() const { return most_; }

 private:
  std::optional<int64_t> LeastOfBucket(const KeyRequests& requests) {
    int128 needed = 1;
    for (size_t i = 0; i < requests.size(); ++i) {
      needed = std::max<int128>(needed, requests.cost(i));
    }
    while (needed <= most_) {
      const auto count = static_cast<int64_t>(needed);
      const int128 next = NeededBeyond(requests, count, shape_.period_ns());
      if (next > needed) {
        needed = next;
      } else if (Allows(limits_.Of(count), requests)) {
        return count;
      } else {
        ++needed;  // the run found in doubles was not the worst
      }
    }
    return std::nullopt;
  }

  const Limit& shape_;
  const int64_t most_;
  Limits limits_;
  const Limit widest_;
};

}  // namespace

absl::StatusOr<std::vector<int64_t>> LeastLimits(const Limit& shape, size_t keys, size_t size,
                                                 const uint32_t* codes, const int64_t* times_ns,
                                                 const int64_t* costs) {
  if (shape.algorithm() == Algorithm::kConcurrency) {
    return absl::InvalidArgumentError(
        "the least limit of concurrency depends on how long calls last, which a log does not show; "
        "expected token-bucket, leaky-bucket, fixed-window, sliding-window or sliding-log");
  }
  const ByKey by_key(keys, size, codes, times_ns, costs);
  if (!by_key.InOrder()) {
    return absl::InvalidArgumentError(
        "the times are not in order; expected an array that nobody changes meanwhile");
  }
  Finder finder(shape);
  std::vector<int64_t> least(keys);
  for (size_t key = 0; key < keys; ++key) {
    const KeyRequests requests = by_key.Of(key);
    if (requests.size() == 0) continue;
    const std::optional<int64_t> found = finder.Find(requests);
    if (!found.has_value()) {
      return absl::OutOfRangeError(absl::StrCat(
          "the key number ", key, " needs more than ", finder.most(), ", the most that a limit of ",
          std::string(AlgorithmName(shape.algorithm())), " counts; expected fewer units in ",
          shape.ToString().substr(shape.ToString().find('/') + 1)));
    }
    least[key] = *found;
  }
  return least;
}

}  // namespace tidegate
