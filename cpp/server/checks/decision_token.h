// The token of a decision, which a caller keeps so that a refund gives back exactly what was
// charged.
#ifndef TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
#define TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/checks/bound_rules.h"
#include "tidegate/decision.h"

namespace tidegate::server {

struct DecisionToken {
  uint64_t generation = 0;  // BoundRules::generation() of the rules that decided
  // Tells it from all others of the generation within the time that refunds are known for.
  uint32_t number = 0;
  // MarkOf() what the check was asked. Versions before had the number's upper half in its place,
  // which has no kIsMark, and read a mark as such.
  uint32_t mark = 0;
  int64_t cost = 1;
  Decision hit;  // an allowed decision, with its instant and where it was charged

  std::array<uint64_t, 2> id() const { return {generation, uint64_t{mark} << 32 | number}; }
  // Whether the check may have had these attributes: an earlier version's token does not say.
  bool MayBeOf(const Attributes& attributes) const;
};

inline constexpr uint32_t kIsMark = uint32_t{1} << 31;
// The same in every process for the same attributes, whatever their order. It finds mistakes, and
// is no secret.
uint32_t MarkOf(const Attributes& attributes);

std::string Encoded(const DecisionToken& token);
// Returns nothing if `text` is not a token.
std::optional<DecisionToken> DecodedToken(std::string_view text);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
