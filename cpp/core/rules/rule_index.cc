#include "rules/rule_index.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace tidegate {

namespace {

// Appends a value after its length, so that no two lists of values have the same bytes.
void AppendValue(std::string_view value, absl::InlinedVector<char, 128>* bytes) {
  const uint64_t size = value.size();
  const auto* const start = reinterpret_cast<const char*>(&size);
  bytes->insert(bytes->end(), start, start + sizeof(size));
  bytes->insert(bytes->end(), value.begin(), value.end());
}

std::string_view AsText(const Address& address) {
  return {reinterpret_cast<const char*>(address.data()), address.size()};
}

std::string_view ValueFor(absl::Span<const std::pair<uint32_t, std::string_view>> when,
                          uint32_t attribute) {
  for (const auto& [number, value] : when) {
    if (number == attribute) return value;
  }
  return {};
}

}  // namespace

struct RuleSet::Index::Search {
  const Request& request;
  NumberSet tier;
  NumberSet method;
  NumberSet head;  // HEAD if that is the method, which has a number
  int64_t now_ns;
  std::optional<Address> ip;
  AllFound* found;
};

size_t RuleSet::Index::ChildHash::operator()(const ChildView& c) const {
  return absl::HashOf(c.node, c.part);
}

RuleSet::Index::Index() : hasher_(Hasher::RandomSeed()) {}

int RuleSet::Index::PlaceFor(const EndpointPattern* endpoint) {
  const auto made = [&](int& place) {
    if (place < 0) {
      place = static_cast<int>(places_.size());
      places_.emplace_back();
    }
    return place;
  };
  if (endpoint == nullptr || endpoint->anything) return made(anywhere_);
  if (!endpoint->has_wildcard) return made(exact_.try_emplace(endpoint->text, -1).first->second);
  uint32_t node = 0;
  for (const std::string& part : endpoint->parts) {
    const auto next = static_cast<uint32_t>(nodes_.size());
    uint32_t known = next;
    if (!IsAnyPart(part)) {
      known = children_.try_emplace(Child{node, part}, next).first->second;
    } else if (nodes_[node].any_part == 0) {
      nodes_[node].any_part = next;
    } else {
      known = nodes_[node].any_part;
    }
    if (known == next) nodes_.emplace_back();
    node = known;
  }
  return made(endpoint->below ? nodes_[node].below : nodes_[node].here);
}

RuleSet::Index::Group& RuleSet::Index::GroupFor(Place& place, const Entry& entry) {
  std::vector<uint32_t> attributes;
  for (const auto& [attribute, value] : entry.when) attributes.push_back(attribute);
  const int prefix = entry.network == nullptr ? -1 : entry.network->prefix;
  has_networks_ |= prefix >= 0;
  for (Group& group : place.groups) {
    if (group.dimension == entry.dimension && group.attributes == attributes &&
        group.prefix == prefix) {
      return group;
    }
  }
  const uint32_t rank =
      static_cast<uint32_t>(attributes.size()) << 16 | static_cast<uint32_t>(prefix + 1) << 4;
  Group& made = place.groups.emplace_back();
  made.dimension = entry.dimension;
  made.attributes = std::move(attributes);
  made.prefix = prefix;
  made.rank = rank;
  return made;
}

Fingerprint RuleSet::Index::ValueOf(const Group& group, const Entry& entry) const {
  absl::InlinedVector<char, 128> bytes;
  for (const auto& [attribute, value] : entry.when) AppendValue(value, &bytes);
  if (group.prefix >= 0) AppendValue(AsText(entry.network->address), &bytes);
  return hasher_.Hash({bytes.data(), bytes.size()});
}

// Whether a request may meet the entry and also an equally specific one of another group, which
// then names other attributes.
bool RuleSet::Index::Collides(const Place& place, const Group& group, const Entry& entry,
                              const Leaf& leaf, uint32_t* with) {
  for (const Group& other : place.groups) {
    if (&other == &group || other.dimension != group.dimension || other.rank != group.rank) {
      continue;
    }
    for (const auto& [values, known] : other.listed) {
      if (known.target == leaf.target || known.rank() != leaf.rank() || !known.Overlaps(leaf)) {
        continue;
      }
      bool may_meet = true;
      for (size_t i = 0; i < other.attributes.size() && may_meet; ++i) {
        const std::string_view mine = ValueFor(entry.when, other.attributes[i]);
        may_meet = mine.data() == nullptr || mine == values[i];
      }
      if (may_meet && group.prefix >= 0) may_meet = AsText(entry.network->address) == values.back();
      if (may_meet) {
        *with = known.target;
        return true;
      }
    }
  }
  return false;
}

