#include "redis/scripts.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "redis/lua.inc"
#include "tidegate/step.h"

namespace tidegate::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kLongestPlainKey = 128;

// The algorithms of lua/, one bit each.
struct Part {
  std::string_view name;
  std::string_view text;
};
constexpr std::array<Part, 4> kParts = {{
    {"bucket", lua::bucket},
    {"fixed", lua::fixed_window},
    {"sliding", lua::sliding_window},
    {"log", lua::log},
}};

size_t PartOf(const Limit& limit) {
  switch (limit.algorithm()) {
    case Algorithm::kFixedWindow:
      return 1;
    case Algorithm::kSlidingWindow:
      return 2;
    case Algorithm::kSlidingLog:
    case Algorithm::kConcurrency:
      return 3;
    default:
      return 0;
  }
}

size_t StateSize(const Limit& limit) { return IsLog(limit.algorithm()) ? 6 : 4; }

std::string Digest(const EVP_MD* kind, std::string_view text) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), bytes, &size, kind, nullptr) != 1) std::abort();
  return {reinterpret_cast<const char*>(bytes), size};
}

void AppendInstant(std::vector<std::string>* words, int64_t ns) {
  words->push_back(std::to_string(ns / kSecond));
  words->push_back(std::to_string(ns % kSecond));
}

void AppendLimit(std::vector<std::string>* words, const Request& request, const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  const size_t part = PartOf(limit);
  words->emplace_back(kParts[part].name);
  if (part == 0) {
    AppendInstant(words, limit.depth_ns());
    words->push_back(std::to_string(limit.depth_fraction()));
    words->push_back(std::to_string(limit.denominator()));
    words->push_back(charge.cost > limit.burst() ? "1" : "0");
    const Interval interval = CostInterval(limit, std::min(charge.cost, limit.burst()));
    AppendInstant(words, interval.ns);
    words->push_back(std::to_string(interval.fraction));
    return;
  }
  AppendInstant(words, limit.period_ns());
  if (part == 1) {
    const int64_t months = limit.calendar() == Calendar::kNone   ? 0
                           : limit.calendar() == Calendar::kYear ? 12 * limit.calendar_units()
                                                                 : limit.calendar_units();
    words->push_back(std::to_string(months));
  }
  words->push_back(std::to_string(limit.count()));
  // Beyond the count is beyond the count; scripts count exactly below 2^53 only.
  words->push_back(std::to_string(std::min(charge.cost, limit.count() + 1)));
  if (part == 3) AppendInstant(words, request.admitted_ns);
}

// As Judge() and StepLog() in log.cc, from what the script tells of the log.
Decision DecideLog(const Charge& charge, const Answer& answer, size_t index, bool charged) {
  const Limit& limit = charge.limit->limit;
  const auto& [newest_s, newest_ns, alive, behind, freeing_s, freeing_ns] = answer.states[index];
  Decision d;
  d.limit = &limit;
  d.behind = behind != 0;
  d.used_units = alive;
  const int64_t newest = newest_s * kSecond + newest_ns;
  d.reset_after_ns = alive > 0 ? newest - answer.now_ns : 0;
  if (charge.cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (alive + charge.cost > limit.count()) {
    d.retry_after_ns = freeing_s * kSecond + freeing_ns - answer.now_ns;
  } else {
    d.allowed = true;
    if (charged) {
      d.used_units += charge.cost;
      d.reset_after_ns = std::max(limit.period_ns(), d.reset_after_ns);
    }
  }
  return d;
}

}  // namespace

Scripts::Scripts() {
  for (size_t set = 1; set < scripts_.size(); ++set) {
    std::string& text = scripts_[set].text;
    std::string names = "local algorithms = {";
    text = std::string(lua::arithmetic);
    for (size_t i = 0; i < kParts.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      text += kParts[i].text;
      for (const std::string_view piece :
           {kParts[i].name, std::string_view(" = "), kParts[i].name, std::string_view(", ")}) {
        names += piece;
      }
    }
    text += names + "}\n";
    text += lua::plan;
    scripts_[set].digest = absl::BytesToHexString(Digest(EVP_sha1(), text));
  }
}

