// Where a record of CSV ends: at a newline that is not within quotes. A quote opens where a field
// begins, and nowhere else (RFC 4180).
#ifndef TIDEGATE_SRC_LOGS_CSV_ENDS_H_
#define TIDEGATE_SRC_LOGS_CSV_ENDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidegate::logs {

class CsvEnds {
 public:
  explicit CsvEnds(char delimiter) : delimiter_(delimiter) {}

  size_t Find(std::string_view text) {
    size_t at = 0;
    size_t newline = text.find('\n');
    while (at < text.size()) {
      const size_t quote = text.find('"', at);
      if (quoted_) {
        const size_t end = std::min(quote, text.size());
        inner_newlines_ += std::count(text.begin() + static_cast<ptrdiff_t>(at),
                                      text.begin() + static_cast<ptrdiff_t>(end), '\n');
        if (quote == std::string_view::npos) return quote;
        at = quote + 1;
        quoted_ = false;
        at_start_ = true;  // the second of two quotes in a row opens the field again
        continue;
      }
      if (newline < at) newline = text.find('\n', at);
      if (newline <= quote) {  // both are npos if the text has neither
        at_start_ = text.back() == delimiter_;
        return newline;
      }
      quoted_ = quote == at ? at_start_ : text[quote - 1] == delimiter_;
      at_start_ = false;
      at = quote + 1;
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
  bool at_start_ = true;  // a quote here would open a field
  int64_t inner_newlines_ = 0;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_CSV_ENDS_H_
