#include "server/checks/problem.h"

#include <simdjson.h>

#include "absl/strings/str_cat.h"

namespace tidegate::server {

namespace {

std::string_view TitleOf(int http_status) {
  switch (http_status) {
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    default:
      return "Error";
  }
}

// The bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t CharacterAt(std::string_view text) {
  for (size_t size = 1; size <= 4 && size <= text.size(); ++size) {
    if (simdjson::validate_utf8(text.data(), size)) return size;
  }
  return 0;
}

}  // namespace

std::string ShownText(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string shown = "'";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      absl::StrAppend(&shown, "\\x", absl::Hex(byte, absl::kZeroPad2));
    }
  }
  return shown += text.size() > kMost ? "...'" : "'";
}

void AppendJsonString(std::string_view text, std::string* json) {
  *json += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '"' || byte == '\\') {
      *json += '\\';
      *json += text[i++];
    } else if (byte < 0x20) {
      absl::StrAppend(json, "\\u", absl::Hex(byte, absl::kZeroPad4));
      ++i;
    } else if (byte < 0x80) {
      *json += text[i++];
    } else if (const size_t size = CharacterAt(text.substr(i)); size > 0) {
      json->append(text.substr(i, size));
      i += size;
    } else {
      *json += "\xEF\xBF\xBD";
      ++i;
    }
  }
  *json += '"';
}

void AnswerProblem(const Problem& problem, bool is_grpc, Answer* answer) {
  answer->body.clear();
  if (is_grpc) {
    answer->grpc_status = problem.grpc_status;
    answer->grpc_message = problem.detail;
    return;
  }
  answer->http_status = problem.http_status;
  answer->content_type = "application/problem+json";
  absl::StrAppend(&answer->body, R"({"type":"about:blank","title":")");
  answer->body += TitleOf(problem.http_status);
  absl::StrAppend(&answer->body, R"(","status":)", problem.http_status, R"(,"detail":)");
  AppendJsonString(problem.detail, &answer->body);
  answer->body += "}\n";
}

}  // namespace tidegate::server
