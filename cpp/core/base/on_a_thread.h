// Threads that do one piece of work, which nobody waits for, and end.
#ifndef TIDEGATE_SRC_BASE_ON_A_THREAD_H_
#define TIDEGATE_SRC_BASE_ON_A_THREAD_H_

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tidegate {

// Runs `work` on a thread of its own, which blocks all signals. Returns false if none can be
// started; then `work` is destroyed here, and was not called.
bool RunOnAThread(std::function<void()> work);

// Frees values whose many parts take milliseconds to free, which no request should wait for: on a
// thread of its own, or on this one if none can be started. Their destructors must not need the
// caller's locks, nor the GIL of Python.
template <typename... Values>
void FreeOnAThread(Values&&... values) {
  static_assert((!std::is_lvalue_reference_v<Values> && ...), "values are moved");
  auto kept = std::make_shared<std::tuple<Values...>>(std::forward<Values>(values)...);
  RunOnAThread([kept = std::move(kept)] {});
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_ON_A_THREAD_H_
