// W3C's extended log file format, which CloudFront and IIS write: #Fields names the columns.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/parser.h"

namespace tidegate::logs {
namespace {

constexpr std::string_view kFields = "#Fields:";

class W3cParser final : public Parser {
 public:
  explicit W3cParser(std::vector<std::pair<std::string, Target>> fields)
      : known_(std::move(fields)) {}

  Outcome Parse(std::string_view line, Record* record) override {
    if (line[0] == '#') {
      if (line.substr(0, kFields.size()) == kFields) ReadFields(line.substr(kFields.size()));
      return Outcome::kNoRequest;
    }
    if (columns_.empty()) {
      record->Fail("a line that begins with #Fields: before this one", line);
      return Outcome::kBad;
    }
    // CloudFront separates by tabs, IIS by blanks.
    const char delimiter = line.find('\t') != std::string_view::npos ? '\t' : ' ';
    size_t at = 0;
    for (const Target& target : columns_) {
      if (at > line.size()) {
        record->Fail("as many fields as #Fields: has", line);
        return Outcome::kBad;
      }
      const size_t end = std::min(line.find(delimiter, at), line.size());
      if (!record->Set(target, line.substr(at, end - at))) return Outcome::kBad;
      at = end + 1;
    }
    if (at <= line.size()) {
      record->Fail("as many fields as #Fields: has", line);
      return Outcome::kBad;
    }
    return record->Complete() ? Outcome::kRequest : Outcome::kBad;
  }

 private:
  void ReadFields(std::string_view names) {
    columns_.clear();
    size_t at = 0;
    while ((at = names.find_first_not_of(" \t", at)) != std::string_view::npos) {
      const size_t end = std::min(names.find_first_of(" \t", at), names.size());
      const std::string_view name = names.substr(at, end - at);
      const auto known = std::find_if(known_.begin(), known_.end(),
                                      [&](const auto& field) { return field.first == name; });
      columns_.push_back(known == known_.end() ? Target{} : known->second);
      at = end;
    }
  }

  std::vector<std::pair<std::string, Target>> known_;
  std::vector<Target> columns_;
};

}  // namespace

std::unique_ptr<Parser> MakeW3cParser(std::vector<std::pair<std::string, Target>> fields) {
  return std::make_unique<W3cParser>(std::move(fields));
}

}  // namespace tidegate::logs
