#include "tidegate/rate_fields.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "tidegate/limit.h"

namespace tidegate {

namespace {

// The position of the member of `list` that begins with `start`; npos if it has none. `start`
// begins with a quotation mark, which inside a String follows a backslash.
size_t MemberAt(std::string_view list, std::string_view start) {
  for (size_t at = list.find(start); at != std::string_view::npos; at = list.find(start, at + 1)) {
    const size_t before = at == 0 ? at : list.find_last_not_of(" \t", at - 1);
    if (at == 0 || before == std::string_view::npos || list[before] == ',') return at;
  }
  return std::string_view::npos;
}

// The members of a RateLimit-Policy, whose names may contain commas.
std::vector<std::string_view> Members(std::string_view list) {
  std::vector<std::string_view> members;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (quoted && list[i] == '\\') {
      ++i;
    } else if (list[i] == '"') {
      quoted = !quoted;
    } else if (list[i] == ',' && !quoted) {
      members.push_back(list.substr(start, i - start));
      start = list.find_first_not_of(' ', i + 1);
      if (start == std::string_view::npos) return members;
    }
  }
  members.push_back(list.substr(start));
  return members;
}

std::string Joined(std::string_view list, std::string_view member) {
  return absl::StrCat(Absl(list), list.empty() ? "" : ", ", Absl(member));
}

}  // namespace

std::string StructuredString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted += '"';
}

std::string PolicyMember(const Limit& limit) {
  const bool is_concurrency = limit.algorithm() == Algorithm::kConcurrency;
  return absl::StrCat(
      StructuredString(limit.name()), ";q=", std::min(limit.count(), kMaxFieldInteger),
      is_concurrency ? ";qu=\"concurrent-requests\"" : "", ";w=", CeilSeconds(limit.period_ns()));
}

std::string StateStart(const Limit& limit) {
  return absl::StrCat(StructuredString(limit.name()), ";r=");
}

RateFieldTexts::RateFieldTexts(const Limit& limit, RateFieldSet set) {
  if ((set & kOpenAiFields) != 0) openai = OpenAiFieldsOf(limit);
  const RateFieldSet with_capacity = SetOf(RateField::kLimit) | kOpenAiFields;
  if ((set & with_capacity) != 0) capacity = std::to_string(limit.capacity());
  if ((set & SetOf(RateField::kPolicy)) != 0) policy = PolicyMember(limit);
  if ((set & SetOf(RateField::kRateLimit)) != 0) state_start = StateStart(limit);
}

RateFieldSet OpenAiFieldsOf(const Limit& limit) {
  // The text of a limit has no such word.
  const std::string names = absl::AsciiStrToLower(absl::StrCat(limit.id(), " ", limit.rule()));
  return names.find("token") == std::string::npos ? kRequestsFields : kTokensFields;
}

char* WriteDuration(int64_t ns, char* at) {
  constexpr int64_t kMs = 1'000'000;
  const int64_t ms = ns / kMs + (ns % kMs > 0 ? 1 : 0);
  char* const end = at + kMaxDuration;
  const auto put = [&](int64_t number, std::string_view unit) {
    at = std::to_chars(at, end, number).ptr;
    at = std::copy(unit.begin(), unit.end(), at);
  };
  if (ms > 0 && ms < 1000) {
    put(ms, "ms");
    return at;
  }
  const int64_t seconds = ms / 1000;
  if (seconds >= 3600) put(seconds / 3600, "h");
  if (seconds >= 60) put(seconds / 60 % 60, "m");
  put(seconds % 60, "");
  if (const int64_t rest = ms % 1000; rest != 0) {
    *at++ = '.';
    for (int64_t unit = 100, left = rest; left != 0; unit /= 10) {
      *at++ = static_cast<char>('0' + left / unit);
      left %= unit;
    }
  }
  *at++ = 's';
  return at;
}

char* WriteStateRest(const RateFieldValues& values, char* at) {
  constexpr std::string_view kMore = ";t=";
  char* const end = at + kMaxStateRest;
  at = std::to_chars(at, end, std::min(values.remaining, kMaxFieldInteger)).ptr;
  if (!values.more_s.has_value()) return at;
  at = std::copy(kMore.begin(), kMore.end(), at);
  return std::to_chars(at, end, std::min(*values.more_s, kMaxFieldInteger)).ptr;
}

std::string StateRest(const RateFieldValues& values) {
  char room[kMaxStateRest];
  return {room, WriteStateRest(values, room)};
}

std::string WithPolicies(std::string_view list, std::string_view policies) {
  std::string joined(list);
  for (const std::string_view member : Members(policies)) {
    size_t quote = 1;
    while (quote < member.size() && member[quote] != '"') quote += member[quote] == '\\' ? 2 : 1;
    const std::string_view start = member.substr(0, quote + 2);  // its name, and ';'
    if (MemberAt(joined, start) == std::string_view::npos) joined = Joined(joined, member);
  }
  return joined;
}

std::string WithState(std::string_view list, std::string_view start,
                      const RateFieldValues& values) {
  const std::string state = absl::StrCat(Absl(start), StateRest(values));
  const size_t at = MemberAt(list, start);
  if (at == std::string_view::npos) return Joined(list, state);
  const std::string_view rest = list.substr(at + start.size());
  int64_t theirs = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), theirs);
  if (theirs <= std::min(values.remaining, kMaxFieldInteger)) return std::string(list);
  const size_t end = rest.find(',');
  return absl::StrCat(Absl(list.substr(0, at)), state,
                      end == std::string_view::npos ? absl::string_view() : Absl(rest.substr(end)));
}

}  // namespace tidegate
