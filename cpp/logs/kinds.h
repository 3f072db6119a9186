// The kinds of fields in a log: how the text of each becomes a value.
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
  kEndTime,  // the duration is the time from kTime to this
  kDate,     // with kClock the time in W3C logs
  kClock,
  kKey,          // any text, unchanged
  kWord,         // text without blanks, such as an address
  kEncodedKey,   // text with %20 for a blank
  kAddress,      // an address, with or without a port
  kAddressPort,  // an address and always a port: 2001:db8::1:80 is 2001:db8::1 here
  kLastAddress,  // the last address of a list, which the server itself has added
  kRequest,      // "GET /path HTTP/1.1": a method, a path and perhaps a host
  kPath,         // a path or a URL
  kStatus,
  kBytes,
  kSeconds,  // durations
  kMilliseconds,
  kMicroseconds,
  kNanoseconds,
  kTimeTaken,  // a duration of W3C logs, whose unit the parser finds for each file
};

// The kind of a name in Python, such as "last_address"; nothing if there is no such kind.
std::optional<Kind> KindNamed(std::string_view name);

// One field of a log, and the column of keys that it fills. Numbers have columns of their own.
struct Target {
  Kind kind = Kind::kSkip;
  int column = -1;
};

// The columns of a log.
struct Schema {
  std::vector<std::string> keys;  // names of the columns of keys
  // The columns that a kRequest fills; -1 for parts that nobody asked for.
  int method = -1;
  int path = -1;
  int host = -1;
  bool has_status = false;
  bool has_bytes = false;
  bool has_duration = false;
  bool keep_query = false;
};

// Adds the columns of a field of this kind to the schema, under `name` if it is a key.
Target AddField(Kind kind, const std::string& name, Schema* schema);

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_KINDS_H_
