// Lines, timestamps, and the formats of logs.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "logs/csv_ends.h"
#include "logs/dictionary.h"
#include "logs/lines.h"
#include "logs/numbers.h"
#include "logs/reader.h"
#include "logs/timestamps.h"

namespace tidegate::logs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kNoonNs = 1'769'861'100'000'000'000;  // 2026-01-31T12:05:00Z

struct Cut {
  std::vector<std::string> lines;
  std::vector<int64_t> numbers;
  std::vector<bool> too_long;
};

template <typename Ends>
Cut CutInto(std::string_view text, size_t chunk, Ends ends, size_t longest = 100) {
  Cut cut;
  LineSplitter<Ends> splitter(ends, longest);
  const auto on = [&](const Line& line) {
    cut.lines.emplace_back(line.text);
    cut.numbers.push_back(line.number);
    cut.too_long.push_back(line.too_long);
  };
  for (size_t at = 0; at < text.size(); at += chunk) splitter.Feed(text.substr(at, chunk), on);
  splitter.End(on);
  return cut;
}

TEST(Lines, AreTheSameInChunksOfAnySize) {
  for (const size_t chunk : {1, 2, 3, 7, 100}) {
    const Cut cut = CutInto("a\n\nbcd\nlast", chunk, NewlineEnds());
    EXPECT_THAT(cut.lines, ElementsAre("a", "", "bcd", "last")) << chunk;
    EXPECT_THAT(cut.numbers, ElementsAre(1, 2, 3, 4)) << chunk;
  }
}

TEST(Lines, ThatAreTooLongKeepTheirBeginning) {
  const std::string text = "a\n" + std::string(1000, 'x') + "\nb\n";
  for (const size_t chunk : {1, 64, 5000}) {
    const Cut cut = CutInto(text, chunk, NewlineEnds());
    EXPECT_THAT(cut.lines, ElementsAre("a", std::string(100, 'x'), "b")) << chunk;
    EXPECT_THAT(cut.too_long, ElementsAre(false, true, false)) << chunk;
  }
}

TEST(Lines, OfTheGreatestLengthAreWhole) {
  const std::string most(100, 'x');
  EXPECT_THAT(CutInto(most + "\n" + most + "y\n", 30, NewlineEnds()).too_long,
              ElementsAre(false, true));
}

TEST(Lines, OfCsvContinueWithinQuotes) {
  for (const size_t chunk : {1, 2, 3, 100}) {
    const Cut cut = CutInto("a,\"b\n\"\"c\n\"\nd\"e,\"f\n\ng\n\"", chunk, CsvEnds(','));
    EXPECT_THAT(cut.lines, ElementsAre("a,\"b\n\"\"c\n\"", "d\"e,\"f\n\ng\n\"")) << chunk;
    EXPECT_THAT(cut.numbers, ElementsAre(1, 4)) << chunk;
  }
}

TEST(Lines, OfCsvWithAnOpenQuoteEndAtTheGreatestLength) {
  std::string text = "\"";
  for (int i = 0; i < 60; ++i) text += "ab\n";
  for (const size_t chunk : {1, 10, 1000}) {
    const Cut cut = CutInto(text, chunk, CsvEnds(','));
    ASSERT_EQ(cut.lines.size(), 27) << chunk;  // 102 bytes are skipped, and 26 lines follow
    EXPECT_TRUE(cut.too_long[0]);
    EXPECT_EQ(cut.numbers[1], 35) << chunk;
    EXPECT_EQ(cut.numbers.back(), 60) << chunk;
  }
}

TEST(Dictionary, NumbersNamesInTheOrderOfTheirAppearance) {
  Dictionary dictionary;
  EXPECT_EQ(dictionary.CodeOf(""), 0);
  EXPECT_EQ(dictionary.CodeOf("a"), 1);
  EXPECT_EQ(dictionary.CodeOf(""), 0);
  const std::string large(200'000, 'x');
  EXPECT_EQ(dictionary.CodeOf(large), 2);
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_EQ(dictionary.CodeOf(std::to_string(i)), static_cast<uint32_t>(3 + i));
  }
  EXPECT_EQ(dictionary.CodeOf(large), 2);
  EXPECT_EQ(dictionary.names()[2], large);
  EXPECT_EQ(dictionary.names()[3 + 777], "777");
}

