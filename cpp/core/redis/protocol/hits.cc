// The commands of independent hits: those of one key, limit and cost are sent once, with their
// number, since each of them follows from the one before.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/time_units.h"
#include "redis/protocol/error_reply.h"
#include "redis/protocol/keys.h"
#include "redis/protocol/replies.h"
#include "redis/protocol/scripts.h"

namespace tidegate::redis {
namespace {

// Hits that are sent as one.
struct Alike {
  const Charge* charge;
  int64_t hits;
};

struct Sorted {
  absl::InlinedVector<Alike, Scripts::kMostKinds> kinds;
  absl::InlinedVector<uint32_t, Scripts::kMostHits> kind_of;  // for each hit
};

Sorted SortOut(absl::Span<const Charge> hits) {
  Sorted sorted;
  for (const Charge& hit : hits) {
    // Only the last kind of a key: hits of other costs between them come between them.
    const auto has_key = [&](const Alike& kind) { return Scripts::HaveSameKey(hit, *kind.charge); };
    const auto last = std::find_if(sorted.kinds.rbegin(), sorted.kinds.rend(), has_key);
    const bool is_like = last != sorted.kinds.rend() && Scripts::AreAlike(hit, *last->charge);
    const auto same = is_like ? std::prev(last.base()) : sorted.kinds.end();
    sorted.kind_of.push_back(static_cast<uint32_t>(same - sorted.kinds.begin()));
    if (same == sorted.kinds.end()) {
      sorted.kinds.push_back({&hit, 1});
    } else {
      ++same->hits;
    }
  }
  return sorted;
}

// A state as the short scripts know it: the arrival time of a bucket, or the end of a window; and
// the units used in a window.
struct Short {
  int64_t instant_us;
  int64_t used;
};

// The state after `passed` of the hits, which found `before` and of which at least one is decided.
Short After(const Charge& charge, Short before, int64_t now_us, int64_t passed) {
  const Limit& limit = charge.limit->limit;
  if (IsBucket(limit.algorithm())) {
    const int64_t depth_us = limit.depth_ns() / kMicrosecondNs;
    const int64_t ahead_us = std::max<int64_t>(before.instant_us - now_us, 0);
    // Further ahead than the clock allows (step.h): moved back.
    if (ahead_us > depth_us + kClockToleranceNs / kMicrosecondNs) return {now_us + depth_us, 0};
    if (passed == 0) return before;
    const int64_t cost_us = CostInterval(limit, charge.cost).ns / kMicrosecondNs;
    return {now_us + ahead_us + passed * cost_us, 0};
  }
  if (passed == 0) return before;
  if (before.instant_us > now_us) return {before.instant_us, before.used + passed * charge.cost};
  const int64_t period_us = limit.period_ns() / kMicrosecondNs;
  return {now_us - now_us % period_us + period_us, passed * charge.cost};
}

}  // namespace

bool Scripts::CanShare(Form form, const Charge& a, const Charge& b) {
  return form == Form::kFixedHits ||
         (form == Form::kBucketHits && a.limit == b.limit && a.cost == b.cost);
}

std::string Scripts::HitsCommand(Form form, absl::Span<const Charge> hits, int64_t margin_ms,
                                 bool by_text) const {
  const Sorted sorted = SortOut(hits);
  const Script& script = form == Form::kFixedHits ? fixed_hits_ : bucket_hits_;
  Words words;
  words.Add(by_text ? "EVAL" : "EVALSHA");
  words.Add(by_text ? script.text : script.digest);
  words.Add(static_cast<int64_t>(sorted.kinds.size()));
  for (const Alike& kind : sorted.kinds) {
    words.Add(RedisKey(*kind.charge->limit, kind.charge->key));
  }
  if (form == Form::kFixedHits) {
    words.Add(margin_ms);
    for (const Alike& kind : sorted.kinds) {
      const Limit& limit = kind.charge->limit->limit;
      words.Add(limit.period_ns() / kMicrosecondNs);
      words.Add(limit.count());
      words.Add(std::min(kind.charge->cost, limit.count() + 1));
    }
  } else {
    const Limit& limit = hits[0].limit->limit;
    std::string numbers;
    for (const int64_t number :
         {limit.depth_ns() / kMicrosecondNs, CostInterval(limit, hits[0].cost).ns / kMicrosecondNs,
          margin_ms, limit.step_ns() / kSecondNs, limit.step_ns() % kSecondNs,
          limit.step_fraction(), limit.denominator()}) {
      AppendPacked(&numbers, number);
    }
    words.Add(numbers);
  }
  if (sorted.kinds.size() < hits.size()) {
    for (const Alike& kind : sorted.kinds) words.Add(kind.hits);
  }
  return words.Finish();
}

std::vector<absl::StatusOr<Answer>> Scripts::ParseHits(const redisReply& reply, Form form,
                                                       absl::Span<const Charge> hits) {
  const Sorted sorted = SortOut(hits);
  const size_t each = form == Form::kFixedHits ? 3 : 2;
  const auto foreign = [&] {
    return std::vector<absl::StatusOr<Answer>>(hits.size(), ForeignReply());
  };
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 1 + each * sorted.kinds.size()) {
    return foreign();
  }
  // What plan.lua replied to the hits of a kind, if it decided them.
  const auto in_full = [&](size_t kind) -> const redisReply* {
    const redisReply* const passes = reply.element[1 + each * kind];
    return passes->type == REDIS_REPLY_ARRAY ? passes : nullptr;
  };
  const auto number = [&](size_t i) { return static_cast<int64_t>(reply.element[i]->integer); };
  constexpr int64_t kLast = kMaxInstantNs / kMicrosecondNs;
  const int64_t now_us = number(0);
  if (!IsInteger(*reply.element[0]) || now_us < 0 || now_us > kLast) return foreign();
  const auto passes_of = [&](size_t kind) { return number(1 + each * kind); };
  for (size_t i = 0; i < sorted.kinds.size(); ++i) {
    const redisReply* const full = in_full(i);
    for (size_t j = full == nullptr ? 0 : 1; j < each; ++j) {
      if (!IsInteger(*reply.element[1 + each * i + j])) return foreign();
    }
    const int64_t fewest = full == nullptr ? 0 : 1;
    const int64_t most = sorted.kinds[i].hits;
    const int64_t found = full == nullptr ? passes_of(i) : static_cast<int64_t>(full->elements);
    if (found < fewest || found > most) return foreign();
  }
  absl::InlinedVector<int64_t, kMostKinds> decided(sorted.kinds.size());
  std::vector<absl::StatusOr<Answer>> answers;
  answers.reserve(hits.size());
  for (size_t i = 0; i < hits.size(); ++i) {
    const size_t kind = sorted.kind_of[i];
    const int64_t before = decided[kind]++;
    if (const redisReply* const full = in_full(kind)) {
      const size_t at = std::min(static_cast<size_t>(before), full->elements - 1);
      answers.push_back(ParseHit(*full->element[at], hits[i]));
      continue;
    }
    const size_t at = 1 + each * kind;
    Short state{number(at + 1), each == 3 ? number(at + 2) : 0};
    if (state.instant_us < 0 || state.instant_us > 2 * kLast || state.used < 0 ||
        state.used >= int64_t{1} << 53) {
      answers.emplace_back(ForeignValue());
      continue;
    }
    if (before > 0) state = After(hits[i], state, now_us, std::min(before, passes_of(kind)));
    constexpr int64_t kEach = kSecondNs / kMicrosecondNs;
    Answer answer;
    answer.now_ns = now_us * kMicrosecondNs;
    answer.allowed = before < passes_of(kind);
    answer.states.push_back(
        {state.instant_us / kEach, state.instant_us % kEach * kMicrosecondNs, state.used, 0, 0, 0});
    answers.emplace_back(std::move(answer));
  }
  return answers;
}

absl::StatusOr<Answer> Scripts::ParseHit(const redisReply& reply, const Charge& hit) {
  if (reply.type == REDIS_REPLY_STRING) {
    // As Redis 6 begins the errors of scripts.
    return ErrorStatus(absl::StrCat("ERR Error running script (plan.lua): ",
                                    absl::string_view(reply.str, reply.len)));
  }
  Request request;
  request.op = "hit";
  request.plan = {&hit, 1};
  return ParseFull(reply, request);
}

}  // namespace tidegate::redis
