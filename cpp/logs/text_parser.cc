// Formats of fields with fixed text between them, such as those of nginx, Apache, Envoy and AWS.
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/numbers.h"
#include "logs/parser.h"

namespace tidegate::logs {
namespace {

// Replaces the escapes of nginx (\x22) and Apache (\" and \n). Other text stays as it is.
void Unescape(std::string_view text, std::string* into) {
  into->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      into->push_back(text[i]);
      continue;
    }
    const char next = text[i + 1];
    const int high = i + 3 < text.size() ? HexDigit(text[i + 2]) : -1;
    const int low = i + 3 < text.size() ? HexDigit(text[i + 3]) : -1;
    if (next == 'x' && high >= 0 && low >= 0) {
      into->push_back(static_cast<char>(high * 16 + low));
      i += 3;
      continue;
    }
    constexpr std::string_view kLetters = "\"\\nrtbvf";
    constexpr std::string_view kMeant = "\"\\\n\r\t\b\v\f";
    const size_t letter = kLetters.find(next);
    if (letter == std::string_view::npos) {
      into->push_back('\\');
      continue;
    }
    into->push_back(kMeant[letter]);
    ++i;
  }
}

class TextParser final : public Parser {
 public:
  TextParser(std::string start, std::vector<TextField> fields, bool open_end)
      : start_(std::move(start)), fields_(std::move(fields)), open_end_(open_end) {
    expected_start_ = Expected(start_);
    for (const TextField& field : fields_) expected_.push_back(Expected(field.until));
  }

  Outcome Parse(std::string_view line, Record* record) override {
    if (line.substr(0, start_.size()) != start_) return Bad(record, expected_start_, line);
    std::string_view rest = line.substr(start_.size());
    bool quoted = !start_.empty() && start_.back() == '"';
    for (size_t i = 0; i < fields_.size(); ++i) {
      const TextField& field = fields_[i];
      const bool last = i + 1 == fields_.size();
      const size_t end = field.until.empty() ? rest.size() : Find(rest, field.until, quoted);
      if (end == std::string_view::npos) return Bad(record, expected_[i], rest);
      if (!Set(field.target, rest.substr(0, end), quoted, record)) return Outcome::kBad;
      rest.remove_prefix(end + field.until.size());
      if (last && !rest.empty() && !open_end_) {
        record->Fail("the end of the line", rest);
        return Outcome::kBad;
      }
      quoted = !field.until.empty() && field.until.back() == '"';
    }
    return record->Complete() ? Outcome::kRequest : Outcome::kBad;
  }

 private:
  // Finds `until`; within quotes, only where no backslash escapes it.
  static size_t Find(std::string_view text, std::string_view until, bool quoted) {
    size_t at = 0;
    while (true) {
      const void* found =
          at < text.size() ? std::memchr(text.data() + at, until[0], text.size() - at) : nullptr;
      if (found == nullptr) return std::string_view::npos;
      at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
      if (text.substr(at, until.size()) == until && !(quoted && IsEscaped(text, at))) return at;
      ++at;
    }
  }

  static bool IsEscaped(std::string_view text, size_t at) {
    size_t backslashes = 0;
    while (backslashes < at && text[at - 1 - backslashes] == '\\') ++backslashes;
    return backslashes % 2 == 1;
  }

  static bool Set(const Target& target, std::string_view text, bool quoted, Record* record) {
    if (target.kind == Kind::kSkip) return true;
    if (quoted && std::memchr(text.data(), '\\', text.size()) != nullptr) {
      // A request may fill several columns; the memory for its text is that of the path's column.
      const int column = target.kind == Kind::kRequest ? record->schema().path : target.column;
      if (column >= 0) {
        Unescape(text, &record->Scratch(column));
        text = record->Scratch(column);
      }
    }
    return record->Set(target, text);
  }

  static std::string Expected(const std::string& literal) {
    return "`" + literal + "` as in the format";
  }

  static Outcome Bad(Record* record, const std::string& expected, std::string_view got) {
    record->Fail(expected.c_str(), got);
    return Outcome::kBad;
  }

  std::string start_;
  std::vector<TextField> fields_;
  bool open_end_;
  // Only for messages.
  std::string expected_start_;
  std::vector<std::string> expected_;
};

}  // namespace

std::unique_ptr<Parser> MakeTextParser(std::string start, std::vector<TextField> fields,
                                       bool open_end) {
  return std::make_unique<TextParser>(std::move(start), std::move(fields), open_end);
}

}  // namespace tidegate::logs
