#include "server/front/dispatch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/hosts.h"
#include "server/problem.h"

namespace tidegate::server {
namespace {

void Clear(Answer* answer) {
  answer->http_status = 200;
  answer->content_type = "application/json";
  answer->headers.clear();
  answer->body.clear();
  answer->grpc_status = GrpcStatus::kOk;
  answer->grpc_message.clear();
}

}  // namespace

void CountTime(const CallId& id, Instant now, Counters* counters) {
  if (id.timed_as == TimedAs::kNothing) return;
  counters->TimesOf(id.timed_as, id.protocol).Add(now - id.since);
}

void CountAnswered(Surroundings* around) {
  if (!around->has_answered) return;
  const Instant::duration time = MonotonicNow() - around->now;
  for (size_t service = 0; service < kTimedServices; ++service) {
    for (size_t protocol = 0; protocol < kProtocols; ++protocol) {
      const uint32_t calls = std::exchange(around->answered[service][protocol], 0);
      if (calls > 0) around->counters->times[service][protocol].Add(time, calls);
    }
  }
  around->has_answered = false;
}

void Refuse(int http_status, std::string_view why, Answer* answer) {
  Clear(answer);
  AnswerProblem({http_status, GrpcStatus::kOk, std::string(why)}, /*is_grpc=*/false, answer);
}

void RefuseGrpc(GrpcStatus status, std::string_view why, Answer* answer) {
  Clear(answer);
  answer->grpc_status = status;
  answer->grpc_message = std::string(why);
}

bool Call(Service* service, const Request& request, CallId id, Surroundings* around,
          Answer* answer) {
  around->handled = true;
  id.timed_as = service->timed_as();
  id.since = around->now;
  const auto later = [&] { return MakePending(around->mailbox, id); };
  Clear(answer);
  try {
    if (!service->Handle(request, answer, later)) return false;
    if (id.timed_as != TimedAs::kNothing) {
      ++around->answered[static_cast<size_t>(id.timed_as)][static_cast<size_t>(id.protocol)];
      around->has_answered = true;
    }
    return true;
  } catch (const std::exception&) {
    around->counters->errors_service.Add();
    if (request.is_grpc) {
      RefuseGrpc(GrpcStatus::kInternal, "The service failed", answer);
    } else {
      Refuse(500, "The service failed", answer);
    }
    return true;
  }
}

bool Dispatch(const Request& request, CallId id, Surroundings* around, Answer* answer) {
  const FrontOptions& options = around->options;
  if (options.checks_hosts && request.peer.is_tcp &&
      !AcceptsHost(request.header("host"), options.hosts)) {
    Refuse(421,
           absl::StrCat("the host is ", Quote(request.header("host")),
                        "; expected an address, localhost or one of checks.hosts"),
           answer);
    return true;
  }
  const Routes::Http found = around->routes->FindHttp(request.method, request.path);
  if (found.service != nullptr) return Call(found.service, request, id, around, answer);
  if (request.method == "HEAD") {
    // The session leaves out the body.
    Request get = request;
    get.method = "GET";
    if (Service* service = around->routes->FindHttp(get.method, get.path).service) {
      return Call(service, get, id, around, answer);
    }
  }
  if (!found.path_exists) {
    Refuse(404, absl::StrCat("the path is ", Quote(request.path), "; expected one of this service"),
           answer);
    return true;
  }
  std::string allowed = around->routes->MethodsOf(request.path);
  Refuse(405,
         absl::StrCat("the method is ", Quote(request.method), "; expected ", allowed,
                      " for this path"),
         answer);
  answer->headers.emplace_back("allow", std::move(allowed));
  return true;
}

void SetTarget(std::string_view target, Request* request) {
  const size_t mark = target.find('?');
  request->path = target.substr(0, mark);
  request->query = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
}

bool IsFieldValue(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
}

bool IsFieldName(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

}  // namespace tidegate::server
