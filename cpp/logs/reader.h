// Reads a log in chunks: lines become records, and records rows of columns. Bad lines are counted,
// and the first of them kept. Not for two threads at once.
#ifndef TIDEGATE_SRC_LOGS_READER_H_
#define TIDEGATE_SRC_LOGS_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "logs/columns.h"
#include "logs/csv_ends.h"
#include "logs/lines.h"
#include "logs/parser.h"
#include "logs/record.h"

namespace tidegate::logs {

struct BadLine {
  int64_t source = 0;  // the number of its file
  int64_t number = 0;  // the number of the line in its file, from 1
  std::string text;    // the beginning of the line
  std::string reason;
};

class Reader {
 public:
  static constexpr size_t kBadLinesKept = 10;

  // `csv_delimiter` is 0 if a newline within quotes ends a line too.
  Reader(std::unique_ptr<Parser> parser, const Schema& schema, TimeUnit unit,
         char csv_delimiter = 0, size_t longest_line = kLongestLine);

  void Feed(std::string_view chunk);
  // Ends a file. If it was cut off, its last line was too, and counts as bad.
  void EndSource(bool cut_off = false);

  const Columns& columns() const { return columns_; }
  Columns& columns() { return columns_; }
  const Schema& schema() const { return record_.schema(); }
  const TimeReader& times() const { return record_.times(); }
  size_t rows() const { return columns_.times_ns.size(); }
  int64_t bad() const { return bad_; }
  // The numbers of the files of whose durations nothing says the unit.
  const std::vector<int64_t>& guessed_units() const { return guessed_units_; }
  const std::vector<BadLine>& bad_lines() const { return bad_lines_; }

 private:
  void OnLine(const Line& line);
  void AddBad(const Line& line, std::string_view expected, std::string_view got);

  std::unique_ptr<Parser> parser_;
  std::variant<LineSplitter<NewlineEnds>, LineSplitter<CsvEnds>> splitter_;
  Record record_;
  Columns columns_;
  std::vector<BadLine> bad_lines_;
  std::vector<int64_t> guessed_units_;
  int64_t bad_ = 0;
  int64_t source_ = 0;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_READER_H_
