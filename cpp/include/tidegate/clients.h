// Replay of clients that react: whoever is refused comes again.
//
//   ClientReplay clients({.reaction = ClientBehaviour::Reaction::kObey});
//   clients.Run(requests, 0, requests.size, hit, outcomes);
//   while (!clients.Finish(1'000'000, hit, outcomes)) {}
//
// Each request of a log is a client's first attempt. The attempts that follow a refusal meet the
// limiter among the other requests of the log, at the instants at which they come.
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

// What a client does that was refused.
struct ClientBehaviour {
  enum class Reaction : uint8_t {
    kNever,    // it goes away
    kObey,     // it waits as long as Retry-After says
    kBackOff,  // it waits exponentially longer after each refusal
    kHammer,   // it waits a fixed pause
  };
  Reaction reaction = Reaction::kNever;
  uint32_t most_attempts = 10;  // the first one included; from 1 up
  int64_t pause_ns = 0;         // of kHammer; the first one of kBackOff
  double factor = 2;            // by which pauses grow
  int64_t most_pause_ns = 0;    // of kBackOff
  // From 0 to 1: the random part of a wait. Of kBackOff and kHammer a wait is shorter by up to
  // this part of it, of kObey longer.
  double jitter = 0;
  uint64_t seed = 0;
  bool whole_seconds = false;  // of kObey: as the header field has it

  // How long the client of the request at `at` waits after refusal number `refusals`, counted
  // from 1. Negative where it does not come again.
  int64_t WaitNs(const Decision& decision, size_t at, uint32_t refusals) const;
};

// What became of each request, at its position. Null where it is not wanted.
struct ClientOutcomes {
  AnswerColumns last;            // the answer to the last attempt
  uint32_t* attempts = nullptr;  // how many there were
  int64_t* waited_ns = nullptr;  // from the first attempt to the last
};

// Thread-compatible.
class ClientReplay {
 public:
  // Decides about the request at a position, at an instant. Sets the number of what binds.
  using Hit = absl::FunctionRef<Decision(size_t at, int64_t now_ns, uint32_t* binding)>;

  explicit ClientReplay(const ClientBehaviour& behaviour) : behaviour_(behaviour) {}

  // Takes the requests number `from` to `to` - 1, and before each the attempts that are due by
  // then: of one instant, those of the earlier requests first.
  void Run(const RequestColumns& requests, size_t from, size_t to, Hit hit,
           const ClientOutcomes& outcomes);
  // Takes at most `most` of the attempts that are left. True where none is left then.
  bool Finish(const RequestColumns& requests, size_t most, Hit hit, const ClientOutcomes& outcomes);

  // What reached the limiter.
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
