#include "logs/kinds.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tidegate::logs {
namespace {

constexpr std::array<std::pair<std::string_view, Kind>, 20> kNames{{
    {"skip", Kind::kSkip},
    {"time", Kind::kTime},
    {"end_time", Kind::kEndTime},
    {"date", Kind::kDate},
    {"clock", Kind::kClock},
    {"key", Kind::kKey},
    {"word", Kind::kWord},
    {"encoded_key", Kind::kEncodedKey},
    {"address", Kind::kAddress},
    {"address_port", Kind::kAddressPort},
    {"last_address", Kind::kLastAddress},
    {"request", Kind::kRequest},
    {"path", Kind::kPath},
    {"status", Kind::kStatus},
    {"bytes", Kind::kBytes},
    {"seconds", Kind::kSeconds},
    {"milliseconds", Kind::kMilliseconds},
    {"microseconds", Kind::kMicroseconds},
    {"nanoseconds", Kind::kNanoseconds},
    {"time_taken", Kind::kTimeTaken},
}};

int ColumnNamed(const std::string& name, Schema* schema) {
  auto& keys = schema->keys;
  const auto found = std::find(keys.begin(), keys.end(), name);
  if (found != keys.end()) return static_cast<int>(found - keys.begin());
  keys.push_back(name);
  return static_cast<int>(keys.size()) - 1;
}

}  // namespace

std::optional<Kind> KindNamed(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

Target AddField(Kind kind, const std::string& name, Schema* schema) {
  Target target{.kind = kind};
  switch (kind) {
    case Kind::kKey:
    case Kind::kWord:
    case Kind::kEncodedKey:
    case Kind::kAddress:
    case Kind::kAddressPort:
    case Kind::kLastAddress:
    case Kind::kPath:
      target.column = ColumnNamed(name, schema);
      break;
    case Kind::kRequest:  // fills columns with fixed names
      schema->method = ColumnNamed("method", schema);
      schema->path = ColumnNamed("path", schema);
      if (name == "url") schema->host = ColumnNamed("host", schema);
      break;
    case Kind::kStatus:
      schema->has_status = true;
      break;
    case Kind::kBytes:
      schema->has_bytes = true;
      break;
    case Kind::kEndTime:
    case Kind::kSeconds:
    case Kind::kMilliseconds:
    case Kind::kMicroseconds:
    case Kind::kNanoseconds:
    case Kind::kTimeTaken:
      schema->has_duration = true;
      break;
    case Kind::kSkip:
    case Kind::kTime:
    case Kind::kDate:
    case Kind::kClock:
      break;
  }
  return target;
}

}  // namespace tidegate::logs
