// Where a record of CSV ends: at a newline that is not within quotes. A quote opens where a field
// begins, and nowhere else (RFC 4180).
#ifndef TIDEGATE_SRC_LOGS_CSV_ENDS_H_
#define TIDEGATE_SRC_LOGS_CSV_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidegate::logs {

class CsvEnds {
 public:
  explicit CsvEnds(char delimiter) : delimiter_(delimiter) {}

  size_t Find(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (quoted_) {
        if (c == '"') quoted_ = false;  // of two in a row, the second one opens again
        if (c == '\n') ++inner_newlines_;
        at_start_ = c == '"';
      } else if (c == '"') {
        quoted_ = at_start_;
      } else if (c == '\n') {
        return i;
      } else {
        at_start_ = c == delimiter_;
      }
    }
    return std::string_view::npos;
  }
  int64_t InnerNewlines() const { return inner_newlines_; }
  void Reset() {
    quoted_ = false;
    at_start_ = true;
    inner_newlines_ = 0;
  }

 private:
  char delimiter_;
  bool quoted_ = false;
  bool at_start_ = true;  // a quote opens here
  int64_t inner_newlines_ = 0;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_CSV_ENDS_H_
