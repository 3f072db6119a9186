#include "server/envoy/request_caller.h"

#include <algorithm>

#include "server/checks/recorder.h"

namespace tidegate::server::envoy {

namespace {

constexpr std::string_view kAddressKey = "remote_address";

}  // namespace

Caller CallerOf(const RateLimitRequest& request, std::string_view user_key) {
  Caller caller;
  const auto take = [](const Entry& entry, std::string_view* text) {
    if (text->empty()) *text = entry.value;
  };
  for (const Descriptor& descriptor : request.descriptors) {
    for (const Entry& entry : descriptor.entries) {
      if (entry.key == user_key) {
        take(entry, &caller.user);
      } else if (entry.key == kAddressKey) {
        take(entry, &caller.ip);
      } else if (entry.key == "path" || entry.key == "endpoint") {
        take(entry, &caller.endpoint);
      }
    }
  }
  if (caller.endpoint.empty()) caller.endpoint = request.domain;
  return caller;
}

bool Names(const Descriptor& descriptor, std::string_view user_key, const Caller& caller) {
  const std::string_view key = caller.user.empty() ? kAddressKey : user_key;
  const std::string_view value = caller.user.empty() ? caller.ip : caller.user;
  return std::any_of(descriptor.entries.begin(), descriptor.entries.end(),
                     [&](const Entry& entry) { return entry.key == key && entry.value == value; });
}

std::string JoinedEntries(const RateLimitRequest& request) {
  std::string joined = "descriptor:";
  if (request.descriptors.empty()) return joined;
  const auto& entries = request.descriptors[0].entries;
  for (size_t i = 0; i < entries.size() && joined.size() < Recorder::kMostText; ++i) {
    if (i > 0) joined += ',';
    joined.append(entries[i].key.substr(0, Recorder::kMostText)).append("=");
    joined += entries[i].value.substr(0, Recorder::kMostText);
  }
  return joined;
}

}  // namespace tidegate::server::envoy
