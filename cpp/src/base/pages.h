// Memory for a Table: anonymous, all zero, given back page by page, and made ready
// ahead of its use where the first touch of it takes long.
//
// Tables of kHugeFrom bytes and more are made of huge pages. The first touch of one takes
// 0.2 ms, and 5 to 10 ms in a virtual machine whose host has to find the memory first,
// which no call should wait for. Who fills such a table in order asks IsWorthWaiting()
// before each part; the answer has a thread ask for the few pages that come next, and
// touch them. It lives for those pages only, holds no lock, blocks all signals and runs
// nothing but that loop.
//
// Nothing depends on that thread. What it has not come to can be used all the same, in
// small pages, which come in microseconds; where no thread can be had, and in a child of
// fork(), which has none of its parent's, nobody waits for one.
//
// Not thread-safe, but for what its own thread does.
#ifndef TIDEGATE_SRC_BASE_PAGES_H_
#define TIDEGATE_SRC_BASE_PAGES_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "table/table.h"

namespace tidegate {

class Pages {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kHugeFrom = size_t{32} << 20;

  Pages() = default;
  explicit Pages(size_t slices);
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  bool ok() const { return memory_ != nullptr; }
  const Table& table() const { return table_; }
  Table& table() { return table_; }

  // Whether a thread is about to make ready what of the first `slices` slices has not
  // been touched. Sees to it that one is, a few pages further on too.
  bool IsWorthWaiting(size_t slices);

  // Gives slice `i` back, of those that are given back in order.
  void ReleaseSlice(size_t i);

  // Has `work` done on another thread. False where there is none to be had.
  using Runner = bool (*)(std::function<void()> work);
  // For tests: what is called instead of starting a thread. Returns what was before.
  static Runner SetRunner(Runner runner);

 private:
  struct Errand;

  bool is_huge() const { return table_.slices() * Table::kSliceBytes >= kHugeFrom; }
  bool IsUnderWay() const;
  void Send(size_t end);

  void* memory_ = nullptr;
  size_t bytes_ = 0;
  Table table_;
  size_t ready_ = 0;                // bytes of the table that have been made ready
  std::shared_ptr<Errand> errand_;  // the newest
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_PAGES_H_
