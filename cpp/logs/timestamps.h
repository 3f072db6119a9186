// Instants as logs write them, in nanoseconds since the epoch: ISO 8601 and RFC 3339, the Common
// Log Format's, and numbers in a unit that their magnitude shows.
//
// All times of a log are numbers in one unit, or all have a zone, or none has: a time that differs
// from the earlier ones in this is refused, since it would be off by a factor, or by hours.
#ifndef TIDEGATE_SRC_LOGS_TIMESTAMPS_H_
#define TIDEGATE_SRC_LOGS_TIMESTAMPS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tidegate::logs {

enum class TimeUnit : uint8_t { kUnknown, kSeconds, kMilliseconds, kMicroseconds, kNanoseconds };

class TimeReader {
 public:
  explicit TimeReader(TimeUnit unit = TimeUnit::kUnknown) : unit_(unit) {}

  // Returns null if the time was read, else what was expected.
  const char* Read(std::string_view text, int64_t* ns);
  const char* ReadNumber(int64_t number, int64_t* ns);
  const char* ReadNumber(double number, int64_t* ns);

  // The properties of the times read so far.
  TimeUnit unit() const { return unit_; }
  bool has_no_zones() const { return zones_ == Zones::kNone; }
  bool has_mixed_zones() const { return least_offset_ < most_offset_; }
  bool has_fractions() const { return has_fractions_; }

 private:
  enum class Zones : uint8_t { kUnknown, kSome, kNone };

  const char* ReadText(std::string_view text, int64_t* ns);
  const char* ReadCommon(std::string_view text, int64_t* ns);
  const char* ReadIso(std::string_view text, int64_t* ns);
  const char* FindUnit(int64_t whole);
  const char* NoteZone(bool given, int64_t offset_s);

  TimeUnit unit_;
  Zones zones_ = Zones::kUnknown;
  bool has_fractions_ = false;
  bool guessed_ = false;  // whether the unit was guessed from a number
  int64_t least_offset_ = INT64_MAX;
  int64_t most_offset_ = INT64_MIN;
  // The minute of the last time in the Common Log Format: the next times mostly have the same.
  char minute_[18] = {};  // "01/Aug/1995:02:00:"
  char zone_[6] = {};     // " -0400"
  int64_t minute_s_ = 0;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_TIMESTAMPS_H_
