#include "base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "base/on_a_thread.h"

namespace tidegate {
namespace {

// The call that gives pages back. On Apple's systems MADV_DONTNEED is only a hint.
#if defined(__APPLE__)
constexpr int kGiveBack = MADV_FREE;
#else
constexpr int kGiveBack = MADV_DONTNEED;
#endif

// How far ahead pages are made ready: pages that are ready but not in use are wasted memory.
constexpr size_t kMostAhead = 4 * Pages::kHugePage;
constexpr size_t kShareAhead = 16;

std::atomic<Pages::Runner> run{RunOnAThread};

void Advise([[maybe_unused]] char* memory, [[maybe_unused]] size_t bytes,
            [[maybe_unused]] bool huge) {
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

// Touches memory that other threads may write to meanwhile. Page by page, since the system gives
// small pages if it has no huge one, or if other threads touched them first.
void Touch(char* memory, size_t bytes) {
  constexpr size_t kSmallPage = 4096;
  for (size_t at = 0; at < bytes; at += kSmallPage) {
    reinterpret_cast<Cell*>(memory + at)->w0.fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

// Pages for a thread to touch. The store and the thread both own the memory, and the last of them
// unmaps it.
struct Pages::Errand {
  enum class State { kUnderWay, kDone, kAbandoned };

  Errand(void* the_memory, size_t its_bytes, Cell* cells, size_t to, size_t from)
      : memory(the_memory),
        memory_bytes(its_bytes),
        begin(reinterpret_cast<char*>(cells)),
        end(to),
        ready(from) {}

  void Run() {
    size_t at = ready.load(std::memory_order_relaxed);
    while (at < end && state.load(std::memory_order_relaxed) == State::kUnderWay) {
      const size_t bytes = std::min(kHugePage, end - at);
      Advise(begin + at, bytes, /*huge=*/true);
      Touch(begin + at, bytes);
      at += bytes;
      ready.store(at, std::memory_order_release);
    }
    if (state.exchange(State::kDone) == State::kAbandoned) munmap(memory, memory_bytes);
  }

  void* const memory;
  const size_t memory_bytes;
  char* const begin;  // of the table
  const size_t end;   // in bytes from there
  std::atomic<size_t> ready;
  const pid_t process = getpid();
  std::atomic<State> state{State::kUnderWay};
};

Pages::Pages(size_t slices) {
  const size_t size = slices * Table::kSliceBytes;
  // Large tables are aligned to huge pages, if the system has them: keys lie scattered, and each
  // TLB miss of a small page costs as much as a cache miss.
  const size_t alignment = size >= kHugeFrom ? kHugePage : 1;
  bytes_ = size + alignment - 1;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  memory_ = memory;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t aligned = (address + alignment - 1) / alignment * alignment;
  newest_ns_ = std::make_unique<std::atomic<int64_t>>(0);
  table_ = Table(static_cast<char*>(memory) + (aligned - address), slices, newest_ns_.get());
  // Only the thread asks for huge pages; a caller that comes before it gets small ones.
  if (alignment > 1) Advise(reinterpret_cast<char*>(table_.slice(0)), size, /*huge=*/false);
}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(table_, other.table_);
  std::swap(newest_ns_, other.newest_ns_);
  std::swap(ready_, other.ready_);
  std::swap(errand_, other.errand_);
  return *this;
}

Pages::~Pages() {
  if (memory_ == nullptr) return;
  using State = Errand::State;
  if (IsUnderWay() && errand_->state.exchange(State::kAbandoned) == State::kUnderWay) return;
  munmap(memory_, bytes_);
}

// The parent's thread does not exist in this process.
bool Pages::IsUnderWay() const {
  return errand_ != nullptr && errand_->process == getpid() &&
         errand_->state.load(std::memory_order_acquire) == Errand::State::kUnderWay;
}

bool Pages::IsWorthWaiting(size_t slices) {
#if defined(MADV_HUGEPAGE)
  if (!is_huge()) return false;
  const size_t size = table_.slices() * Table::kSliceBytes;
  const size_t needed = std::min(slices * Table::kSliceBytes, size);
  const size_t ahead = std::min(size / kShareAhead, kMostAhead);
  if (errand_ != nullptr) ready_ = errand_->ready.load(std::memory_order_acquire);
  if (ready_ < size && ready_ < needed + ahead / 2 && !IsUnderWay()) {
    const size_t pages = (needed + ahead + kHugePage - 1) / kHugePage;
    Send(std::min(pages * kHugePage, size));
  }
  return ready_ < needed && IsUnderWay();
#else
  (void)slices;
  return false;
#endif
}

void Pages::Send(size_t end) {
  errand_ = nullptr;
  try {
    auto errand = std::make_shared<Errand>(memory_, bytes_, table_.slice(0), end, ready_);
    if (run.load(std::memory_order_acquire)([errand] { errand->Run(); })) errand_ = errand;
  } catch (const std::bad_alloc&) {  // without a thread, nobody waits
  }
}

void Pages::ReleaseSlice(size_t i) {
  // Gives back whole huge pages: splitting one takes longer than giving it back, and the next table
  // reuses whole ones.
  constexpr size_t kSlices = kHugePage / Table::kSliceBytes;
  const size_t at_once = is_huge() ? kSlices : 1;
  if ((i + 1) % at_once != 0) return;
  madvise(table_.slice(i + 1 - at_once), at_once * Table::kSliceBytes, kGiveBack);
}

Pages::Runner Pages::SetRunner(Runner runner) {
  return run.exchange(runner, std::memory_order_acq_rel);
}

}  // namespace tidegate