bool RuleSet::Index::Add(const Entry& entry, uint32_t* collides_with) {
  Leaf leaf{entry.target, kNoPattern, entry.tiers, entry.methods};
  if (entry.endpoint != nullptr && entry.endpoint->has_name) {
    leaf.pattern = static_cast<uint32_t>(patterns_.size());
    patterns_.push_back(*entry.endpoint);
  }
  Place& place = places_[static_cast<size_t>(PlaceFor(entry.endpoint))];
  Group& group = GroupFor(place, entry);
  const bool is_plain = group.attributes.empty() && group.prefix < 0;
  Leaves& leaves = is_plain ? group.leaves : group.by_value[ValueOf(group, entry)];
  for (const Leaf& known : leaves) {
    if (keeps_equal_) break;
    if (known.target != leaf.target && known.rank() == leaf.rank() && known.Overlaps(leaf)) {
      *collides_with = known.target;
      return false;
    }
  }
  if (!keeps_equal_ && Collides(place, group, entry, leaf, collides_with)) return false;
  leaves.push_back(leaf);
  if (!is_plain && !keeps_equal_) {
    std::vector<std::string> values;
    for (const auto& [attribute, value] : entry.when) values.emplace_back(value);
    if (group.prefix >= 0) values.emplace_back(AsText(entry.network->address));
    group.listed.emplace_back(std::move(values), leaf);
  }
  return true;
}

void RuleSet::Index::Finish() {
  for (Place& place : places_) {
    for (Group& group : place.groups) group.listed = {};
  }
}

void RuleSet::Index::SetTimes(uint32_t target, int64_t from_ns, int64_t until_ns) {
  times_.emplace(target, std::make_pair(from_ns, until_ns));
}

bool RuleSet::Index::IsInForce(uint32_t target, int64_t now_ns) const {
  const auto at = times_.find(target);
  return at == times_.end() || (at->second.first <= now_ns && now_ns < at->second.second);
}

void RuleSet::Index::Find(const Request& request, std::string_view endpoint, int tier,
                          RequestMethod method, int64_t now_ns, AllFound* found) const {
  const NumberSet given = NumberSet{1} << method.number;
  const bool names_head = method.number != method.as_get && method.number != kOtherNumber;
  Search search{request,
                NumberSet{1} << tier,
                given | NumberSet{1} << method.as_get,
                names_head ? given : 0,
                now_ns,
                std::nullopt,
                found};
  if (has_networks_ && request[kIp].data() != nullptr) search.ip = ParseAddress(request[kIp]);
  if (endpoint.data() != nullptr) {
    if (const auto exact = exact_.find(absl::string_view(endpoint.data(), endpoint.size()));
        exact != exact_.end()) {
      Visit(exact->second, search);
    }
    if (nodes_.size() > 1 || nodes_[0].below >= 0) {
      if (!endpoint.empty() && endpoint.front() == '/') Walk(SplitPath(endpoint), 0, 0, search);
    }
  }
  Visit(anywhere_, search);
}

// Visits patterns from the most specific to the least: a literal part comes before `*` or `{name}`,
// and these before `**`.
void RuleSet::Index::Walk(const PathParts& parts, size_t part, uint32_t node,
                          Search& search) const {
  if (part == parts.size()) {
    Visit(nodes_[node].here, search);
  } else {
    if (const auto child = children_.find(ChildView{node, parts[part]}); child != children_.end()) {
      Walk(parts, part + 1, child->second, search);
    }
    if (nodes_[node].any_part != 0) Walk(parts, part + 1, nodes_[node].any_part, search);
  }
  Visit(nodes_[node].below, search);
}

void RuleSet::Index::Visit(int place, Search& search) const {
  if (place < 0) return;
  // Targets found at earlier places are more specific.
  const size_t before = search.found->size();
  for (const Group& group : places_[static_cast<size_t>(place)].groups) {
    const Leaves* leaves = &group.leaves;
    if (!group.attributes.empty() || group.prefix >= 0) {
      absl::InlinedVector<char, 128> bytes;
      bool met = true;
      for (const uint32_t attribute : group.attributes) {
        const std::string_view value = search.request[attribute];
        met &= value.data() != nullptr;
        AppendValue(value, &bytes);
      }
      if (group.prefix >= 0) {
        met &= search.ip.has_value() && HoldsFamilyOf(*search.ip, group.prefix);
        if (met) AppendValue(AsText(Masked(*search.ip, group.prefix)), &bytes);
      }
      if (!met) continue;
      const auto at = group.by_value.find(hasher_.Hash({bytes.data(), bytes.size()}));
      if (at == group.by_value.end()) continue;
      leaves = &at->second;
    }
    for (const Leaf& leaf : *leaves) {
      if ((leaf.tiers & search.tier) == 0 || (leaf.methods & search.method) == 0) continue;
      if (!times_.empty() && !IsInForce(leaf.target, search.now_ns)) continue;
      const bool names_head = (leaf.methods & search.head) != 0 && leaf.methods != kAllNumbers;
      const Found one{leaf.target, group.dimension, leaf.pattern,
                      group.rank | leaf.rank() | (names_head ? 1U : 0U)};
      const auto same =
          std::find_if(search.found->begin(), search.found->end(),
                       [&](const Found& known) { return known.dimension == one.dimension; });
      if (same == search.found->end()) {
        search.found->push_back(one);
      } else if (static_cast<size_t>(same - search.found->begin()) >= before &&
                 (one.rank > same->rank || (one.rank == same->rank && one.target < same->target))) {
        *same = one;
      }
    }
  }
}

}  // namespace tidegate
