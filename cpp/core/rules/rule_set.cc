#include "tidegate/rule_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/on_a_thread.h"
#include "base/text.h"
#include "rules/endpoint.h"
#include "rules/network.h"
#include "rules/rule_index.h"
#include "rules/rule_key.h"
#include "rules/rule_overrides.h"

namespace tidegate {

namespace {

int NumberIn(const std::vector<std::string>& names, std::string_view name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<int>(i);
  }
  return kOtherNumber;
}

// Methods are compared without case, so that a client cannot get another limit by sending `get`.
int MethodIn(const std::vector<std::string>& methods, std::string_view method) {
  const auto same = [&](const std::string& known) {
    return std::equal(known.begin(), known.end(), method.begin(), method.end(),
                      [](char a, char b) { return a == (b >= 'a' && b <= 'z' ? b - 32 : b); });
  };
  const auto at = std::find_if(methods.begin(), methods.end(), same);
  return at == methods.end() ? kOtherNumber : static_cast<int>(at - methods.begin());
}

bool IsHead(std::string_view method) {
  constexpr std::string_view kHead = "HEAD";
  return std::equal(kHead.begin(), kHead.end(), method.begin(), method.end(),
                    [](char a, char b) { return a == (b & ~0x20); });
}

}  // namespace

RuleSet::RequestMethod RuleSet::MethodOf(const Request& request) const {
  const std::string_view given = request[kMethod];
  if (given.data() == nullptr) return {};
  const int number = MethodIn(methods_, given);
  return {number, IsHead(given) ? NumberIn(methods_, "GET") : number};
}

RuleSet::RuleSet() = default;
RuleSet::~RuleSet() = default;

std::shared_ptr<const RuleSet> RuleSet::Shared(std::unique_ptr<RuleSet> set) {
  return {set.release(), [](const RuleSet* last) {
            std::unique_ptr<const RuleSet> owned(last);
            if (last->takes_long_to_free()) FreeOnAThread(std::move(owned));
          }};
}

int RuleSet::AttributeNumber(std::string_view name) const {
  for (size_t i = 0; i < attributes_.size(); ++i) {
    if (attributes_[i] == name) return static_cast<int>(i);
  }
  return -1;
}

size_t RuleSet::TierOf(const Request& request) const {
  const std::string_view given = request[kTier];
  if (given.data() == nullptr) return default_tier_;
  const auto known = static_cast<size_t>(NumberIn(tiers_, given));
  return known < tiers_.size() ? known : default_tier_;
}

std::string_view RuleSet::ValueOf(uint32_t attribute, const Request& request, Matched* matched) {
  if (attribute == kEndpoint) return matched->endpoint;
  if (attribute == kMethod) return CountedMethod(request[kMethod], &matched->method);
  return attribute == kIp ? matched->counted_ip : request[attribute];
}

void RuleSet::MakeKey(uint32_t rule, uint32_t pattern, const Request& request,
                      Matched* matched) const {
  auto& made = matched->made;
  const auto& by = by_[rule];
  std::string room;
  for (size_t i = 0; i < by.size(); ++i) {
    std::string_view value = ValueOf(by[i], request, matched);
    if (by[i] == kEndpoint && pattern != Index::kNoPattern) {
      room.clear();
      AppendNamed(index_->pattern(pattern), value, &room);
      value = room;
    }
    if (by.size() == 1) {
      made.insert(made.end(), value.begin(), value.end());
    } else {
      AppendToKey(value, i == 0, &made);
    }
  }
}

void RuleSet::Apply(uint32_t rule, uint32_t pattern, size_t tier, const Request& request,
                    int64_t now_ns, Matched* matched) const {
  const auto& by = by_[rule];
  bool counts_endpoint = false;
  for (const uint32_t attribute : by) {
    if (request[attribute].data() == nullptr) return;
    counts_endpoint |= attribute == kEndpoint;
  }
  std::string_view key = kKeyOfAll;
  const size_t start = matched->made.size();
  if (by.size() > 1 || (counts_endpoint && pattern != Index::kNoPattern)) {
    const char* const before = matched->made.data();
    MakeKey(rule, pattern, request, matched);
    // If `made` had to grow, the earlier keys moved.
    const char* const now = matched->made.data();
    for (Applied& applied : matched->rules) {
      const auto offset = static_cast<size_t>(applied.key.data() - before);
      if (now != before && applied.key.data() >= before && offset < start) {
        applied.key = {now + offset, applied.key.size()};
      }
    }
    key = {now + start, matched->made.size() - start};
  } else if (!by.empty()) {
    key = ValueOf(by[0], request, matched);
  }
  if (const auto* override = overrides_->Find(rule, key, now_ns)) {
    matched->rules.push_back({rule, overrides_->limits(*override), key});
    return;
  }
  matched->rules.push_back({rule, tier_limits_[rule][tier], key});
  if (!left_by_reserve_.empty()) ApplyReserve(rule, tier, key, matched);
}

