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
constexpr std::string_view kSoftware = "#Software:";
constexpr std::string_view kIis = "Internet Information S";  // ervices, or Server

// Fields that only one program writes.
bool IsOfIis(std::string_view name) { return name == "sc-win32-status" || name == "sc-substatus"; }
bool IsOfCloudFront(std::string_view name) { return name == "x-edge-location"; }

class W3cParser final : public Parser {
 public:
  explicit W3cParser(std::vector<std::pair<std::string, Target>> fields)
      : known_(std::move(fields)) {}

  void Begin() override {
    is_iis_ = false;
    has_guess_ = has_fraction_ = false;
  }

  bool GuessesUnit() const override { return has_guess_ && !has_fraction_; }

  Outcome Parse(std::string_view line, Record* record) override {
    if (line[0] == '#') {
      if (line.substr(0, kFields.size()) == kFields) ReadFields(line.substr(kFields.size()));
      if (line.substr(0, kSoftware.size()) == kSoftware) {
        is_iis_ = line.find(kIis) != std::string_view::npos;
      }
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
      const std::string_view text = line.substr(at, end - at);
      if (!record->Set(InUnit(target), text)) return Outcome::kBad;
      if (target.kind == Kind::kTimeTaken && !is_unit_known()) NoteUnit(text);
      at = end + 1;
    }
    if (at <= line.size()) {
      record->Fail("as many fields as #Fields: has", line);
      return Outcome::kBad;
    }
    return record->Complete() ? Outcome::kRequest : Outcome::kBad;
  }

 private:
  bool is_unit_known() const { return is_iis_ || has_fields_of_iis_ || is_cloudfront_; }

  Target InUnit(const Target& target) const {
    if (target.kind != Kind::kTimeTaken) return target;
    const bool is_ms = is_iis_ || has_fields_of_iis_;
    return {.kind = is_ms ? Kind::kMilliseconds : Kind::kSeconds, .column = target.column};
  }

  // A fraction is of seconds: IIS writes whole milliseconds. 0 is the same in both.
  void NoteUnit(std::string_view text) {
    if (text.find('.') != std::string_view::npos) {
      has_fraction_ = true;
    } else if (text.find_first_of("123456789") != std::string_view::npos) {
      has_guess_ = true;
    }
  }

  void ReadFields(std::string_view names) {
    columns_.clear();
    has_fields_of_iis_ = is_cloudfront_ = false;
    size_t at = 0;
    while ((at = names.find_first_not_of(" \t", at)) != std::string_view::npos) {
      const size_t end = std::min(names.find_first_of(" \t", at), names.size());
      const std::string_view name = names.substr(at, end - at);
      has_fields_of_iis_ |= IsOfIis(name);
      is_cloudfront_ |= IsOfCloudFront(name);
      const auto known = std::find_if(known_.begin(), known_.end(),
                                      [&](const auto& field) { return field.first == name; });
      columns_.push_back(known == known_.end() ? Target{} : known->second);
      at = end;
    }
  }

  std::vector<std::pair<std::string, Target>> known_;
  std::vector<Target> columns_;
  bool is_iis_ = false;  // by #Software
  bool has_fields_of_iis_ = false;
  bool is_cloudfront_ = false;
  bool has_guess_ = false;
  bool has_fraction_ = false;
};

}  // namespace

std::unique_ptr<Parser> MakeW3cParser(std::vector<std::pair<std::string, Target>> fields) {
  return std::make_unique<W3cParser>(std::move(fields));
}

}  // namespace tidegate::logs
