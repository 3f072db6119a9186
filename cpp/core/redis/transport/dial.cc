#include "redis/transport/dial.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "redis/protocol/error_reply.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/connect.h"
#include "redis/transport/sentinel.h"

namespace tidegate::redis {
namespace {

// Agrees on TLS, authenticates, selects the database and names the connection. FailedPrecondition
// if the server answered, and refused.
absl::Status Greet(Stream& stream, const RedisOptions& options, Instant deadline) {
  if (options.tls.has_value()) {
    if (absl::Status s = stream.StartTls(options, options.host, deadline); !s.ok()) return s;
  }
  std::vector<std::vector<std::string>> commands;
  if (!options.password.empty() || !options.username.empty()) {
    commands.push_back({"AUTH"});
    if (!options.username.empty()) commands.back().push_back(options.username);
    commands.back().push_back(options.password);
  }
  if (options.database != 0) commands.push_back({"SELECT", std::to_string(options.database)});
  if (!options.client_name.empty()) {
    commands.push_back({"CLIENT", "SETNAME", options.client_name});
  }
  const auto replies = Exchange(stream, commands, deadline);
  if (!replies.ok()) return replies.status();
  for (size_t i = 0; i < commands.size(); ++i) {
    const redisReply& reply = *(*replies)[i];
    if (reply.type == REDIS_REPLY_ERROR && RefusesConnection({reply.str, reply.len})) {
      return absl::FailedPreconditionError(
          absl::StrCat("the connection was refused: ", std::string(reply.str, reply.len)));
    }
    // The name is optional: an ACL may forbid it.
    if (reply.type == REDIS_REPLY_ERROR && commands[i][0] != "CLIENT") {
      return absl::FailedPreconditionError(
          absl::StrCat(commands[i][0], " was refused: ", std::string(reply.str, reply.len)));
    }
  }
  return absl::OkStatus();
}

// The sentinels' answer may still be a replica after a failover.
absl::StatusOr<std::unique_ptr<Stream>> DialMaster(RedisOptions options, Instant deadline) {
  const absl::StatusOr<RedisAddress> master = FindMaster(options, deadline);
  if (!master.ok()) return master.status();
  options.topology = Topology::kStandalone;
  options.host = master->host;
  options.port = master->port;
  absl::StatusOr<std::unique_ptr<Stream>> stream = Dial(options, deadline);
  if (!stream.ok()) return stream;
  const auto role = Exchange(**stream, {{"ROLE"}}, deadline);
  if (!role.ok()) return role.status();
  const redisReply& reply = *role->front();
  if (reply.type == REDIS_REPLY_ARRAY && reply.elements > 0 &&
      reply.element[0]->type == REDIS_REPLY_STRING &&
      std::string_view(reply.element[0]->str, reply.element[0]->len) != "master") {
    return absl::UnavailableError(
        absl::StrCat(options.host, ":", options.port, " is no master yet"));
  }
  return stream;
}

}  // namespace

absl::StatusOr<std::vector<Reply>> Exchange(Stream& stream,
                                            const std::vector<std::vector<std::string>>& commands,
                                            Instant deadline) {
  std::string request;
  for (const auto& command : commands) request += Format(command);
  for (size_t done = 0; done < request.size();) {
    const ssize_t n = stream.Write(request.data() + done, request.size() - done);
    if (n < 0) return absl::UnavailableError("the connection broke while writing");
    if (n == 0 && Poll(stream.fd(), POLLOUT, deadline) == 0) {
      return absl::UnavailableError("no answer in time");
    }
    done += static_cast<size_t>(n);
  }
  std::vector<Reply> replies;
  while (replies.size() < commands.size()) {
    if (Poll(stream.fd(), POLLIN, deadline) == 0) {
      return absl::UnavailableError("no answer in time");
    }
    if (const char* broken = stream.Read(&replies)) {
      // The server may have sent the reason.
      const bool has_reason = !replies.empty() && replies.back()->type == REDIS_REPLY_ERROR;
      return absl::UnavailableError(has_reason ? replies.back()->str : broken);
    }
  }
  return replies;
}

absl::StatusOr<RedisOptions> WithPassword(const RedisOptions& options) {
  RedisOptions with = options;
  if (options.password_source) {
    absl::StatusOr<std::string> password = options.password_source();
    if (!password.ok()) return absl::CancelledError(password.status().message());
    with.password = *std::move(password);
    with.password_source = nullptr;
  }
  return with;
}

absl::StatusOr<std::unique_ptr<Stream>> Dial(const RedisOptions& options, Instant deadline) {
  if (options.topology == Topology::kSentinel) return DialMaster(options, deadline);
  absl::StatusOr<std::vector<Address>> addresses = AddressesOf(options);
  if (!addresses.ok()) return addresses.status();
  return DialFirst(options, *std::move(addresses), deadline);
}

absl::StatusOr<std::unique_ptr<Stream>> DialFirst(const RedisOptions& options,
                                                  std::vector<Address> addresses,
                                                  Instant deadline) {
  const absl::Duration pause =
      std::clamp(options.timeout / 4, absl::Milliseconds(10), absl::Milliseconds(250));
  absl::Status failure;
  while (!addresses.empty()) {
    // A server that accepts and then does not answer must leave time for the others.
    const auto left = static_cast<int64_t>(addresses.size());
    absl::StatusOr<std::unique_ptr<Stream>> stream = ConnectFirst(&addresses, pause, deadline);
    if (!stream.ok()) return failure.ok() ? stream.status() : failure;
    const Instant now = MonotonicNow();
    const absl::Status greeted = Greet(**stream, options, now + (deadline - now) / left);
    if (greeted.ok()) return stream;
    if (failure.ok()) failure = absl::UnavailableError(greeted.message());
    if (absl::IsFailedPrecondition(greeted)) break;
  }
  return failure;
}

}  // namespace tidegate::redis