void RuleSet::ApplyReserve(uint32_t rule, size_t tier, std::string_view key,
                           Matched* matched) const {
  const auto of_rule = left_by_reserve_.find(rule);
  if (of_rule == left_by_reserve_.end()) return;
  // Requests of a priority also count against what is left to each higher priority.
  for (size_t i = 0; i <= static_cast<size_t>(matched->priority); ++i) {
    const LimitRange& left = of_rule->second[tier][i];
    if (left.count != 0) matched->rules.push_back({rule, left, key});
  }
}

void RuleSet::Match(const Request& request, int64_t now_ns, Matched* matched) const {
  matched->listed = nullptr;
  matched->cost = 1;
  matched->is_estimate = false;
  matched->cost_number = kNoCost;
  matched->priority = Priority::kNormal;
  matched->rules.clear();
  matched->made.clear();
  matched->endpoint = CanonicalEndpoint(request[kEndpoint], &matched->path);
  matched->counted_ip = CountedAddress(request[kIp], &matched->network);
  const size_t tier = TierOf(request);
  if (tier < tiers_.size() && request[kTier] != tiers_[tier]) {
    // A rule by tier counts the request under the name of the default tier.
    Request known = request;
    known[kTier] = tiers_[tier];
    Match(known, now_ns, matched);
    return;
  }
  const int tier_number = tier < tiers_.size() ? static_cast<int>(tier) : kOtherNumber;
  const RequestMethod method = MethodOf(request);
  Index::AllFound found;
  if (!lists_.empty()) {
    list_index_->Find(request, matched->endpoint, tier_number, method, now_ns, &found);
    if (!found.empty()) {
      matched->listed = &lists_[found[0].target];
      return;
    }
  }
  if (!costs_.empty()) {
    cost_index_->Find(request, matched->endpoint, tier_number, method, now_ns, &found);
    if (!found.empty()) {
      const OperationCost& cost = costs_[found[0].target];
      matched->cost = cost.cost;
      matched->is_estimate = cost.is_estimate;
      matched->cost_number = static_cast<int32_t>(found[0].target);
      matched->priority = cost.priority;
    }
    found.clear();
  }
  if (request[kPriority].data() != nullptr) {
    if (const auto given = ParsePriority(request[kPriority])) matched->priority = *given;
  }
  index_->Find(request, matched->endpoint, tier_number, method, now_ns, &found);
  for (const Index::Found& one : found) {
    Apply(one.target, one.pattern, tier, request, now_ns, matched);
  }
  if (any_replaces_) {
    const auto is_replaced = [&](const Applied& applied) {
      return std::any_of(matched->rules.begin(), matched->rules.end(), [&](const Applied& other) {
        const auto& replaced = replaces_[other.rule];
        return std::find(replaced.begin(), replaced.end(), applied.rule) != replaced.end();
      });
    };
    absl::InlinedVector<Applied, 6> kept;
    std::copy_if(matched->rules.begin(), matched->rules.end(), std::back_inserter(kept),
                 [&](const Applied& applied) { return !is_replaced(applied); });
    matched->rules = std::move(kept);
  }
  if (has_otherwise_ && (TiersOf(rules_.back()) >> tier_number & 1) != 0 &&
      std::all_of(matched->rules.begin(), matched->rules.end(),
                  [&](const Applied& applied) { return LeavesDefault(rules_[applied.rule]); })) {
    Apply(static_cast<uint32_t>(rules_.size() - 1), Index::kNoPattern, tier, request, now_ns,
          matched);
  }
}

const ListEntry* RuleSet::ListedBy(const Request& request, int64_t now_ns) const {
  if (lists_.empty()) return nullptr;
  Matched matched;
  Match(request, now_ns, &matched);
  return matched.listed;
}

Request RuleSet::SampleOf(const Rule& rule, const Request& known, std::string_view endpoint,
                          std::string_view method) const {
  Request sample = known;
  const auto set_unknown = [&](size_t attribute, std::string_view value) {
    if (sample[attribute].data() == nullptr) sample[attribute] = value;
  };
  const RuleCondition& condition = rule.condition;
  for (const auto& [name, value] : condition.when) {
    set_unknown(static_cast<size_t>(AttributeNumber(name)), value);
  }
  if (!condition.networks.empty()) {
    const std::string_view network = condition.networks.front();
    set_unknown(kIp, network.substr(0, network.find('/')));
  }
  set_unknown(kMethod, method);
  set_unknown(kEndpoint, endpoint);
  return sample;
}

