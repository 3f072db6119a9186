// Comma-separated values, by RFC 4180.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/parser.h"

namespace tidegate::logs {
namespace {

class CsvParser final : public Parser {
 public:
  CsvParser(char delimiter, std::string header, std::vector<Target> fields)
      : delimiter_(delimiter),
        header_(std::move(header)),
        fields_(std::move(fields)),
        scratch_(fields_.size()) {}

  void Begin() override { at_start_ = true; }

  Outcome Parse(std::string_view line, Record* record) override {
    const bool first = std::exchange(at_start_, false);
    if (first && !header_.empty() && line == header_) return Outcome::kNoRequest;
    size_t at = 0;
    for (size_t i = 0; i < fields_.size(); ++i) {
      std::string_view text;
      if (!Take(line, &at, i, &text, record)) return Outcome::kBad;
      if (!record->Set(fields_[i], text)) return Outcome::kBad;
      const bool ended = at > line.size();
      if (ended != (i + 1 == fields_.size())) {
        record->Fail(ended ? "as many fields as the header" : "no more fields than the header",
                     line);
        return Outcome::kBad;
      }
    }
    return record->Complete() ? Outcome::kRequest : Outcome::kBad;
  }

 private:
  // Takes the field that begins at `at`, and moves `at` behind its delimiter; after the last field
  // that is beyond the end of the line.
  bool Take(std::string_view line, size_t* at, size_t field, std::string_view* text,
            Record* record) {
    if (*at >= line.size() || line[*at] != '"') {
      const size_t end = std::min(line.find(delimiter_, *at), line.size());
      *text = line.substr(*at, end - *at);
      *at = end + 1;
      return true;
    }
    const size_t begin = *at + 1;
    size_t close = line.find('"', begin);
    bool doubled = false;
    while (close != std::string_view::npos && line.substr(close + 1, 1) == "\"") {
      doubled = true;
      close = line.find('"', close + 2);
    }
    if (close == std::string_view::npos) return record->Fail("a closing quote", line);
    *text = line.substr(begin, close - begin);
    if (doubled) *text = WithoutDoubled(*text, &scratch_[field]);
    *at = close + 1;
    if (*at < line.size() && line[*at] != delimiter_) {
      return record->Fail("a delimiter after the quote", line.substr(*at));
    }
    ++*at;
    return true;
  }

  static std::string_view WithoutDoubled(std::string_view text, std::string* into) {
    into->clear();
    for (size_t i = 0; i < text.size(); ++i) {
      into->push_back(text[i]);
      if (text[i] == '"') ++i;
    }
    return *into;
  }

  char delimiter_;
  std::string header_;
  std::vector<Target> fields_;
  std::vector<std::string> scratch_;
  bool at_start_ = true;
};

}  // namespace

std::unique_ptr<Parser> MakeCsvParser(char delimiter, std::string header,
                                      std::vector<Target> fields) {
  return std::make_unique<CsvParser>(delimiter, std::move(header), std::move(fields));
}

}  // namespace tidegate::logs
