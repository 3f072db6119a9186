#include "server/checks/rest_requests.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/check_json.h"
#include "server/checks/percent.h"

namespace tidegate::server {

namespace {

bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  constexpr std::string_view kJson = "application/json";
  return std::equal(kJson.begin(), kJson.end(), type.begin(), type.end(), [](char a, char b) {
    return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
  });
}

std::optional<Problem> WrongType(const Request& request) {
  const std::string_view type = request.header("content-type");
  if (IsJson(type)) return std::nullopt;
  return Problem{415, GrpcStatus::kInvalidArgument,
                 absl::StrCat("the content type is ", Quote(type), "; expected application/json")};
}

// Returns a view of the decoded text, which `decoded` keeps, or nothing if it is malformed.
std::optional<std::string_view> Decode(std::string_view text, Decoded* decoded) {
  auto plain = PercentDecoded(text);
  if (!plain.has_value()) return std::nullopt;
  return decoded->emplace_back(*std::move(plain));
}

Problem MalformedEscape(std::string_view what, std::string_view given) {
  return Problem::BadRequest(absl::StrCat(std::string(what), " is ", Quote(given),
                                          "; expected two hexadecimal digits after each %"));
}

std::optional<Problem> ReadQuery(std::string_view query, Asked* asked, Decoded* decoded) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return Problem::BadRequest(
          absl::StrCat("the query has ", Quote(pair), "; expected NAME=VALUE, joined by &"));
    }
    const auto name = Decode(pair.substr(0, equals), decoded);
    const auto value = Decode(pair.substr(equals + 1), decoded);
    if (!name.has_value() || !value.has_value()) return MalformedEscape("the query", pair);
    const std::string_view known = AttributeOfMember(*name);
    const std::string_view attribute = known.data() == nullptr ? *name : known;
    if (asked->Get(attribute).data() != nullptr) {
      return Problem::BadRequest(absl::StrCat("the attribute ", Quote(attribute),
                                              " was given twice; expected each attribute once"));
    }
    if (auto problem = asked->Add(attribute, *value)) return problem;
  }
  return std::nullopt;
}

// The answer to a gateway whose request lacks an attribute that the rules need.
Problem NoHeaderFor(std::string_view attribute, const CheckOptions& options) {
  std::string expected;
  for (const auto& [name, given] : options.auth_headers) {
    if (given == attribute) absl::StrAppend(&expected, expected.empty() ? "" : " or ", name);
  }
  return Problem::BadRequest(absl::StrCat("no header names the ", Absl(attribute),
                                          " of the request, which the rules need; expected ",
                                          expected.empty() ? "one in auth_headers" : expected));
}

}  // namespace

std::optional<Problem> ReadRestCheck(const Request& request, Asked* asked) {
  if (auto problem = WrongType(request)) return problem;
  return ReadCheckJson(request.body, asked);
}

std::optional<Problem> ReadRestReserve(const Request& request, Asked* asked) {
  if (auto problem = WrongType(request)) return problem;
  return ReadReserveJson(request.body, asked);
}

std::optional<Problem> ReadRestSettle(const Request& request, int64_t least_cost, Asked* asked) {
  if (auto problem = WrongType(request)) return problem;
  return ReadSettleJson(request.body, least_cost, asked);
}

std::optional<Problem> ReadRestCheckMany(const Request& request, std::vector<Asked>* checks) {
  if (auto problem = WrongType(request)) return problem;
  return ReadCheckManyJson(request.body, checks);
}

std::optional<Problem> ReadRestStatus(const Request& request, std::string_view prefix, Asked* asked,
                                      Decoded* decoded) {
  const std::string_view given = request.path.substr(prefix.size());
  if (given.empty() || given.find('/') != std::string_view::npos) {
    return Problem{404, GrpcStatus::kNotFound,
                   absl::StrCat("the path is ", Quote(request.path), "; expected ",
                                std::string(prefix), "{userId}, with a / in it as %2F")};
  }
  const auto user = Decode(given, decoded);
  if (!user.has_value()) return MalformedEscape("the userId", given);
  if (auto problem = asked->Add("user", *user)) return problem;
  return ReadQuery(request.query, asked, decoded);
}

std::optional<Problem> ReadGatewayCheck(const Request& request, const CheckConfig& config,
                                        Asked* asked, Decoded* decoded) {
  const CheckOptions& options = config.context->options;
  for (const auto& [name, attribute] : options.auth_headers) {
    const Header* found = nullptr;
    for (const Header& header : request.headers) {
      if (header.name != name) continue;
      if (found != nullptr) {
        return Problem::BadRequest(absl::StrCat("the header ", name,
                                                " was sent twice; expected it once, from the "
                                                "gateway"));
      }
      found = &header;
    }
    if (found == nullptr || found->value.empty()) continue;
    std::string_view value = found->value;
    if (attribute == "endpoint") {
      auto path = PathOfUri(value, config.rules->know_parameters());
      if (!path.has_value()) {
        return Problem::BadRequest(absl::StrCat("the header ", name, " is ", Quote(value),
                                                "; expected the URI of a request, such as "
                                                "/api/posts?page=2"));
      }
      value = decoded->emplace_back(*std::move(path));
    }
    // The first of several headers for one attribute counts.
    if (asked->Get(attribute).data() != nullptr) continue;
    if (auto problem = asked->Add(attribute, value)) return problem;
  }
  if (config.rules->look_at_endpoints() && asked->Get("endpoint").data() == nullptr) {
    return NoHeaderFor("endpoint", options);
  }
  if (config.rules->look_at_methods() && asked->Get("method").data() == nullptr) {
    return NoHeaderFor("method", options);
  }
  return std::nullopt;
}

}  // namespace tidegate::server
