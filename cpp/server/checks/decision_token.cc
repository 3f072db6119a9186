#include "server/checks/decision_token.h"

#include "server/checks/packed.h"
#include "tidegate/fingerprint.h"
#include "tidegate/step.h"

namespace tidegate::server {

namespace {

constexpr uint64_t kVersion = 2;
constexpr size_t kTokenBytes = 1 + 8 + 4 + 4 + 8 + 8 + 1 + 2;

}  // namespace

uint32_t MarkOf(const Attributes& attributes) {
  static const Hasher hasher(Hasher::Seed{});
  uint64_t sum = 0;
  for (const Attribute& attribute : attributes) {
    sum += hasher.Hash(attribute.value, hasher.Hash(attribute.name)).lo;
  }
  return static_cast<uint32_t>(sum >> 32) | kIsMark;
}

bool DecisionToken::MayBeOf(const Attributes& attributes) const {
  return (mark & kIsMark) == 0 || mark == MarkOf(attributes);
}

std::string Encoded(const DecisionToken& token) {
  std::string text;
  text.reserve(kTokenBytes);
  AppendNumber(kVersion, 1, &text);
  AppendNumber(token.generation, 8, &text);
  AppendNumber(token.number, 4, &text);
  AppendNumber(token.mark, 4, &text);
  AppendNumber(static_cast<uint64_t>(token.cost), 8, &text);
  AppendNumber(static_cast<uint64_t>(token.hit.at_ns), 8, &text);
  AppendNumber(static_cast<uint64_t>(token.hit.elsewhere), 1, &text);
  AppendNumber(token.hit.limits_elsewhere, 2, &text);
  return text;
}

std::optional<DecisionToken> DecodedToken(std::string_view text) {
  Unpacker unpacker(text);
  if (text.size() != kTokenBytes || unpacker.Number(1) != kVersion) return std::nullopt;
  DecisionToken token;
  token.generation = unpacker.Number(8);
  token.number = static_cast<uint32_t>(unpacker.Number(4));
  token.mark = static_cast<uint32_t>(unpacker.Number(4));
  token.cost = static_cast<int64_t>(unpacker.Number(8));
  token.hit.allowed = true;
  token.hit.at_ns = static_cast<int64_t>(unpacker.Number(8));
  const uint64_t elsewhere = unpacker.Number(1);
  token.hit.elsewhere = static_cast<ChargedIn>(elsewhere);
  token.hit.limits_elsewhere = static_cast<uint16_t>(unpacker.Number(2));
  const bool is_sound = token.cost >= 1 && token.cost <= Limit::kMaxCount && token.hit.at_ns >= 0 &&
                        token.hit.at_ns <= kMaxInstantNs &&
                        elsewhere <= static_cast<uint64_t>(ChargedIn::kNowhere);
  if (!is_sound) return std::nullopt;
  return token;
}

}  // namespace tidegate::server
