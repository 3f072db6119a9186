#include "tidegate/process.h"

#include <pthread.h>

namespace tidegate::internal {

std::atomic<int64_t> forks{0};

namespace {

[[maybe_unused]] const int counted =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace
}  // namespace tidegate::internal