TEST(Numbers, AreReadExactlyOrRefused) {
  int64_t value = -1;
  EXPECT_TRUE(ReadDecimal("12.3456789", 3, &value));
  EXPECT_EQ(value, 12'345);
  EXPECT_TRUE(ReadDecimal("9223372036", 9, &value));
  EXPECT_EQ(value, 9'223'372'036'000'000'000);
  for (const char* text : {"", ".", "1.", ".5", "1e3", "-1", "+1", "1.-", "9223372037", " 1"}) {
    EXPECT_FALSE(ReadDecimal(text, 9, &value)) << text;
  }
}

struct Instant {
  const char* text;
  int64_t ns;
};

class ReadsInstants : public testing::TestWithParam<Instant> {};

TEST_P(ReadsInstants, ToTheNanosecond) {
  int64_t ns = -1;
  EXPECT_EQ(TimeReader().Read(GetParam().text, &ns), nullptr) << GetParam().text;
  EXPECT_EQ(ns, GetParam().ns) << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Written, ReadsInstants,
    testing::Values(Instant{"31/Jan/2026:13:05:00 +0100", kNoonNs},
                    Instant{"[31/Jan/2026:12:05:00 +0000]", kNoonNs},
                    Instant{"2026-01-31T12:05:00Z", kNoonNs}, Instant{"2026-01-31T12:05Z", kNoonNs},
                    Instant{"2026-01-31 11:05:00.000000001-01:00", kNoonNs + 1},
                    Instant{"2026-01-31T12:05:00,5", kNoonNs + 500'000'000},
                    Instant{"1769861100", kNoonNs}, Instant{"1769861100000", kNoonNs},
                    Instant{"1769861100000000", kNoonNs},
                    Instant{"1769861100000000009", kNoonNs + 9},
                    Instant{"1769861100.000000009", kNoonNs + 9},
                    Instant{"1970-01-01T00:00:00Z", 0},
                    Instant{"2000-02-29T00:00:00Z", 951'782'400'000'000'000}));

TEST(TimeReader, RefusesTextsThatAreNotInstants) {
  for (const char* text : {"",
                           "1",
                           "1234",
                           "2026",
                           "2026-",
                           "2026-02-30T12:05:00Z",
                           "2100-02-29T12:05:00Z",
                           "2026-01-31T25:05:00Z",
                           "2026-01-31T12:60:00Z",
                           "2026-01-31T12:05:61Z",
                           "2026-01-31T12:05:0",
                           "2026-01-31T12:05:00.Z",
                           "2026-01-31T12:05:00+1",
                           "2026-01-31T12:05:00+24:00",
                           "31/Jan/2026:12:05:00 0000",
                           "31/jan/2026:12:05:00 +0000",
                           "1e9",
                           "99999999999999999999",
                           "9999999999999999999",
                           "-5"}) {
    int64_t ns = -1;
    EXPECT_NE(TimeReader().Read(text, &ns), nullptr) << text;
  }
}

TEST(TimeReader, RefusesNumbersOfAnotherUnit) {
  TimeReader reader;
  int64_t ns = 0;
  EXPECT_EQ(reader.Read("1769861100", &ns), nullptr);
  EXPECT_THAT(reader.Read("1769861100000", &ns), HasSubstr("unit of the first"));
  EXPECT_EQ(reader.ReadNumber(1769861100.25, &ns), nullptr);
  EXPECT_EQ(ns, kNoonNs + 250'000'000);
  EXPECT_EQ(reader.unit(), TimeUnit::kSeconds);
}

TEST(TimeReader, AllTimesHaveZonesOrNoneDoes) {
  TimeReader reader;
  int64_t ns = 0;
  EXPECT_EQ(reader.Read("2026-01-31T12:05:00Z", &ns), nullptr);
  EXPECT_FALSE(reader.has_mixed_zones());
  EXPECT_EQ(reader.Read("31/Jan/2026:12:05:00 +0100", &ns), nullptr);
  EXPECT_TRUE(reader.has_mixed_zones());
  EXPECT_THAT(reader.Read("2026-01-31T12:05:00", &ns), HasSubstr("with a zone"));
}

TEST(TimeReader, DistinguishesZonesOfTheSameMinute) {
  TimeReader reader;
  int64_t ns = 0;
  for (int second = 0; second < 60; ++second) {
    char text[40];
    std::snprintf(text, sizeof(text), "31/Jan/2026:12:05:%02d +0000", second);
    EXPECT_EQ(reader.Read(text, &ns), nullptr);
    EXPECT_EQ(ns, kNoonNs + second * 1'000'000'000LL);
  }
  EXPECT_EQ(reader.Read("31/Jan/2026:12:05:00 +0130", &ns), nullptr);
  EXPECT_EQ(ns, kNoonNs - 5400 * 1'000'000'000LL);
}

class JsonLines : public testing::Test {
 protected:
  JsonLines() {
    Schema schema;
    std::vector<std::pair<std::string, Target>> fields;
    fields.emplace_back("t", AddField(Kind::kTime, "time", &schema));
    fields.emplace_back("a.b.c", AddField(Kind::kKey, "key", &schema));
    fields.emplace_back("n", AddField(Kind::kBytes, "bytes", &schema));
    reader_ = std::make_unique<Reader>(MakeJsonParser(fields), schema, TimeUnit::kNanoseconds);
  }
  std::string KeyOf(std::string_view line) {
    reader_->Feed(line);
    reader_->Feed("\n");
    const KeyColumn& column = reader_->columns().keys[0];
    return std::string(column.dictionary.names()[column.codes.back()]);
  }
  std::unique_ptr<Reader> reader_;
};

TEST_F(JsonLines, FindNamesWithDotsNestedOrNot) {
  EXPECT_EQ(KeyOf(R"({"t":1,"a":{"b":{"c":"x"}}})"), "x");
  EXPECT_EQ(KeyOf(R"({"t":1,"a.b":{"c":"y"}})"), "y");
  EXPECT_EQ(KeyOf(R"({"t":1,"a":{"b.c":7}})"), "7");
  EXPECT_EQ(KeyOf(R"({"t":1,"a.b.c":true,"a":{"b":{"c":"no"}}})"), "true");
  EXPECT_EQ(KeyOf(R"({"t":1,"a":[1]})"), "-");
  EXPECT_EQ(reader_->rows(), 5);
}

TEST_F(JsonLines, RefuseTextsThatAreNotValues) {
  for (const char* line :
       {R"({"t":1,"a.b.c":{}})", R"({"t":1,"a.b.c":[]})", R"({"t":1,"n":-1})", R"({"t":1,"n":1.5})",
        R"({"t":18446744073709551615})", R"({"t":1}})", R"({"t":1)", R"([1])", R"({"n":1})", "{"}) {
    const int64_t before = reader_->bad();
    reader_->Feed(line);
    reader_->Feed("\n");
    EXPECT_EQ(reader_->bad(), before + 1) << line;
  }
  EXPECT_EQ(reader_->rows(), 0);
  EXPECT_EQ(reader_->bad_lines().size(), Reader::kBadLinesKept);
}

TEST(Reader, ATruncatedLastLineCountsAsBad) {
  Schema schema;
  std::vector<TextField> fields{{AddField(Kind::kTime, "time", &schema), " "},
                                {AddField(Kind::kBytes, "bytes", &schema), ""}};
  Reader reader(MakeTextParser("", std::move(fields), false), schema, TimeUnit::kSeconds);
  reader.Feed("5 12\n5 1");
  reader.EndSource(/*cut_off=*/true);
  reader.Feed("5 7");
  reader.EndSource();
  EXPECT_THAT(reader.columns().bytes, ElementsAre(12, 7));
  ASSERT_EQ(reader.bad(), 1);
  EXPECT_EQ(reader.bad_lines()[0].number, 2);
  EXPECT_EQ(reader.bad_lines()[0].text, "5 1");
}

}  // namespace
}  // namespace tidegate::logs
