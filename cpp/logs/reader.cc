#include "logs/reader.h"

#include <cstring>
#include <utility>

namespace tidegate::logs {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kShownOfField = 60;

std::variant<LineSplitter<NewlineEnds>, LineSplitter<CsvEnds>> SplitterFor(char delimiter,
                                                                           size_t longest) {
  if (delimiter == 0) return LineSplitter<NewlineEnds>(NewlineEnds(), longest);
  return LineSplitter<CsvEnds>(CsvEnds(delimiter), longest);
}

}  // namespace

Reader::Reader(std::unique_ptr<Parser> parser, const Schema& schema, TimeUnit unit,
               char csv_delimiter, size_t longest_line)
    : parser_(std::move(parser)),
      splitter_(SplitterFor(csv_delimiter, longest_line)),
      record_(schema, unit),
      columns_(schema) {
  parser_->Begin();
}

void Reader::Feed(std::string_view chunk) {
  std::visit([&](auto& lines) { lines.Feed(chunk, [this](const Line& line) { OnLine(line); }); },
             splitter_);
}

void Reader::EndSource(bool cut_off) {
  std::visit(
      [&](auto& lines) {
        if (cut_off) {
          const std::string text = lines.TakeUnfinished();
          if (!text.empty()) {
            AddBad({text, lines.number()}, "the rest of the line",
                   "no end, since the file was cut off");
          }
        }
        lines.End([this](const Line& line) { OnLine(line); });
      },
      splitter_);
  if (parser_->GuessesUnit()) guessed_units_.push_back(source_);
  parser_->Begin();
  ++source_;
}

void Reader::OnLine(const Line& line) {
  std::string_view text = line.text;
  if (line.number == 1 && text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (line.too_long) return AddBad(line, "at most 1 MiB", "more bytes");
  if (text.empty()) return;
  if (std::memchr(text.data(), '\0', text.size()) != nullptr) {
    return AddBad(line, "text", "a NUL byte");
  }
  record_.Clear();
  switch (parser_->Parse(text, &record_)) {
    case Outcome::kRequest:
      columns_.Append(record_);
      break;
    case Outcome::kBad:
      AddBad(line, record_.problem().expected, record_.problem().got);
      break;
    case Outcome::kNoRequest:
      break;
  }
}

void Reader::AddBad(const Line& line, std::string_view expected, std::string_view got) {
  bad_ += line.lines;
  if (bad_lines_.size() >= kBadLinesKept) return;
  BadLine bad{.source = source_, .number = line.number, .text = {}, .reason = {}};
  bad.text.assign(line.text.substr(0, kShownBytes));
  bad.reason.append("the line has ");
  if (got.empty()) {
    bad.reason.append("nothing there");
  } else {
    bad.reason.append(got.substr(0, kShownOfField));
    if (got.size() > kShownOfField) bad.reason.append("...");
  }
  bad.reason.append("; expected ").append(expected);
  bad_lines_.push_back(std::move(bad));
}

}  // namespace tidegate::logs
