// An answer that is made when several calls of a store have ended, on whatever threads they end.
#ifndef TIDEGATE_SERVER_CHECKS_GATHERING_H_
#define TIDEGATE_SERVER_CHECKS_GATHERING_H_

#include <atomic>
#include <memory>
#include <utility>

#include "server/call.h"

namespace tidegate::server {

//   auto* call = new Reset(config);        // it deletes itself
//   call->Expect(1);
//   if (limiter.Submit(..., [call](const Decision&) { call->Done(); })) call->Done();
//   return call->Submitted(answer, later);
class Gathering {
 public:
  virtual ~Gathering() = default;
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  // Sets how many times Done() will be called. Comes before the first Done().
  void Expect(size_t calls) { left_.store(calls + 1, std::memory_order_relaxed); }
  // Any thread calls this once for each call of the store. The last call sends the answer.
  void Done() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Answer answer;
    MakeAnswer(&answer);
    pending_->Send(std::move(answer));
    delete this;
  }
  // Service::Handle() calls this last, and returns its result.
  bool Submitted(Answer* answer, const Later& later) {
    if (left_.load(std::memory_order_acquire) == 1) {  // no call had to wait
      MakeAnswer(answer);
      delete this;
      return true;
    }
    pending_ = later();
    Done();
    return false;
  }

 protected:
  Gathering() = default;
  virtual void MakeAnswer(Answer* answer) = 0;

 private:
  std::atomic<size_t> left_{1};
  std::unique_ptr<Pending> pending_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_GATHERING_H_
