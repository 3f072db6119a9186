#include "server/front/http1_head.h"

#include <llhttp.h>

#include <algorithm>

#include "server/front/dispatch.h"

namespace tidegate::server {
namespace {

constexpr std::string_view kEnd = "\r\n\r\n";

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualsIgnoringCase(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return ToLower(a) == b; });
}

// Checks what some releases of the parser accept, such as a CR that ends a header.
Http1Error CheckLine(std::string_view line) {
  if (line[0] == ' ' || line[0] == '\t')
    return {400, "a header goes on in a second line; expected one line each"};
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {400, "a header has no colon; expected one in each"};
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), ToLower);
  if (!IsFieldName(name))
    return {400, "the name of a header is malformed; expected one without spaces"};
  if (!IsFieldValue(line.substr(colon + 1))) {
    return {400, "the value of a header has control characters; expected none"};
  }
  return {};
}

Http1Error CheckRequestLine(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return {400, "the request line is malformed; expected a method, a target and HTTP/1.1"};
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const bool is_plain = std::all_of(target.begin(), target.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte < 0x7f;
  });
  if (!is_plain)
    return {400, "the target has other characters; expected printable ASCII characters"};
  const std::string_view version = line.substr(last + 1);
  if (version == "HTTP/1.1" || version == "HTTP/1.0") return {};
  return {version.starts_with("HTTP/") ? 505 : 400,
          "the version is another; expected HTTP/1.1 or HTTP/1.0"};
}

Http1Error CheckLines(std::string_view bytes) {
  bytes.remove_suffix(kEnd.size() / 2);
  bool is_first = true;
  while (!bytes.empty()) {
    const size_t end = bytes.find("\r\n");  // always found, since the head ends in it
    const std::string_view line = bytes.substr(0, end);
    const Http1Error error = is_first ? CheckRequestLine(line) : CheckLine(line);
    if (error.status != 0) return error;
    is_first = false;
    bytes.remove_prefix(end + 2);
  }
  return {};
}

struct Parse {
  Http1Head* head;
  std::string_view field, value;
};

int OnTarget(llhttp_t* parser, const char* at, size_t size) {
  static_cast<Parse*>(parser->data)->head->target = {at, size};
  return 0;
}

int OnField(llhttp_t* parser, const char* at, size_t size) {
  Parse& parse = *static_cast<Parse*>(parser->data);
  parse.field = {at, size};
  parse.value = {};
  return 0;
}

int OnValue(llhttp_t* parser, const char* at, size_t size) {
  static_cast<Parse*>(parser->data)->value = {at, size};
  return 0;
}

int OnHeader(llhttp_t* parser) {
  const Parse& parse = *static_cast<Parse*>(parser->data);
  Http1Head& head = *parse.head;
  const size_t begin = head.names.size();
  for (const char c : parse.field) head.names.push_back(ToLower(c));
  head.headers.push_back({std::string_view(head.names).substr(begin), Trim(parse.value)});
  return 0;
}

int OnHeaders(llhttp_t* parser) {
  Http1Head& head = *static_cast<Parse*>(parser->data)->head;
  head.method = llhttp_method_name(static_cast<llhttp_method_t>(parser->method));
  head.chunked = (parser->flags & F_CHUNKED) != 0;
  head.content_length = parser->content_length;
  head.keep_alive = llhttp_should_keep_alive(parser) != 0;
  return 2;  // stop here, as before another protocol: the session reads the body
}

const llhttp_settings_t& Settings() {
  static const llhttp_settings_t settings = [] {
    llhttp_settings_t made;
    llhttp_settings_init(&made);
    made.on_url = OnTarget;
    made.on_header_field = OnField;
    made.on_header_value = OnValue;
    made.on_header_value_complete = OnHeader;
    made.on_headers_complete = OnHeaders;
    return made;
  }();
  return settings;
}

// Checks the headers that depend on each other.
Http1Error CheckHeaders(bool is_http11, Http1Head* head) {
  int hosts = 0;
  int lengths = 0;
  int codings = 0;
  for (const Header& header : head->headers) {
    hosts += header.name == "host";
    if (header.name == "content-length") {
      ++lengths;
      const bool digits = !header.value.empty() &&
                          header.value.find_first_not_of("0123456789") == std::string_view::npos;
      if (!digits) return {400, "the content-length is malformed; expected digits"};
    }
    if (header.name == "transfer-encoding") {
      ++codings;
      if (!EqualsIgnoringCase(header.value, "chunked")) {
        return {501, "the transfer-encoding is unknown; expected chunked"};
      }
    }
    if (header.name == "expect") {
      if (!EqualsIgnoringCase(header.value, "100-continue")) {
        return {417, "the expectation is unknown; expected 100-continue"};
      }
      head->expects_continue = is_http11;
    }
  }
  if (lengths > 1) return {400, "the content-length is given twice; expected it once"};
  if (codings > 1) return {400, "the transfer-encoding is given twice; expected it once"};
  if (lengths > 0 && codings > 0)
    return {400, "a content-length and a transfer-encoding are given; expected one of them"};
  if (codings > 0 && !is_http11)
    return {400, "the transfer-encoding is given with HTTP/1.0; expected none"};
  if (hosts > 1 || (hosts == 0 && is_http11))
    return {400, "the host header is missing or given twice; expected it once"};
  return {};
}

// Returns "/path" of "http://host/path".
std::string_view OriginForm(std::string_view target) {
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return target;
  const size_t slash = target.find_first_of("/?", scheme + 3);
  return slash == std::string_view::npos ? "/" : target.substr(slash);
}

}  // namespace

size_t FindHeadEnd(std::string_view bytes, size_t* looked) {
  const size_t end = bytes.find(kEnd, *looked);
  if (end != std::string_view::npos) return end + kEnd.size();
  *looked = bytes.size() < kEnd.size() ? 0 : bytes.size() - kEnd.size() + 1;
  return end;
}

Http1Error ParseHttp1Head(std::string_view bytes, size_t most_headers, Http1Head* head) {
  Http1Error error = CheckLines(bytes);
  if (error.status != 0) return error;
  head->headers.clear();
  head->names.clear();
  head->names.reserve(bytes.size());  // so that views of it stay valid
  head->expects_continue = false;
  Parse parse{head, {}, {}};
  llhttp_t parser;  // with all of its leniency off
  llhttp_init(&parser, HTTP_REQUEST, &Settings());
  parser.data = &parse;
  const llhttp_errno_t code = llhttp_execute(&parser, bytes.data(), bytes.size());
  if (code == HPE_INVALID_METHOD) return {501, "the method is unknown; expected one of HTTP/1.1"};
  const bool is_whole =
      code == HPE_PAUSED_UPGRADE && llhttp_get_error_pos(&parser) == bytes.data() + bytes.size();
  if (!is_whole) return {400, "the request is malformed; expected one of HTTP/1.1"};
  if (head->headers.size() > most_headers) return {431, "the headers are too many; expected fewer"};
  if (parser.method == HTTP_CONNECT)
    return {501, "the method is CONNECT; expected another, as this is no proxy"};
  error = CheckHeaders(parser.http_minor == 1, head);
  head->target = OriginForm(head->target);
  return error;
}

}  // namespace tidegate::server
