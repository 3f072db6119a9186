// A program that uses the installed library: three calls are allowed, the fourth is refused, and is
// allowed after the wait that its decision gave.
#include <cstdio>
#include <memory>

#include "tidegate/clock.h"
#include "tidegate/limiter.h"
#include "tidegate/memory_store.h"

int main() {
  const auto limit = tidegate::Limit::Parse("3/minute");
  if (!limit.ok()) return 1;
  auto clock = std::make_shared<tidegate::ManualClock>(1'000'000'000);
  auto store = tidegate::MemoryStore::Create();
  if (!store.ok()) return 1;
  auto limiter = tidegate::Limiter::Create({*limit}, *store, clock);
  if (!limiter.ok()) return 1;

  for (int i = 0; i < 3; ++i) {
    if (!(*limiter)->Hit("user:42")) return 2;
  }
  const tidegate::Decision refused = (*limiter)->Hit("user:42");
  if (refused || refused.remaining() != 0) return 3;
  clock->AdvanceNs(refused.retry_after_ns - 1);
  if ((*limiter)->Hit("user:42")) return 4;
  clock->AdvanceNs(1);
  if (!(*limiter)->Hit("user:42")) return 5;
  std::printf("refused after 3, again after %lld s\n",
              static_cast<long long>(refused.retry_after_ns / 1'000'000'000));
  return 0;
}
