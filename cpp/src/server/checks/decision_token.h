// What a caller keeps of a decision, so that a refund gives back exactly what it charged.
#ifndef TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
#define TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tidegate/decision.h"

namespace tidegate::server {

struct DecisionToken {
  uint64_t generation = 0;  // of the rules that decided: BoundRules::generation()
  int64_t cost = 1;
  Decision hit;  // allowed, with its instant and where it was charged
};

std::string Encoded(const DecisionToken& token);
// None where it is no token.
std::optional<DecisionToken> DecodedToken(std::string_view text);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DECISION_TOKEN_H_
