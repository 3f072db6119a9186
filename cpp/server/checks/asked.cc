#include "server/checks/asked.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/percent.h"

namespace tidegate::server {

std::string_view Asked::Get(std::string_view name) const {
  for (const Attribute& attribute : attributes) {
    if (attribute.name == name) return attribute.value;
  }
  return {};
}

std::optional<Problem> Asked::Add(std::string_view name, std::string_view value) {
  if (name.empty() || name.size() > kMostNameBytes) {
    return Problem::BadRequest(absl::StrCat("the name of an attribute has ", name.size(),
                                            " bytes; expected 1 to ", kMostNameBytes));
  }
  if (value.size() > kMostValueBytes) {
    return Problem::BadRequest(absl::StrCat("the attribute ", Quote(name), " has ", value.size(),
                                            " bytes; expected at most ", kMostValueBytes));
  }
  if (attributes.size() == kMostAttributes) {
    return Problem::BadRequest(absl::StrCat("more than ", kMostAttributes,
                                            " attributes were given; expected at most that many"));
  }
  attributes.push_back({name, value.data() == nullptr ? std::string_view("") : value});
  return std::nullopt;
}

void Asked::TakeOffQuery(const BoundRules& rules, Decoded* decoded) {
  for (Attribute& attribute : attributes) {
    if (attribute.name != "endpoint") continue;
    const bool keeps_parameters = rules.know_parameters();
    if (IsPlainPath(attribute.value, keeps_parameters)) return;
    attribute.value = decoded->emplace_back(PlainPath(attribute.value, keeps_parameters));
    return;
  }
}

Problem CostProblem(std::string_view given, int64_t least) {
  return Problem::BadRequest(absl::StrCat("the cost is ", Absl(given),
                                          "; expected an integer from ", least, " to ", kMostCost));
}

Problem UsageProblem(std::string_view field, std::string_view given) {
  return Problem::BadRequest(absl::StrCat("the usage of ", Quote(field), " is ", Absl(given),
                                          "; expected an integer from 0 to ", kMostCost));
}

Problem CostAndUsage() {
  return Problem::BadRequest("a cost was given beside a usage; expected one of them");
}

std::optional<Problem> Asked::Use(std::string_view field, int64_t used) {
  if (used < 0 || used > kMostCost) return UsageProblem(field, std::to_string(used));
  if (!usage.has_value()) usage.emplace();
  for (auto& [known, units] : *usage) {
    if (known != field) continue;
    units = used;
    return std::nullopt;
  }
  if (usage->size() == kMostAttributes) {
    return Problem::BadRequest(absl::StrCat("the usage has more than ", kMostAttributes,
                                            " fields; expected at most that many"));
  }
  usage->emplace_back(field, used);
  return std::nullopt;
}

Problem TtlProblem(std::string_view given) {
  return Problem::BadRequest(
      absl::StrCat("the ttl is ", Absl(given), "; expected 0.001 to 31622400 seconds"));
}

}  // namespace tidegate::server
