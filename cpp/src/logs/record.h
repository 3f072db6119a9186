// One request of a log, as its line is read, and how the text of a field goes into it.
#ifndef TIDEGATE_SRC_LOGS_RECORD_H_
#define TIDEGATE_SRC_LOGS_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "logs/kinds.h"
#include "logs/timestamps.h"

namespace tidegate::logs {

// What stands where a line has no value, as servers write it themselves.
inline constexpr std::string_view kMissing = "-";

// Why a line is none of the format: what was expected, and what stood there.
struct Problem {
  const char* expected = nullptr;
  std::string_view got;
};

class Record {
 public:
  Record(Schema schema, TimeUnit unit);

  // Forgets the line before.
  void Clear();
  // True if the field was read; else problem() tells.
  bool Set(const Target& target, std::string_view text);
  bool Set(const Target& target, int64_t number);
  bool Set(const Target& target, double number);
  // To be called when all fields are set. False where there is no time.
  bool Complete();
  bool Fail(const char* expected, std::string_view got) {
    problem_ = {expected, got};
    return false;
  }

  const Problem& problem() const { return problem_; }
  const Schema& schema() const { return schema_; }
  const TimeReader& times() const { return times_; }
  // A place for the text of column `column` where it is not in the line as it stands.
  std::string& Scratch(int column) { return scratch_[static_cast<size_t>(column)]; }

  int64_t time_ns = 0;
  int64_t duration_ns = -1;  // -1 where the line has none
  int64_t bytes = 0;
  int32_t status = 0;  // 0 where the line has none
  std::vector<std::string_view> keys;

 private:
  bool SetKey(int column, std::string_view text);
  bool SetRequest(std::string_view text);
  bool SetUrl(int path_column, int host_column, std::string_view url);
  bool SetDuration(std::string_view text, int scale);
  bool SetTime(const char* expected, std::string_view text);

  Schema schema_;
  TimeReader times_;
  Problem problem_;
  std::vector<std::string> scratch_;
  std::string number_;  // the text of a number
  std::string_view date_;
  std::string_view clock_;
  int64_t end_ns_ = 0;
  bool has_time_ = false;
  bool has_end_ = false;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_RECORD_H_
