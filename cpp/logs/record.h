// One request of a log, which the fields of its line fill.
#ifndef TIDEGATE_SRC_LOGS_RECORD_H_
#define TIDEGATE_SRC_LOGS_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "logs/kinds.h"
#include "logs/timestamps.h"

namespace tidegate::logs {

// The text that servers write in place of a missing value.
inline constexpr std::string_view kMissing = "-";

// Why a line does not have the format: what was expected, and the text that stood there.
struct Problem {
  const char* expected = nullptr;
  std::string_view got;
};

class Record {
 public:
  Record(Schema schema, TimeUnit unit);

  // Forgets the previous line.
  void Clear();
  // Returns whether the field was read; if not, problem() is the reason.
  bool Set(const Target& target, std::string_view text);
  bool Set(const Target& target, int64_t number);
  bool Set(const Target& target, double number);
  // Call it when all fields are set. Returns false if none of them was the time.
  bool Complete();
  bool Fail(const char* expected, std::string_view got) {
    problem_ = {expected, got};
    return false;
  }

  const Problem& problem() const { return problem_; }
  const Schema& schema() const { return schema_; }
  const TimeReader& times() const { return times_; }
  // Memory for the text of a column that differs from the text in the line.
  std::string& Scratch(int column) { return scratch_[static_cast<size_t>(column)]; }

  int64_t time_ns = 0;
  int64_t duration_ns = -1;  // -1 if the line has none
  int64_t bytes = 0;
  int32_t status = 0;  // 0 if the line has none
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
