#include "server/front/date.h"

#include "absl/strings/str_format.h"

namespace tidegate::server {
namespace {

constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

}  // namespace

std::string HttpDate(std::time_t time) {
  std::tm parts{};
  (void)gmtime_r(&time, &parts);
  return absl::StrFormat("%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[parts.tm_wday], parts.tm_mday,
                         kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                         parts.tm_sec);
}

}  // namespace tidegate::server
