#include "tidegate/clock.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "base/counter.h"

namespace tidegate {
namespace {

int64_t Read(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

struct Reading {
  int64_t monotonic_ns;
  uint64_t ticks;
};

// Reads both clocks at one instant: of a few tries it returns the one with the least time between
// the counter's two readings, so that preemption in the middle does not matter.
Reading ReadBoth() {
  Reading best{};
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 4; ++i) {
    const uint64_t before = Counter();
    const int64_t ns = Read(CLOCK_MONOTONIC);
    const uint64_t passed = Counter() - before;
    if (passed < least) {
      least = passed;
      best = {ns, before + passed / 2};
    }
  }
  return best;
}

constexpr int64_t kShortestFitNs = 10'000'000;
constexpr int64_t kLongestFitNs = 1'000'000'000;

}  // namespace

SystemClock& SystemClock::Get() {
  static SystemClock* const clock = new SystemClock;  // outlives every thread
  return *clock;
}

SystemClock::SystemClock()
    : epoch_offset_ns_(Read(CLOCK_REALTIME) - Read(CLOCK_MONOTONIC)),
      counter_usable_(CounterIsUsable()) {
  const Reading reading = ReadBoth();
  first_ns_ = reading.monotonic_ns + epoch_offset_ns_;
  first_ticks_ = reading.ticks;
  looked_ns_.store(first_ns_, std::memory_order_relaxed);
  // The thread that was fitting runs only in the parent.
  pthread_atfork(nullptr, nullptr, [] { Get().fitting_.store(false, std::memory_order_release); });
}

int64_t SystemClock::WallOffsetNs() { return Read(CLOCK_REALTIME) - Read(CLOCK_MONOTONIC); }

void SystemClock::Add(WallFollower* follower) {
  for (auto& place : followers_) {
    WallFollower* none = nullptr;
    if (place.compare_exchange_strong(none, follower, std::memory_order_acq_rel)) return;
  }
}

void SystemClock::Remove(WallFollower* follower) {
  for (auto& place : followers_) {
    WallFollower* found = follower;
    if (place.compare_exchange_strong(found, nullptr, std::memory_order_acq_rel)) break;
  }
  // A look at the wall clock may be under way; it takes microseconds.
  while (fitting_.exchange(true, std::memory_order_acquire)) sched_yield();
  fitting_.store(false, std::memory_order_release);
}

void SystemClock::LookAtWall(int64_t now_ns) {
  if (now_ns - looked_ns_.load(std::memory_order_relaxed) < kLongestFitNs) return;
  looked_ns_.store(now_ns, std::memory_order_relaxed);
  const int64_t before = Read(CLOCK_MONOTONIC);
  const int64_t wall = Read(CLOCK_REALTIME);
  if (Read(CLOCK_MONOTONIC) - before > kShortestFitNs) return;  // it was held up in between
  own_follower_.Look(wall - before);
  for (auto& place : followers_) {
    WallFollower* const follower = place.load(std::memory_order_acquire);
    if (follower != nullptr) follower->Look(wall - before);
  }
}

void WallFollower::Look(int64_t wall_offset_ns) {
  const int64_t away = wall_offset_ns - offset_ns_ - correction_.load(std::memory_order_relaxed);
  if (std::llabs(away) < kLeastStepNs) {
    was_away_ = false;
    return;
  }
  const bool stays = was_away_ && std::llabs(wall_offset_ns - last_offset_ns_) < kLeastStepNs;
  was_away_ = true;
  last_offset_ns_ = wall_offset_ns;
  if (stays) Follow(wall_offset_ns);
}

void WallFollower::Follow(int64_t wall_offset_ns) {
  was_away_ = false;
  const int64_t wanted = wall_offset_ns - offset_ns_;
  // Within a second of it, another process may have followed already.
  if (std::llabs(wanted - correction_.load(std::memory_order_relaxed)) < kLeastStepNs) return;
  correction_.store(wanted, std::memory_order_relaxed);
}

void SystemClock::SharedFit::Store(const Fit& fit) {
  const uint32_t before = sequence_.load(std::memory_order_relaxed);
  sequence_.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  ticks_.store(fit.ticks, std::memory_order_relaxed);
  valid_ticks_.store(fit.valid_ticks, std::memory_order_relaxed);
  ns_.store(fit.ns, std::memory_order_relaxed);
  ns_per_tick_.store(fit.ns_per_tick, std::memory_order_relaxed);
  sequence_.store(before + 2, std::memory_order_release);
}

int64_t SystemClock::NowSlow() {
  const int64_t now = Read(CLOCK_MONOTONIC) + epoch_offset_ns_;
  const bool is_due = now - looked_ns_.load(std::memory_order_relaxed) >= kLongestFitNs;
  if ((counter_usable_ || is_due) && !fitting_.exchange(true, std::memory_order_acquire)) {
    if (counter_usable_) Refit();
    LookAtWall(now);
    fitting_.store(false, std::memory_order_release);
  }
  return std::max(now, floor_ns_.load(std::memory_order_acquire));
}

void SystemClock::Refit() {
  const Reading reading = ReadBoth();
  const uint64_t ticks = reading.ticks;
  const int64_t now_ns = reading.monotonic_ns + epoch_offset_ns_;
  const int64_t passed_ns = now_ns - first_ns_;
  if (ticks <= first_ticks_) {  // the machine was suspended: start over
    first_ticks_ = ticks;
    first_ns_ = now_ns;
    return;
  }
  if (passed_ns < kShortestFitNs) return;
  const uint64_t passed_ticks = ticks - first_ticks_;
  // A fit is valid for no longer than the time between its readings, so that their error cannot
  // grow.
  const int64_t valid_ns = std::min(passed_ns, kLongestFitNs);
  const auto rate = static_cast<uint64_t>((static_cast<Wide>(passed_ns) << 32) / passed_ticks);
  const auto valid_ticks = static_cast<uint64_t>((static_cast<Wide>(valid_ns) << 32) / rate);
  Fit fit{ticks, valid_ticks, now_ns, rate};
  // If the last fit ran ahead, this one starts at its last instant and runs slower until real time
  // has caught up.
  const Fit last = fit_.Load();
  if (last.valid_ticks != 0) {
    const auto stood =
        last.ns +
        static_cast<int64_t>((static_cast<Wide>(std::min(ticks - last.ticks, last.valid_ticks)) *
                              last.ns_per_tick) >>
                             32);
    const int64_t ahead = stood - now_ns;
    if (ahead > 0 && ahead < valid_ns / 2) {
      fit.ns = stood;
      fit.ns_per_tick =
          static_cast<uint64_t>((static_cast<Wide>(valid_ns - ahead) << 32) / valid_ticks);
    }
    floor_ns_.store(std::max(stood, floor_ns_.load(std::memory_order_relaxed)),
                    std::memory_order_release);
  }
  fit_.Store(fit);
  // The rate is measured over about the last minute: long enough to be exact, short enough to
  // follow a machine that was moved to another host.
  if (passed_ns > 60 * kLongestFitNs) {
    first_ticks_ = ticks;
    first_ns_ = now_ns;
  }
}

void ManualClock::AdvanceNs(int64_t ns) {
  int64_t now = now_ns_.load(std::memory_order_relaxed);
  int64_t next = 0;
  do {
    if (__builtin_add_overflow(now, ns, &next)) next = ns > 0 ? kMaxInstantNs : 0;
    next = std::clamp<int64_t>(next, 0, kMaxInstantNs);
  } while (!now_ns_.compare_exchange_weak(now, next, std::memory_order_acq_rel));
}

void ManualClock::SetNs(int64_t ns) {
  now_ns_.store(std::clamp<int64_t>(ns, 0, kMaxInstantNs), std::memory_order_release);
}

}  // namespace tidegate
