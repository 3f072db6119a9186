// Writes texts of any bytes as JSON.
#ifndef TIDEGATE_SERVER_JSON_TEXT_H_
#define TIDEGATE_SERVER_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace tidegate::server {

// Appends `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* json);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_JSON_TEXT_H_
