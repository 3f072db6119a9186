#include "redis/transport/process_local.h"

#include <pthread.h>

namespace tidegate::redis {
namespace {

std::atomic<int64_t> forks{0};

}  // namespace

int64_t ForkGeneration() {
  static const int once =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)once;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace tidegate::redis
