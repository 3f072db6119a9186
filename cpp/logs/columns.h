// The columns that the lines of a log fill, one value a line in each.
#ifndef TIDEGATE_SRC_LOGS_COLUMNS_H_
#define TIDEGATE_SRC_LOGS_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "logs/dictionary.h"
#include "logs/record.h"

namespace tidegate::logs {

struct KeyColumn {
  Dictionary dictionary;
  std::vector<uint32_t> codes;
};

struct Columns {
  explicit Columns(const Schema& schema) : keys(schema.keys.size()) {}

  void Append(const Record& record) {
    times_ns.push_back(record.time_ns);
    if (record.schema().has_status) status.push_back(record.status);
    if (record.schema().has_bytes) bytes.push_back(record.bytes);
    if (record.schema().has_duration) durations_ns.push_back(record.duration_ns);
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i].codes.push_back(keys[i].dictionary.CodeOf(record.keys[i]));
    }
  }

  std::vector<int64_t> times_ns;
  std::vector<int64_t> durations_ns;
  std::vector<int64_t> bytes;
  std::vector<int32_t> status;
  std::vector<KeyColumn> keys;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_COLUMNS_H_
