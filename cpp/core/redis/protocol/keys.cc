#include "redis/protocol/keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "redis/protocol/digest.h"

namespace tidegate::redis {
namespace {

constexpr size_t kLongestPlainKey = 128;
constexpr size_t kLongestScope = 64;
constexpr size_t kLongestName = 14;

// The text of a limit without an id, which tells it apart from all others of a scope: for token
// buckets and quotas as users write it, else after a letter for the algorithm.
std::string TextName(const Limit& limit) {
  const auto letter = [&]() -> absl::string_view {
    switch (limit.algorithm()) {
      case Algorithm::kTokenBucket:
      case Algorithm::kQuota:  // begins with "quota"
        return "";
      case Algorithm::kLeakyBucket:
        return "l";
      case Algorithm::kFixedWindow:
        return "f";
      case Algorithm::kSlidingWindow:
        return "w";
      case Algorithm::kSlidingLog:
        return "s";
      case Algorithm::kConcurrency:
        return "c";
    }
    return "?";
  };
  return absl::StrCat(letter(), limit.ToString());
}

}  // namespace

std::string KeyPrefix(const Limit& limit, std::string_view scope) {
  const bool is_plain =
      scope.size() <= kLongestScope && scope.find_first_of("{}") == std::string_view::npos;
  std::string name;
  if (is_plain && limit.id().empty()) name = TextName(limit);
  if (name.empty() || name.size() > kLongestName) {
    // 84 bits. Unlike the texts of limits it has no '/'.
    name = Sha256InBase64(CountName(limit, scope), kLongestName);
  }
  std::string prefix(scope.substr(0, kLongestScope));
  // Braces would be taken for the hash tag of a cluster.
  std::replace_if(
      prefix.begin(), prefix.end(), [](char c) { return c == '{' || c == '}'; }, '_');
  return absl::StrCat(prefix, ":", name);
}

std::string RedisKey(const BoundLimit& limit, std::string_view key) {
  // A plain key that begins like a digest could be made to collide with one.
  const bool plain = !key.empty() && key.size() <= kLongestPlainKey && key.front() != '#' &&
                     key.find_first_of("{}") == std::string_view::npos;
  std::string out = limit.scope;
  out += plain ? "{" : "{#";
  if (plain) {
    out += key;
  } else {
    out += Sha256InBase64(key, 24);
  }
  out += "}";
  return out;
}

}  // namespace tidegate::redis
