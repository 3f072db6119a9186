#include "server/checks/decision_token.h"

#include "tidegate/step.h"

namespace tidegate::server {

namespace {

constexpr uint64_t kVersion = 2;

void Append(uint64_t number, size_t bytes, std::string* text) {
  for (size_t i = 0; i < bytes; ++i) *text += static_cast<char>(number >> (8 * i) & 0xff);
}

uint64_t Take(std::string_view* text, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i) {
    number |= uint64_t{static_cast<unsigned char>((*text)[i])} << (8 * i);
  }
  text->remove_prefix(bytes);
  return number;
}

constexpr size_t kTokenBytes = 1 + 8 + 8 + 8 + 8 + 1 + 2;

}  // namespace

std::string Encoded(const DecisionToken& token) {
  std::string text;
  text.reserve(kTokenBytes);
  Append(kVersion, 1, &text);
  Append(token.generation, 8, &text);
  Append(token.number, 8, &text);
  Append(static_cast<uint64_t>(token.cost), 8, &text);
  Append(static_cast<uint64_t>(token.hit.at_ns), 8, &text);
  Append(static_cast<uint64_t>(token.hit.elsewhere), 1, &text);
  Append(token.hit.limits_elsewhere, 2, &text);
  return text;
}

std::optional<DecisionToken> DecodedToken(std::string_view text) {
  if (text.size() != kTokenBytes || Take(&text, 1) != kVersion) return std::nullopt;
  DecisionToken token;
  token.generation = Take(&text, 8);
  token.number = Take(&text, 8);
  token.cost = static_cast<int64_t>(Take(&text, 8));
  token.hit.allowed = true;
  token.hit.at_ns = static_cast<int64_t>(Take(&text, 8));
  const uint64_t elsewhere = Take(&text, 1);
  token.hit.elsewhere = static_cast<ChargedIn>(elsewhere);
  token.hit.limits_elsewhere = static_cast<uint16_t>(Take(&text, 2));
  const bool is_sound = token.cost >= 1 && token.cost <= Limit::kMaxCount && token.hit.at_ns >= 0 &&
                        token.hit.at_ns <= kMaxInstantNs &&
                        elsewhere <= static_cast<uint64_t>(ChargedIn::kNowhere);
  if (!is_sound) return std::nullopt;
  return token;
}

}  // namespace tidegate::server