bool RuleSet::KnowsKey(uint32_t rule, const Request& known, std::string_view endpoint) const {
  const auto is_named_by_condition = [&](uint32_t attribute) {
    const auto& when = rules_[rule].condition.when;
    return std::any_of(when.begin(), when.end(),
                       [&](const auto& w) { return w.first == attributes_[attribute]; });
  };
  const auto is_one_endpoint = [&] {
    if (endpoint.data() == nullptr) return false;  // the rule is for every endpoint
    const EndpointPattern pattern = *EndpointPattern::Parse(endpoint);
    return !pattern.anything && !pattern.below &&
           std::find(pattern.parts.begin(), pattern.parts.end(), "*") == pattern.parts.end();
  };
  return std::all_of(by_[rule].begin(), by_[rule].end(), [&](uint32_t attribute) {
    return known[attribute].data() != nullptr || is_named_by_condition(attribute) ||
           (attribute == kTier && TierOf(known) < tiers_.size()) ||
           (attribute == kEndpoint && is_one_endpoint());
  });
}

void RuleSet::AddKnown(uint32_t rule, const Request& known, std::string_view endpoint,
                       int64_t now_ns, KnownRules* found) const {
  if (!KnowsKey(rule, known, endpoint)) return;
  const RuleCondition& condition = rules_[rule].condition;
  Matched matched;
  // The text of a pattern, taken as an endpoint, matches that pattern.
  for (size_t i = 0; i == 0 || i < condition.methods.size(); ++i) {
    const std::string_view method =
        condition.methods.empty() ? std::string_view() : condition.methods[i];
    Match(SampleOf(rules_[rule], known, endpoint, method), now_ns, &matched);
    Known one{rule, {}, {}, {}};
    for (const Applied& applied : matched.rules) {
      if (applied.rule != rule) continue;
      one.key = applied.key;
      one.limits.push_back(applied.limits);
    }
    if (one.limits.empty()) continue;
    const bool is_known_already = !found->rules.empty() && found->rules.back().rule == rule &&
                                  found->rules.back().key == one.key;
    if (!is_known_already) found->rules.push_back(std::move(one));
    if (endpoint.data() != nullptr) found->rules.back().endpoints.emplace_back(endpoint);
    return;
  }
}

RuleSet::KnownRules RuleSet::MatchKnown(const Request& known, int64_t now_ns, size_t most) const {
  KnownRules found;
  Matched matched;
  Match(known, now_ns, &matched);
  found.listed = matched.listed;
  if (found.listed != nullptr) return found;
  for (uint32_t rule = 0; rule < rules_.size(); ++rule) {
    const auto& endpoints = rules_[rule].condition.endpoints;
    if (known[kEndpoint].data() != nullptr) {
      AddKnown(rule, known, known[kEndpoint], now_ns, &found);
    } else if (endpoints.empty()) {
      AddKnown(rule, known, {}, now_ns, &found);
    } else {
      for (const std::string& endpoint : endpoints) AddKnown(rule, known, endpoint, now_ns, &found);
    }
    if (found.rules.size() > most) {
      found.rules.resize(most);
      found.is_cut = true;
      break;
    }
  }
  return found;
}

size_t RuleSet::overrides() const { return overrides_->size(); }
size_t RuleSet::override_bytes() const { return overrides_->bytes(); }

namespace {

bool Matches(const EndpointPattern& pattern, std::string_view endpoint) {
  if (pattern.anything) return true;
  if (endpoint.data() == nullptr) return false;
  if (!pattern.has_wildcard) return pattern.text == endpoint;
  if (endpoint.empty() || endpoint.front() != '/') return false;
  const PathParts parts = SplitPath(endpoint);
  const size_t own = pattern.parts.size();
  if (pattern.below ? parts.size() < own : parts.size() != own) return false;
  for (size_t i = 0; i < own; ++i) {
    if (!IsAnyPart(pattern.parts[i]) && pattern.parts[i] != parts[i]) return false;
  }
  return true;
}

std::string ShownValue(std::string_view value) {
  return value.data() == nullptr ? "not given" : Quote(value);
}

}  // namespace

