// The value of the header Date.
#ifndef TIDEGATE_SERVER_FRONT_DATE_H_
#define TIDEGATE_SERVER_FRONT_DATE_H_

#include <ctime>
#include <string>

namespace tidegate::server {

// Formats a date like "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale.
std::string HttpDate(std::time_t time);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_DATE_H_
