#include "rules/circle.h"

#include <algorithm>
#include <cstddef>

namespace tidegate {

std::vector<uint32_t> FindCircle(absl::Span<const absl::InlinedVector<uint32_t, 2>> next) {
  // A depth-first search: a number that is reached again on its own path closes a circle.
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  struct Step {
    uint32_t number;
    size_t taken;
  };
  std::vector<Mark> marks(next.size(), Mark::kNew);
  for (uint32_t start = 0; start < marks.size(); ++start) {
    std::vector<Step> path;
    if (marks[start] == Mark::kNew) path.push_back({start, 0});
    while (!path.empty()) {
      Step& step = path.back();
      marks[step.number] = Mark::kOpen;
      if (step.taken == next[step.number].size()) {
        marks[step.number] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const uint32_t to = next[step.number][step.taken++];
      if (marks[to] == Mark::kOpen) {
        auto from =
            std::find_if(path.begin(), path.end(), [&](const Step& s) { return s.number == to; });
        std::vector<uint32_t> circle;
        for (; from != path.end(); ++from) circle.push_back(from->number);
        return circle;
      }
      if (marks[to] == Mark::kNew) path.push_back({to, 0});
    }
  }
  return {};
}

}  // namespace tidegate
