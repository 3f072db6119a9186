// The queue of a loop, to which other threads post answers of calls and messages of streams.
#ifndef TIDEGATE_SERVER_FRONT_MAILBOX_H_
#define TIDEGATE_SERVER_FRONT_MAILBOX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/monotonic.h"
#include "server/call.h"
#include "tidegate/wake.h"

namespace tidegate::server {

// A call in progress. Neither number is reused.
struct CallId {
  uint64_t connection = 0;
  uint32_t call = 0;  // the number of the call in its connection
  Protocol protocol = Protocol::kHttp1;
  TimedAs timed_as = TimedAs::kNothing;
  Instant since{};  // the instant of the loop's turn that began the call
};

struct Posted {
  enum class Kind : uint8_t { kAnswer, kDropped, kMessage, kEnd };

  CallId id;
  Kind kind = Kind::kAnswer;
  Answer answer;  // kMessage: the body; kEnd: the status
};

// Thread-safe. It may outlive its loop; later posts are dropped.
class Mailbox {
 public:
  void Post(Posted posted);
  // Moves all posts into the empty `posted`; returns whether there were any.
  bool Take(std::vector<Posted>* posted);
  // Call this before waiting for wake_fd(): returns false if there is something to take.
  bool Sleep();
  void Awake();
  // Wakes the loop without posting.
  void Nudge() { wake_.Signal(); }
  void Close();
  int wake_fd() const { return wake_.fd(); }

 private:
  std::mutex mu_;
  std::vector<Posted> posted_;
  bool asleep_ = false;
  bool closed_ = false;
  Wake wake_;
};

// The Pending of a call.
std::unique_ptr<Pending> MakePending(std::shared_ptr<Mailbox> mailbox, CallId id);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_MAILBOX_H_
