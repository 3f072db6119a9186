// A session without a socket, and services for it.
#ifndef TIDEGATE_TESTS_SESSION_TESTING_H_
#define TIDEGATE_TESTS_SESSION_TESTING_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/front/session.h"

namespace tidegate::server {

// Answers with the body of the request, or keeps the call for later.
class TestService final : public RoutedService {
 public:
  std::vector<Route> routes() const override {
    return {{"POST", "/echo"},  {"GET", "/echo"},  {"POST", "/later"},
            {"GET", "/files/"}, {"", "/t.T/Echo"}, {"", "/t.T/Later"}};
  }
  bool Handle(const Request& request, Answer* answer, const Later& later) override {
    ++calls;
    path = request.path;
    if (request.path.ends_with("ater")) {
      pending.push_back(later());
      return false;
    }
    answer->body = request.body;
    return true;
  }

  bool Refuses(const Request& request, Answer* answer) override {
    if (request.header("authorization") != "none") return false;
    answer->grpc_status = GrpcStatus::kUnauthenticated;
    return true;
  }

  int calls = 0;
  std::string path;
  std::vector<std::unique_ptr<Pending>> pending;
};

// Bounds that a few bytes reach.
inline FrontOptions NarrowBounds() {
  FrontOptions options;
  options.header_bytes = 512;
  options.header_count = 8;
  options.body_bytes = 256;
  return options;
}

// The surroundings that a loop gives its sessions.
struct TestSetting {
  explicit TestSetting(const FrontOptions& options = {}) {
    around.options = options;
    around.routes = &routes;
    around.counters = &counters;
    around.now = Instant() + seconds(1000);
    around.date = "Thu, 01 Jan 1970 00:16:40 GMT";
    (void)routes.Add(service);
  }

  std::string Output(Session* session) {
    std::string out;
    session->Fill(&out);
    return out;
  }
  // Hands the posted answers to the session.
  void Deliver(Session* session) {
    std::vector<Posted> posted;
    around.mailbox->Take(&posted);
    for (Posted& one : posted) session->Deliver(std::move(one));
  }
  void Pass(Session* session, Instant::duration time) {
    around.now += time;
    session->OnTime();
  }

  std::shared_ptr<TestService> service = std::make_shared<TestService>();
  Counters counters;
  Routes routes;
  Surroundings around;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_TESTS_SESSION_TESTING_H_
