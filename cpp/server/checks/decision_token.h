// The token of a decision, which a caller keeps so that a refund gives back exactly what was
// charged.
#ifndef TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
#define TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tidegate/decision.h"

namespace tidegate::server {

struct DecisionToken {
  uint64_t generation = 0;  // BoundRules::generation() of the rules that decided
  uint64_t number = 0;      // tells it from all others of the generation
  int64_t cost = 1;
  Decision hit;  // an allowed decision, with its instant and where it was charged
};

std::string Encoded(const DecisionToken& token);
// Returns nothing if `text` is not a token.
std::optional<DecisionToken> DecodedToken(std::string_view text);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
