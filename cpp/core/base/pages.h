// Memory for a Table: anonymous, all zero, given back page by page, and made ready ahead of its use
// if the first touch takes long.
//
// Tables of kHugeFrom bytes and more are made of huge pages. The first touch of one takes
// 0.2 ms, and 5 to 10 ms in a virtual machine whose host has to find the memory first,
// which no call should wait for. A store that fills such a table in order calls IsWorthWaiting()
// before each part, which starts a thread that asks for the next few pages, and touches them. The
// thread ends after those pages, holds no lock, blocks all signals and runs nothing but that loop.
//
// Nothing depends on that thread. Pages that it has not touched can be used nevertheless, as small
// pages, which come in microseconds. If no thread can be started, and in a child of fork(), nobody
// waits for one.
//
// Not thread-safe, except for its own thread.
#ifndef TIDEGATE_SRC_BASE_PAGES_H_
#define TIDEGATE_SRC_BASE_PAGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
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

  // Whether a thread is making the untouched part of the first `slices` slices ready. Starts such a
  // thread if needed, also for a few pages beyond them.
  bool IsWorthWaiting(size_t slices);

  // Gives slice `i` back. Slices are given back in order.
  void ReleaseSlice(size_t i);

  // Runs `work` on another thread. Returns false if none can be started.
  using Runner = bool (*)(std::function<void()> work);
  // For tests: replaces the function that starts a thread. Returns the previous one.
  static Runner SetRunner(Runner runner);

 private:
  struct Errand;

  bool is_huge() const { return table_.slices() * Table::kSliceBytes >= kHugeFrom; }
  bool IsUnderWay() const;
  void Send(size_t end);

  void* memory_ = nullptr;
  size_t bytes_ = 0;
  Table table_;
  std::unique_ptr<std::atomic<int64_t>> newest_ns_;  // of the table
  size_t ready_ = 0;                                 // bytes of the table that have been made ready
  std::shared_ptr<Errand> errand_;                   // the newest
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_PAGES_H_
