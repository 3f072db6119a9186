// Dispatches requests to services, and makes the answers that the front gives itself.
#ifndef TIDEGATE_SERVER_FRONT_DISPATCH_H_
#define TIDEGATE_SERVER_FRONT_DISPATCH_H_

#include <string>
#include <string_view>

#include "server/call.h"
#include "server/front/session.h"

namespace tidegate::server {

// Resets `answer` to a problem (RFC 9457) that says why.
void Refuse(int http_status, std::string_view why, Answer* answer);
// Resets `answer` to the error of a gRPC call.
void RefuseGrpc(GrpcStatus status, std::string_view why, Answer* answer);

// Counts how long a call took that is answered now, if its service's calls are timed.
void CountTime(const CallId& id, Instant now, Counters* counters);
// Counts the calls of this turn that were answered at once. Their answers are sent together, so
// that one reading of the clock is the end of each.
void CountAnswered(Surroundings* around);

// Lets the service answer; returns false if it answers later.
bool Call(Service* service, const Request& request, CallId id, Surroundings* around,
          Answer* answer);
// Finds the service of an HTTP request too. Answers 404 or 405 without a service, and HEAD as GET.
bool Dispatch(const Request& request, CallId id, Surroundings* around, Answer* answer);

// Splits the target of a request at its "?".
void SetTarget(std::string_view target, Request* request);

// Whether the bytes may stand in the value of a header.
bool IsFieldValue(std::string_view value);
// Whether the bytes are a valid header name in lower case.
bool IsFieldName(std::string_view name);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_DISPATCH_H_
