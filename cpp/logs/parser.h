// Parsers, which read lines of one format into records.
#ifndef TIDEGATE_SRC_LOGS_PARSER_H_
#define TIDEGATE_SRC_LOGS_PARSER_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/record.h"

namespace tidegate::logs {

enum class Outcome : uint8_t { kRequest, kNoRequest, kBad };

class Parser {
 public:
  virtual ~Parser() = default;
  // Called when a file begins, which may have a header of its own.
  virtual void Begin() {}
  // Whether the file so far has durations of which nothing says the unit.
  virtual bool GuessesUnit() const { return false; }
  // record.problem() is the reason why a line is bad. `line` must live as long as the record is
  // used.
  virtual Outcome Parse(std::string_view line, Record* record) = 0;
};

// A field of a text format, and the text between it and the next field.
struct TextField {
  Target target;
  std::string until;
};

// Parses lines of one pattern: `start`, then fields. With `open_end`, other text may follow the
// last field.
std::unique_ptr<Parser> MakeTextParser(std::string start, std::vector<TextField> fields,
                                       bool open_end);

// Parses one JSON object a line. A field is named by its member; a.b is the member b of the object
// a, unless a member has the name "a.b".
std::unique_ptr<Parser> MakeJsonParser(const std::vector<std::pair<std::string, Target>>& fields);

// Parses CSV by RFC 4180. `fields` are the columns in their order. A first line that equals
// `header` is skipped.
std::unique_ptr<Parser> MakeCsvParser(char delimiter, std::string header,
                                      std::vector<Target> fields);

// Parses W3C's extended format, whose #Fields line names the columns; `fields` are those to read.
// A kTimeTaken is milliseconds in what IIS wrote, and else seconds, as the format has it.
std::unique_ptr<Parser> MakeW3cParser(std::vector<std::pair<std::string, Target>> fields);

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_PARSER_H_
