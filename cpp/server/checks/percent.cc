#include "server/checks/percent.h"

#include <algorithm>
#include <vector>

namespace tidegate::server {

namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Joins the segments of a path, except empty segments, "." and "..".
std::string Normalized(std::string_view path, bool keeps_parameters) {
  std::vector<std::string_view> segments;
  for (size_t start = 1; start <= path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    std::string_view segment = path.substr(start, end - start);
    // This comes before the dots: to a server that knows parameters, "..;" is "..".
    if (!keeps_parameters) segment = segment.substr(0, segment.find(';'));
    if (segment == "..") {
      if (!segments.empty()) segments.pop_back();
    } else if (!segment.empty() && segment != ".") {
      segments.push_back(segment);
    }
    start = end + 1;
  }
  std::string kept;
  for (const std::string_view segment : segments) {
    kept += '/';
    kept += segment;
  }
  return kept.empty() ? "/" : kept;
}

}  // namespace

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

bool IsPlainPath(std::string_view endpoint, bool keeps_parameters) {
  if (!endpoint.starts_with('/')) return true;
  return std::none_of(endpoint.begin(), endpoint.end(), [&](char c) {
    return c == '?' || c == '#' || (c == ';' && !keeps_parameters);
  });
}

std::string PlainPath(std::string_view path, bool keeps_parameters) {
  std::string kept;
  bool is_parameter = false;
  for (const char c : path.substr(0, path.find_first_of("?#"))) {
    is_parameter = c != '/' && (is_parameter || (c == ';' && !keeps_parameters));
    if (!is_parameter) kept += c;
  }
  return kept;
}

std::optional<std::string> PathOfUri(std::string_view uri, bool keeps_parameters) {
  if (const size_t scheme = uri.find("://"); !uri.starts_with('/') && scheme < uri.find('?')) {
    const size_t path = uri.find_first_of("/?#", scheme + 3);
    uri = path == std::string_view::npos ? "/" : uri.substr(path);
    if (!uri.starts_with('/')) return "/";
  }
  uri = uri.substr(0, uri.find_first_of("?#"));
  if (!uri.starts_with('/')) return std::nullopt;
  const auto decoded = PercentDecoded(uri);
  if (!decoded.has_value()) return std::nullopt;
  return Normalized(*decoded, keeps_parameters);
}

}  // namespace tidegate::server
