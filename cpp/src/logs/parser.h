// What reads a line of one format into a record.
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
  // A file begins, which may have a header of its own.
  virtual void Begin() {}
  // Of a bad line, record.problem() tells why. `line` has to live until the record was used.
  virtual Outcome Parse(std::string_view line, Record* record) = 0;
};

// A field of a text format, and what stands between it and the next one.
struct TextField {
  Target target;
  std::string until;
};

// Lines of one pattern: `start`, then fields. With `open_end`, more may follow the last one.
std::unique_ptr<Parser> MakeTextParser(std::string start, std::vector<TextField> fields,
                                       bool open_end);

// One JSON object a line. A field has a name; a.b is b of the object a, unless a member is named
// so.
std::unique_ptr<Parser> MakeJsonParser(const std::vector<std::pair<std::string, Target>>& fields);

// RFC 4180. `fields` are the columns in their order. A first line that equals `header` is none of
// the data.
std::unique_ptr<Parser> MakeCsvParser(char delimiter, std::string header,
                                      std::vector<Target> fields);

// W3C's extended format, whose #Fields says which columns there are; `fields` says which of them
// are read.
std::unique_ptr<Parser> MakeW3cParser(std::vector<std::pair<std::string, Target>> fields);

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_PARSER_H_
