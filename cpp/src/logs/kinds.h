// What the fields of a log are: how the text of each becomes a value.
#ifndef TIDEGATE_SRC_LOGS_KINDS_H_
#define TIDEGATE_SRC_LOGS_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidegate::logs {

enum class Kind : uint8_t {
  kSkip,
  kTime,
  kEndTime,  // the duration is what lies between kTime and this
  kDate,     // with kClock, of W3C logs
  kClock,
  kKey,          // text as it stands
  kWord,         // text without blanks, as an address is
  kEncodedKey,   // text with %20 for a blank
  kAddress,      // an address, with or without a port
  kLastAddress,  // the last one of a list, which the server itself has added
  kRequest,      // "GET /path HTTP/1.1": a method, a path and perhaps a host
  kPath,         // a path or a URL
  kStatus,
  kBytes,
  kSeconds,  // durations
  kMilliseconds,
  kMicroseconds,
  kNanoseconds,
};

// The name that Python gives to a kind, such as "last_address". None where there is no such kind.
std::optional<Kind> KindNamed(std::string_view name);

// One field of a log, and the column of keys that it fills. Numbers have columns of their own.
struct Target {
  Kind kind = Kind::kSkip;
  int column = -1;
};

// Which columns there are.
struct Schema {
  std::vector<std::string> keys;  // names of the columns of keys
  // What a request fills; -1 where nobody asked for it.
  int method = -1;
  int path = -1;
  int host = -1;
  bool has_status = false;
  bool has_bytes = false;
  bool has_duration = false;
  bool keep_query = false;
};

// Adds a field to the schema: what `kind` stands for, under `name` where it is a key.
Target AddField(Kind kind, const std::string& name, Schema* schema);

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_KINDS_H_
