// Replays a log with clients that react to refusals by trying again.
//
//   ClientReplay clients({.reaction = ClientBehaviour::Reaction::kObey});
//   clients.Run(requests, 0, requests.size, hit, outcomes);
//   while (!clients.Finish(1'000'000, hit, outcomes)) {}
//
// Each request of a log is a client's first attempt. The attempts that follow a refusal reach the
// limiter among the other requests of the log, each at its own instant.
#ifndef TIDEGATE_CLIENTS_H_
#define TIDEGATE_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tidegate/decision.h"
#include "tidegate/replayer.h"

namespace tidegate {

// What a client does after a refusal.
struct ClientBehaviour {
  enum class Reaction : uint8_t {
    kNever,    // it does not try again
    kObey,     // it waits as long as Retry-After says
    kBackOff,  // it waits exponentially longer after each refusal
    kHammer,   // it waits a fixed pause
  };
  Reaction reaction = Reaction::kNever;
  uint32_t most_attempts = 10;  // the first one included; from 1 up
  int64_t pause_ns = 0;         // each pause of kHammer; the first pause of kBackOff
  double factor = 2;            // by which the pauses of kBackOff grow
  int64_t most_pause_ns = 0;    // the longest pause of kBackOff
  // From 0 to 1: the random part of a wait. kBackOff and kHammer shorten a wait by up to this part
  // of it; kObey lengthens it.
  double jitter = 0;
  uint64_t seed = 0;
  bool whole_seconds = false;  // kObey waits whole seconds, as Retry-After gives them

  // How long the client of the request at `at` waits after refusal number `refusals`, counted
  // from 1. Negative if the client does not try again.
  int64_t WaitNs(const Decision& decision, size_t at, uint32_t refusals) const;
};

// What happened to each request, at its position. A null column is not filled.
struct ClientOutcomes {
  AnswerColumns last;            // the answer to the last attempt
  uint32_t* attempts = nullptr;  // the number of attempts
  int64_t* waited_ns = nullptr;  // from the first attempt to the last
};

// Thread-compatible.
class ClientReplay {
 public:
  // Decides the request at the position `at` at the instant `now_ns`. Sets `binding` to the number
  // of the limit or rule that binds.
  using Hit = absl::FunctionRef<Decision(size_t at, int64_t now_ns, uint32_t* binding)>;

  explicit ClientReplay(const ClientBehaviour& behaviour) : behaviour_(behaviour) {}

  // Replays the requests number `from` to `to` - 1, and before each the attempts that are due by
  // then. Attempts of one instant are made in the order of their requests.
  void Run(const RequestColumns& requests, size_t from, size_t to, Hit hit,
           const ClientOutcomes& outcomes);
  // Makes at most `most` of the attempts that are left. Returns whether none is left.
  bool Finish(const RequestColumns& requests, size_t most, Hit hit, const ClientOutcomes& outcomes);

  // The attempts that reached the limiter.
  int64_t attempts() const { return attempts_; }
  int64_t refused_attempts() const { return refused_attempts_; }

 private:
  struct Attempt {
    int64_t at_ns;
    size_t number;  // of its request, in the order of times
    size_t at;      // its position
    uint32_t refusals;

    friend bool operator>(const Attempt& a, const Attempt& b) {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.number > b.number;
    }
  };

  void Take(const RequestColumns& requests, const Attempt& attempt, Hit hit,
            const ClientOutcomes& outcomes);
  Attempt PopNext();

  const ClientBehaviour behaviour_;
  std::priority_queue<Attempt, std::vector<Attempt>, std::greater<>> waiting_;
  int64_t attempts_ = 0;
  int64_t refused_attempts_ = 0;
};

}  // namespace tidegate

#endif  // TIDEGATE_CLIENTS_H_
