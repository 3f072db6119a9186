#include "direct_call.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "limiter/gil.h"

namespace tidegate::python {

namespace py = pybind11;

namespace {

// Receives the answer of a call. The caller may have stopped waiting by then.
class Mailbox {
 public:
  void Put(server::Answer answer) {
    const absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  std::optional<server::Answer> Wait(absl::Duration most) {
    const absl::MutexLock lock(&mutex_);
    const auto has_come = [this] { return answer_.has_value(); };
    mutex_.AwaitWithTimeout(absl::Condition(&has_come), most);
    return std::move(answer_);
  }

 private:
  absl::Mutex mutex_;
  std::optional<server::Answer> answer_;
};

class PendingInMailbox final : public server::Pending {
 public:
  explicit PendingInMailbox(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}
  void Send(server::Answer answer) override { mailbox_->Put(std::move(answer)); }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
};

std::optional<server::Answer> Ask(server::RoutedService& service, const server::Request& request) {
  const auto mailbox = std::make_shared<Mailbox>();
  server::Answer answer;
  const bool is_answered =
      service.Handle(request, &answer, [&] { return std::make_unique<PendingInMailbox>(mailbox); });
  service.Flush();
  if (is_answered) return answer;
  return mailbox->Wait(absl::Seconds(10));
}

}  // namespace

py::tuple CallDirectly(server::RoutedService& service, const std::string& method,
                       const std::string& target,
                       const std::vector<std::pair<std::string, std::string>>& headers,
                       const py::bytes& body, bool is_grpc) {
  std::vector<server::Header> views;
  views.reserve(headers.size());
  for (const auto& [name, value] : headers) views.push_back({name, value});
  const std::string_view whole = target;
  const size_t mark = whole.find('?');
  server::Request request;
  request.method = method;
  request.path = whole.substr(0, mark);
  if (mark != std::string_view::npos) request.query = whole.substr(mark + 1);
  request.headers = views;
  request.body = std::string_view(body);
  request.peer = {"test"};
  request.is_grpc = is_grpc;
  const auto answer = WithoutGil([&] { return Ask(service, request); });
  if (!answer.has_value()) {
    PyErr_SetString(PyExc_TimeoutError, "the service did not answer within 10 s");
    throw py::error_already_set();
  }
  if (is_grpc) {
    return py::make_tuple(static_cast<int>(answer->grpc_status), answer->grpc_message,
                          py::bytes(answer->body));
  }
  auto all = answer->headers;
  all.emplace_back("content-type", answer->content_type);
  return py::make_tuple(answer->http_status, all, py::bytes(answer->body));
}

}  // namespace tidegate::python
