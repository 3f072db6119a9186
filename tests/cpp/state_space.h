// The states that the model checkers of leases go through.
#ifndef TIDEGATE_TESTS_CPP_STATE_SPACE_H_
#define TIDEGATE_TESTS_CPP_STATE_SPACE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace tidegate::leases {

// Hands out each state once. States with the same key are the same.
template <typename State, typename Key>
class StateSpace {
 public:
  void Add(const State& state, Key key) {
    if (seen_.insert(std::move(key)).second) open_.push_back(state);
  }

  // Returns false if there is none left. The newest comes first, so that few wait at a time.
  bool Take(State* state) {
    if (open_.empty()) return false;
    *state = std::move(open_.back());
    open_.pop_back();
    return true;
  }

  size_t size() const { return seen_.size(); }

 private:
  std::vector<State> open_;
  absl::flat_hash_set<Key> seen_;
};

}  // namespace tidegate::leases

#endif  // TIDEGATE_TESTS_CPP_STATE_SPACE_H_