std::string Scripts::Command(const Request& request, bool by_text) const {
  size_t set = 0;
  for (const Charge& charge : request.plan) set |= size_t{1} << PartOf(charge.limit->limit);
  std::vector<std::string> words;
  words.reserve(9 + 10 * request.plan.size());
  words.emplace_back(by_text ? "EVAL" : "EVALSHA");
  words.push_back(by_text ? scripts_[set].text : scripts_[set].digest);
  words.push_back(std::to_string(request.plan.size()));
  for (const Charge& charge : request.plan) words.push_back(RedisKey(*charge.limit, charge.key));
  words.emplace_back(request.op);
  if (request.server_time) {
    words.emplace_back();
    words.emplace_back();
  } else {
    AppendInstant(&words, request.now_ns);
  }
  words.emplace_back(request.confirmed ? "1" : "0");
  words.push_back(std::to_string(request.margin_ms));
  for (const Charge& charge : request.plan) AppendLimit(&words, request, charge);
  return Format(words);
}

absl::StatusOr<Answer> Scripts::Parse(const redisReply& reply, absl::Span<const Charge> plan) {
  size_t expected = 3;
  for (const Charge& charge : plan) expected += StateSize(charge.limit->limit);
  const auto foreign = [] { return absl::InternalError("the reply is not one of our script"); };
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != expected) return foreign();
  for (size_t i = 0; i < expected; ++i) {
    const redisReply& element = *reply.element[i];
    if (element.type != REDIS_REPLY_INTEGER || element.integer < 0 ||
        element.integer >= int64_t{1} << 53) {
      return foreign();
    }
  }
  const auto number = [&](size_t i) { return static_cast<int64_t>(reply.element[i]->integer); };
  // Seconds beyond this do not fit 64 bits of nanoseconds.
  constexpr int64_t kLastSecond = 9'223'372'035;
  if (number(1) > kMaxInstantNs / kSecond || number(2) >= kSecond) return foreign();
  Answer answer;
  answer.allowed = number(0) == 1;
  answer.now_ns = number(1) * kSecond + number(2);
  size_t at = 3;
  for (const Charge& charge : plan) {
    std::array<int64_t, 6>& state = answer.states.emplace_back();
    const size_t size = StateSize(charge.limit->limit);
    for (size_t i = 0; i < size; ++i) state[i] = number(at + i);
    if (state[0] > kLastSecond || state[1] >= kSecond || state[4] > kLastSecond ||
        state[5] >= kSecond) {
      return foreign();
    }
    at += size;
  }
  return answer;
}

Decision Scripts::Decide(const Charge& charge, const Answer& answer, size_t index, bool peek) {
  const Limit& limit = charge.limit->limit;
  if (IsLog(limit.algorithm())) {
    return DecideLog(charge, answer, index, !peek && answer.allowed);
  }
  const auto& state = answer.states[index];
  CellState cell{static_cast<uint64_t>(state[0] * kSecond + state[1]),
                 static_cast<uint64_t>(state[2])};
  if (limit.algorithm() == Algorithm::kSlidingWindow) {
    cell.w1 = static_cast<uint64_t>(state[2]) << 32 | static_cast<uint64_t>(state[3]);
  }
  if (peek) return Peek(limit, cell, answer.now_ns, charge.cost);
  CellState ignored;
  return Step(limit, cell, answer.now_ns, charge.cost, &ignored);
}

std::string KeyPrefix(const Limit& limit, std::string_view scope) {
  std::string name;
  for (const std::string_view piece :
       {AlgorithmName(limit.algorithm()), std::string_view(":"), std::string_view(limit.ToString()),
        std::string_view(":"), scope}) {
    name += piece;
  }
  const std::string digest = Digest(EVP_sha256(), name).substr(0, 6);
  // Braces would be taken for the hash tag of a cluster.
  std::string prefix(scope.substr(0, 64));
  std::replace_if(
      prefix.begin(), prefix.end(), [](char c) { return c == '{' || c == '}'; }, '_');
  return absl::StrCat(prefix, ":", absl::WebSafeBase64Escape(digest), ":");
}

std::string RedisKey(const BoundLimit& limit, std::string_view key) {
  // A plain key that begins like a digest could be made to meet one.
  const bool plain = !key.empty() && key.size() <= kLongestPlainKey && key.front() != '#' &&
                     key.find_first_of("{}") == std::string_view::npos;
  std::string out = limit.scope;
  out += plain ? "{" : "{#";
  if (plain) {
    out += key;
  } else {
    out += absl::WebSafeBase64Escape(Digest(EVP_sha256(), key).substr(0, 18));
  }
  out += "}";
  return out;
}

std::string Format(const std::vector<std::string>& words) {
  std::vector<const char*> pointers;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    pointers.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* formatted = nullptr;
  const int size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()),
                                          pointers.data(), sizes.data());
  std::string command(formatted, size > 0 ? static_cast<size_t>(size) : 0);
  redisFreeCommand(formatted);
  return command;
}

}  // namespace tidegate::redis