std::string RuleSet::WhyNot(const Rule& rule, const Request& request,
                            std::string_view endpoint) const {
  const RuleCondition& condition = rule.condition;
  const auto matches = [&](const std::string& text) {
    return Matches(*EndpointPattern::Parse(text), endpoint);
  };
  const auto& endpoints = condition.endpoints;
  if (!endpoints.empty() && std::none_of(endpoints.begin(), endpoints.end(), matches)) {
    return absl::StrCat("the endpoint is ", ShownValue(request[kEndpoint]), ", not ",
                        absl::StrJoin(endpoints, " or "));
  }
  const std::string_view method = request[kMethod];
  const auto& methods = condition.methods;
  const auto names = [&](std::string_view name) { return MethodIn(methods, name) != kOtherNumber; };
  if (!methods.empty() &&
      (method.data() == nullptr || !(names(method) || (IsHead(method) && names("GET"))))) {
    return absl::StrCat("the method is ", ShownValue(method), ", not ",
                        absl::StrJoin(methods, " or "));
  }
  const size_t tier = TierOf(request);
  const NumberSet tiers = TiersOf(rule);
  if ((tiers >> (tier < tiers_.size() ? tier : kOtherNumber) & 1) == 0) {
    return tier < tiers_.size() ? absl::StrCat("the rule is not for the tier '", tiers_[tier], "'")
                                : absl::StrCat("the tier is ", ShownValue(request[kTier]),
                                               ", and the rule is for some tiers only");
  }
  for (const auto& [name, value] : condition.when) {
    const std::string_view given = request[static_cast<size_t>(AttributeNumber(name))];
    if (given.data() == nullptr || given != value) {
      return absl::StrCat("the attribute ", name, " is ", ShownValue(given), ", not '", value, "'");
    }
  }
  const auto& networks = condition.networks;
  const auto ip = request[kIp].data() == nullptr ? std::nullopt : ParseAddress(request[kIp]);
  const auto holds = [&](const std::string& text) {
    const Network network = *Network::Parse(text);
    return ip.has_value() && HoldsFamilyOf(*ip, network.prefix) &&
           Masked(*ip, network.prefix) == network.address;
  };
  if (!networks.empty() && std::none_of(networks.begin(), networks.end(), holds)) {
    return absl::StrCat("the ip is ", ShownValue(request[kIp]), ", not in ",
                        absl::StrJoin(networks, " or "));
  }
  for (const std::string& name : rule.by) {
    if (name == "tier" && tier < tiers_.size()) continue;  // the default tier
    if (request[static_cast<size_t>(AttributeNumber(name))].data() == nullptr) {
      return absl::StrCat("the rule counts by ", name, ", which is not given");
    }
  }
  return "";
}

NumberSet RuleSet::TiersOf(const Rule& rule) const {
  NumberSet tiers = 0;
  const auto add = [&](const std::string& name) {
    tiers |= NumberSet{1} << NumberIn(tiers_, name);
  };
  for (const std::string& name : rule.condition.tiers) add(name);
  if (!rule.condition.tiers.empty()) return tiers;
  for (const TierLimits& limits : rule.limits) {
    if (limits.tier.empty()) return kAllNumbers;
    add(limits.tier);
  }
  return tiers;
}

std::vector<RuleSet::Reason> RuleSet::Explain(const Request& request, int64_t now_ns) const {
  Matched matched;
  Match(request, now_ns, &matched);
  const auto applied = [&](uint32_t rule) -> const Applied* {
    const auto at = std::find_if(matched.rules.begin(), matched.rules.end(),
                                 [&](const Applied& a) { return a.rule == rule; });
    return at == matched.rules.end() ? nullptr : at;
  };
  std::vector<Reason> reasons;
  for (uint32_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = rules_[i];
    Reason reason{i, false, ""};
    const bool is_otherwise = has_otherwise_ && i + 1 == rules_.size();
    if (matched.listed != nullptr) {
      reason.why = absl::StrCat("the request is on the list '", matched.listed->name, "'");
    } else if (const Applied* const mine = applied(i); mine != nullptr) {
      reason.applies = true;
      const auto* const override = overrides_->Find(i, mine->key, now_ns);
      reason.why = is_otherwise ? "no other rule applies" : "";
      if (override != nullptr) {
        const std::string& why = overrides_->reason(*override);
        reason.why = absl::StrCat("with an override of this key", why.empty() ? "" : ": ", why);
      }
    } else if (reason.why = WhyNot(rule, request, matched.endpoint); !reason.why.empty()) {
      // `why` already has the reason.
    } else if (is_otherwise) {
      reason.why = "another rule applies";
    } else {
      reason.why = WhoInstead(i, matched);
    }
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::string RuleSet::WhoInstead(uint32_t rule, const Matched& matched) const {
  for (const Applied& other : matched.rules) {
    const auto& replaced = replaces_[other.rule];
    if (std::find(replaced.begin(), replaced.end(), rule) != replaced.end()) {
      return absl::StrCat("the rule '", rules_[other.rule].id, "' replaces it");
    }
  }
  for (const Applied& other : matched.rules) {
    if (other.rule < dimensions_.size() && dimensions_[other.rule] == dimensions_[rule]) {
      return absl::StrCat("the rule '", rules_[other.rule].id,
                          "' is more specific and counts by the same attributes");
    }
  }
  return "a rule that is more specific counts by the same attributes, and is itself replaced";
}

}  // namespace tidegate
