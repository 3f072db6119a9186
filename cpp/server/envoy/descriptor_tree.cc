#include "server/envoy/descriptor_tree.h"

#include <algorithm>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"

namespace tidegate::server::envoy {

namespace {

using Node = DescriptorTree::Node;

// The unit of a limit in responses; unknown for periods without a unit.
Unit UnitOf(const Limit& limit) {
  if (limit.calendar() != Calendar::kNone) {
    if (limit.calendar_units() != 1) return Unit::kUnknown;
    return limit.calendar() == Calendar::kMonth ? Unit::kMonth : Unit::kYear;
  }
  for (uint64_t i = 1; i <= kLastUnit; ++i) {
    if (PeriodNs(static_cast<Unit>(i)) == limit.period_ns()) return static_cast<Unit>(i);
  }
  return Unit::kUnknown;
}

absl::Status CheckSpec(const DescriptorSpec& spec) {
  const auto refuse = [](std::string_view reason) {
    return absl::InvalidArgumentError(Absl(reason));
  };
  if (spec.key.empty()) return refuse("the key is empty; expected a text");
  if (spec.value.has_value() && spec.value->empty()) {
    return refuse("the value is empty; expected a text, or no value for any");
  }
  if (spec.unlimited && !spec.limits.empty()) {
    return refuse("it is unlimited and has limits; expected either");
  }
  if (spec.key.find('*') != std::string::npos) {
    return refuse("the key has a '*'; expected wildcards in values alone");
  }
  if (spec.share_threshold && !spec.is_wildcard()) {
    return refuse("share_threshold is set; expected it with a value that has a '*'");
  }
  if (std::find(spec.replaces.begin(), spec.replaces.end(), "") != spec.replaces.end()) {
    return refuse("a name in replaces is empty; expected the name of a limit");
  }
  if (!spec.name.empty() &&
      std::find(spec.replaces.begin(), spec.replaces.end(), spec.name) != spec.replaces.end()) {
    return refuse("the limit replaces itself; expected the name of another");
  }
  if (spec.algorithm == Algorithm::kConcurrency) {
    return refuse(
        "the algorithm is concurrency, whose places nobody would release; expected "
        "another");
  }
  return absl::OkStatus();
}

std::string MetricPath(const Node& parent, const DescriptorSpec& spec) {
  std::string path = parent.path;
  if (!path.empty()) path.push_back('.');
  absl::StrAppend(&path, spec.key);
  if (spec.value.has_value()) absl::StrAppend(&path, "_", *spec.value);
  return path;
}

}  // namespace

Pattern::Pattern(std::string_view text) : parts_(absl::StrSplit(Absl(text), '*')) {
  for (const std::string& part : parts_) least_ += part.size();
}

bool Pattern::Matches(std::string_view value) const {
  const bool fits =
      value.size() >= least_ && value.starts_with(parts_.front()) && value.ends_with(parts_.back());
  if (!fits || parts_.size() == 1) return fits && value.size() == least_;
  value.remove_prefix(parts_.front().size());
  value.remove_suffix(parts_.back().size());
  // The first place of each part leaves the most room for those after it.
  for (size_t i = 1; i + 1 < parts_.size(); ++i) {
    const size_t at = value.find(parts_[i]);
    if (at == std::string_view::npos) return false;
    value.remove_prefix(at + parts_[i].size());
  }
  return true;
}

void Node::AppendMetric(const Entry& entry, bool all_values, std::string* metric) const {
  if (!metric->empty()) metric->push_back('.');
  metric->append(spec.key);
  const bool is_exact = spec.value.has_value() && !is_wildcard();
  const bool runtime = (all_values || spec.value_to_metric) && !spec.share_threshold && !is_exact;
  if (runtime) {
    if (!entry.value.empty()) absl::StrAppend(metric, "_", Absl(entry.value));
  } else if (spec.value.has_value()) {
    absl::StrAppend(metric, "_", *spec.value);
  }
}

const Node* Node::Find(const Entry& entry) const {
  const auto found = children_.find(Absl(entry.key));
  if (found == children_.end()) return nullptr;
  const Children& children = found->second;
  if (const auto exact = children.by_value.find(Absl(entry.value));
      exact != children.by_value.end()) {
    return exact->second;
  }
  for (const auto& [pattern, node] : children.by_pattern) {
    if (pattern.Matches(entry.value)) return node;
  }
  return children.any;
}

absl::StatusOr<DescriptorTree::Id> DescriptorTree::AddDomain(const DomainSpec& spec) {
  if (spec.name.empty()) {
    return absl::InvalidArgumentError("the domain is empty; expected a text");
  }
  if (domains_.contains(spec.name)) {
    return absl::AlreadyExistsError(absl::StrCat("the domain '", spec.name, "' is given twice"));
  }
  const Id id = static_cast<Id>(nodes_.size());
  Node& node = nodes_.emplace_back();
  node.domain = spec.name;
  node.all_or_none_given = spec.all_or_none.has_value();
  node.all_or_none = spec.all_or_none.value_or(true);
  domains_.emplace(spec.name, &node);
  return id;
}

absl::StatusOr<DescriptorTree::Id> DescriptorTree::AddDescriptor(Id parent, DescriptorSpec spec) {
  if (parent >= nodes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parent is ", parent, "; expected the id of a node that was added"));
  }
  if (absl::Status status = CheckSpec(spec); !status.ok()) return status;
  Node& above = nodes_[parent];
  Node::Children& children = above.children_[spec.key];
  const auto is_same = [&](const auto& other) { return other.second->spec.value == spec.value; };
  const bool is_known = !spec.value.has_value() ? children.any != nullptr
                        : spec.is_wildcard()    ? std::any_of(children.by_pattern.begin(),
                                                              children.by_pattern.end(), is_same)
                                                : children.by_value.contains(*spec.value);
  if (is_known) {
    return absl::AlreadyExistsError("the key and value are those of another descriptor beside it");
  }

  Node node;
  node.parent = &above;
  node.depth = above.depth + 1;
  node.domain = above.domain;
  node.path = MetricPath(above, spec);
  node.spec = std::move(spec);
  if (absl::Status status = AddLimits(&node); !status.ok()) return status;
  for (const Node* each = &node; each->parent != nullptr; each = each->parent) {
    const bool is_exact = each->spec.value.has_value() && !each->is_wildcard();
    const bool wanted = node.spec.detailed_metric || each->spec.value_to_metric;
    node.has_own_metrics |= wanted && !is_exact && !each->spec.share_threshold;
  }

  const Id id = static_cast<Id>(nodes_.size());
  const Node* const added = &nodes_.emplace_back(std::move(node));
  if (!added->spec.value.has_value()) {
    children.any = added;
  } else if (added->is_wildcard()) {
    children.by_pattern.emplace_back(Pattern(*added->spec.value), added);
  } else {
    children.by_value.emplace(*added->spec.value, added);
  }
  return id;
}

absl::Status DescriptorTree::AddLimits(Node* node) {
  const DescriptorSpec& spec = node->spec;
  node->first_limit = limits_;
  for (const std::string& text : spec.limits) {
    LimitSpec defaults;
    defaults.algorithm = spec.algorithm;
    defaults.shadow = spec.shadow || spec.quota;
    defaults.id = std::string(kLimitId);
    absl::StatusOr<Limit> limit = Limit::Parse(text, defaults);
    if (!limit.ok()) return limit.status();
    if (limit->count() > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("the limit is '", text, "'; expected at most ",
                                                     std::numeric_limits<uint32_t>::max(),
                                                     " requests"));
    }
    // Limits with the same identity would share their usage.
    for (const NodeLimit& other : node->limits) {
      if (other.limit.identity() == limit->identity()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the limits '", other.limit.ToString(), "' and '", text,
                         "' have the same period; expected one limit for a period"));
      }
    }
    const Unit unit = UnitOf(*limit);
    const auto count = static_cast<uint32_t>(limit->count());
    node->limits.push_back({*std::move(limit), {count, unit, {}}});
    ++limits_;
  }
  return absl::OkStatus();
}

DescriptorTree::Matched DescriptorTree::Match(std::string_view domain,
                                              absl::Span<const Entry> entries) const {
  const auto found = domains_.find(Absl(domain));
  if (found == domains_.end()) return {};
  const Node* node = found->second;
  for (const Entry& entry : entries) {
    node = node->Find(entry);
    if (node == nullptr) return {found->second, nullptr};
  }
  return {found->second, node->has_limit() ? node : nullptr};
}

std::string CountKey(std::string_view domain, absl::Span<const Entry> entries,
                     const DescriptorTree::Node* node) {
  absl::InlinedVector<const Node*, 8> along(entries.size(), nullptr);
  for (; node != nullptr && node->parent != nullptr; node = node->parent) {
    along[node->depth - 1] = node;
  }
  std::string key;
  const auto append = [&](std::string_view part) {
    absl::StrAppend(&key, part.size(), ":", Absl(part));
  };
  append(domain);
  for (size_t i = 0; i < entries.size(); ++i) {
    append(entries[i].key);
    if (along[i] != nullptr && along[i]->spec.share_threshold) {
      key.push_back('*');
      append(*along[i]->spec.value);
    } else {
      append(entries[i].value);
    }
  }
  return key;
}

}  // namespace tidegate::server::envoy
