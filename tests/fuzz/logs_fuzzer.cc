// However a log is cut into chunks, it is read as the same requests and the same bad lines, and
// each column has a value for each request. The first byte picks the format, and the next four are
// the lengths of the chunks, in turn.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/reader.h"

namespace tidegate::logs {
namespace {

constexpr size_t kMostBytes = 4096;
constexpr size_t kLongest = 512;  // the longest line, so small that some are too long

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

std::unique_ptr<Reader> CombinedReader() {
  Schema schema;
  std::vector<TextField> fields;
  const auto add = [&](Kind kind, const char* name, const char* until) {
    fields.push_back({AddField(kind, name, &schema), until});
  };
  add(Kind::kKey, "ip", " - ");
  add(Kind::kKey, "user", " [");
  add(Kind::kTime, "", "] \"");
  add(Kind::kRequest, "url", "\" ");
  add(Kind::kStatus, "", " ");
  add(Kind::kBytes, "", " \"");
  add(Kind::kSkip, "", "\" \"");
  add(Kind::kEncodedKey, "user_agent", "\" ");
  add(Kind::kSeconds, "", "");
  auto parser = MakeTextParser("", std::move(fields), /*open_end=*/false);
  return std::make_unique<Reader>(std::move(parser), schema, TimeUnit::kUnknown, '\0', kLongest);
}

std::vector<std::pair<std::string, Target>> NamedFields(Schema* schema) {
  std::vector<std::pair<std::string, Target>> fields;
  const auto add = [&](const char* name, Kind kind) {
    fields.emplace_back(name, AddField(kind, name, schema));
  };
  add("time", Kind::kTime);
  add("end", Kind::kEndTime);
  add("ip", Kind::kAddress);
  add("xff", Kind::kLastAddress);
  add("client", Kind::kAddressPort);
  add("path", Kind::kPath);
  add("status", Kind::kStatus);
  add("a.b", Kind::kEncodedKey);
  return fields;
}

std::unique_ptr<Reader> JsonReader() {
  Schema schema;
  auto parser = MakeJsonParser(NamedFields(&schema));
  return std::make_unique<Reader>(std::move(parser), schema, TimeUnit::kUnknown, '\0', kLongest);
}

std::unique_ptr<Reader> CsvReader() {
  Schema schema;
  std::vector<Target> columns;
  for (const auto& field : NamedFields(&schema)) columns.push_back(field.second);
  auto parser = MakeCsvParser(',', "time,end,ip,xff,path,status,a.b", std::move(columns));
  return std::make_unique<Reader>(std::move(parser), schema, TimeUnit::kUnknown, ',', kLongest);
}

std::unique_ptr<Reader> W3cReader() {
  Schema schema;
  auto fields = NamedFields(&schema);
  fields[0].second = AddField(Kind::kClock, "clock", &schema);
  fields.emplace_back("date", AddField(Kind::kDate, "date", &schema));
  auto parser = MakeW3cParser(std::move(fields));
  return std::make_unique<Reader>(std::move(parser), schema, TimeUnit::kUnknown, '\0', kLongest);
}

std::unique_ptr<Reader> ReaderOf(uint8_t format) {
  switch (format % 4) {
    case 0:
      return CombinedReader();
    case 1:
      return JsonReader();
    case 2:
      return CsvReader();
    default:
      return W3cReader();
  }
}

std::unique_ptr<Reader> Read(uint8_t format, std::string_view text,
                             const std::vector<size_t>& lengths) {
  std::unique_ptr<Reader> reader = ReaderOf(format);
  for (size_t piece = 0; !text.empty(); ++piece) {
    const size_t length = std::min(lengths[piece % lengths.size()], text.size());
    // A copy, whose end the sanitizer guards.
    const std::vector<char> chunk(text.begin(), text.begin() + static_cast<ptrdiff_t>(length));
    reader->Feed({chunk.data(), chunk.size()});
    text.remove_prefix(length);
  }
  reader->EndSource(/*cut_off=*/format >= 128);
  return reader;
}

void CheckColumns(const Reader& reader) {
  const Columns& columns = reader.columns();
  const size_t rows = reader.rows();
  for (const int64_t time : columns.times_ns) Require(time >= 0, "no time is before 1970");
  for (const int64_t each : columns.durations_ns) Require(each >= -1, "no duration is negative");
  for (const int64_t each : columns.bytes) Require(each >= 0, "no size is negative");
  for (const int32_t each : columns.status) Require(each >= 0 && each <= 999, "a status");
  Require(columns.durations_ns.empty() || columns.durations_ns.size() == rows, "durations");
  Require(columns.status.empty() || columns.status.size() == rows, "statuses");
  for (const KeyColumn& column : columns.keys) {
    Require(column.codes.size() == rows, "each request has a key");
    for (const uint32_t code : column.codes) {
      Require(code < column.dictionary.names().size(), "each code has a name");
      Require(!column.dictionary.names()[code].empty(), "no name is empty");
    }
  }
}

void CheckSame(const Reader& a, const Reader& b) {
  Require(a.bad() == b.bad(), "chunks have the same bad lines");
  Require(a.columns().times_ns == b.columns().times_ns, "chunks have the same times");
  Require(a.columns().durations_ns == b.columns().durations_ns, "chunks have the same durations");
  Require(a.columns().status == b.columns().status, "chunks have the same statuses");
  for (size_t i = 0; i < a.columns().keys.size(); ++i) {
    const KeyColumn& one = a.columns().keys[i];
    const KeyColumn& other = b.columns().keys[i];
    Require(one.codes == other.codes, "chunks have the same keys");
    Require(one.dictionary.names() == other.dictionary.names(), "chunks have the same names");
  }
  Require(a.bad_lines().size() == b.bad_lines().size(), "chunks show the same bad lines");
  for (size_t i = 0; i < a.bad_lines().size(); ++i) {
    Require(a.bad_lines()[i].number == b.bad_lines()[i].number, "bad lines have one number");
    Require(a.bad_lines()[i].reason == b.bad_lines()[i].reason, "bad lines have one reason");
  }
}

}  // namespace
}  // namespace tidegate::logs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::logs::Read;
  if (size < 6 || size > tidegate::logs::kMostBytes) return 0;
  std::vector<size_t> lengths;
  for (size_t i = 1; i < 5; ++i) lengths.push_back(1 + data[i]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 5, size - 5);
  const auto whole = Read(data[0], text, {text.size()});
  const auto pieces = Read(data[0], text, lengths);
  tidegate::logs::CheckColumns(*whole);
  tidegate::logs::CheckSame(*whole, *pieces);
  const auto newlines = std::count(text.begin(), text.end(), '\n');
  tidegate::logs::Require(static_cast<int64_t>(whole->rows()) + whole->bad() <= newlines + 1,
                          "there are no more requests and bad lines than lines");
  return 0;
}
