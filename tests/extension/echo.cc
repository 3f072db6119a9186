// service_testing: services that answer with the body of the request.
#include "echo.h"

#include <pybind11/stl.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "limiter/gil.h"
#include "server/front/routes.h"

namespace tidegate::python {

namespace py = pybind11;

namespace {

using server::Answer;
using server::GrpcStatus;
using server::Later;
using server::Pending;
using server::Request;
using server::Route;
using server::RoutedService;

Answer Echo(const Request& request) {
  Answer answer;
  answer.content_type = "application/octet-stream";
  answer.body = request.body;
  answer.headers.emplace_back("x-peer", request.peer.address);
  if (const auto size = request.header("x-answer-size"); !size.empty()) {
    answer.body.assign(std::stoul(std::string(size)), 'x');
  }
  if (const auto message = request.header("x-fail"); !message.empty()) {
    answer.http_status = 400;
    answer.grpc_status = GrpcStatus::kInvalidArgument;
    answer.grpc_message = message;
  }
  return answer;
}

// Answers at once.
class EchoService final : public RoutedService {
 public:
  std::vector<Route> routes() const override {
    return {
        {"POST", "/echo"}, {"GET", "/echo"}, {"GET", "/echoes/"}, {"", "/tidegate.test.Echo/Echo"}};
  }
  bool Handle(const Request& request, Answer* answer, const Later& /*later*/) override {
    *answer = Echo(request);
    return true;
  }
};

// Answers from its own thread, or, while it holds calls, from the thread that releases them.
class LaterService final : public RoutedService {
 public:
  explicit LaterService(bool holds) : holds_(holds), thread_([this] { Run(); }) {}
  ~LaterService() override {
    {
      const std::lock_guard lock(mu_);
      ending_ = true;
    }
    came_.notify_all();
    thread_.join();
  }

  std::vector<Route> routes() const override {
    return {{"POST", "/later"}, {"", "/tidegate.test.Later/Later"}};
  }
  bool Handle(const Request& request, Answer* /*answer*/, const Later& later) override {
    const std::lock_guard lock(mu_);
    calls_.push_back({later(), Echo(request)});
    return false;
  }
  void Flush() override { came_.notify_all(); }

  size_t waiting() const {
    const std::lock_guard lock(mu_);
    return calls_.size();
  }
  void Release() {
    std::unique_lock lock(mu_);
    SendAll(&lock);
  }
  void Drop() {
    const std::lock_guard lock(mu_);
    calls_.clear();
  }

 private:
  struct Call {
    std::unique_ptr<Pending> pending;
    Answer answer;
  };

  void Run() {
    std::unique_lock lock(mu_);
    while (!ending_) {
      came_.wait(lock, [this] { return ending_ || (!holds_ && !calls_.empty()); });
      if (!ending_) SendAll(&lock);
    }
  }

  void SendAll(std::unique_lock<std::mutex>* lock) {
    std::deque<Call> calls;
    calls.swap(calls_);
    lock->unlock();
    for (Call& call : calls) call.pending->Send(std::move(call.answer));
    calls.clear();
    lock->lock();
  }

  const bool holds_;
  mutable std::mutex mu_;
  std::condition_variable came_;
  std::deque<Call> calls_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

void RegisterEcho(py::module_& m) {
  py::class_<EchoService, RoutedService, std::shared_ptr<EchoService>>(m, "EchoService")
      .def(py::init<>());
  py::class_<LaterService, RoutedService, std::shared_ptr<LaterService>>(m, "LaterService")
      .def(py::init<bool>(), py::kw_only(), py::arg("holds") = false)
      .def_property_readonly("waiting", &LaterService::waiting)
      .def("release", [](LaterService& service) { WithoutGil([&] { service.Release(); }); })
      .def("drop", [](LaterService& service) { WithoutGil([&] { service.Drop(); }); });
}

}  // namespace tidegate::python
