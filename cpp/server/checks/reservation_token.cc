#include "server/checks/reservation_token.h"

#include "absl/strings/escaping.h"
#include "base/text.h"
#include "server/checks/packed.h"
#include "server/checks/sha256.h"
#include "tidegate/instant.h"
#include "tidegate/reservation.h"

namespace tidegate::server {

namespace {

constexpr std::string_view kStart = "tgs1.";
constexpr size_t kSumBytes = 6;

std::string DigestOf(std::string_view text) {
  const Digest digest = Sha256(text);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string SumOf(std::string_view packed) {
  return DigestOf(std::string(kStart) + std::string(packed)).substr(0, kSumBytes);
}

bool IsSound(const ReservationToken& token) {
  for (const ReservationToken::Part& part : token.parts) {
    if (part.units < Reservation::kNone || part.units > Reservation::kMostUnits) return false;
    if (part.until_ns < 0) return false;
  }
  return token.admitted_ns >= 0 && token.admitted_ns <= kMaxInstantNs && token.factor >= 1;
}

}  // namespace

uint64_t DigestOfCount(std::string_view name) { return Unpacker(DigestOf(name)).Number(8); }

std::string Encoded(const ReservationToken& token) {
  std::string packed;
  for (const uint64_t half : token.id) AppendNumber(half, 8, &packed);
  AppendNumber(static_cast<uint64_t>(token.admitted_ns), 8, &packed);
  AppendNumber(token.factor, 4, &packed);
  AppendNumber(token.parts.size(), 2, &packed);
  for (const ReservationToken::Part& part : token.parts) {
    AppendNumber(part.count, 8, &packed);
    AppendNumber(static_cast<uint64_t>(part.units), 8, &packed);
    AppendNumber(static_cast<uint64_t>(part.until_ns), 8, &packed);
  }
  for (const auto& [name, value] : token.attributes) {
    AppendText(name, &packed);
    AppendText(value, &packed);
  }
  packed += SumOf(packed);
  return std::string(kStart) + absl::WebSafeBase64Escape(Absl(packed));
}

std::optional<ReservationToken> DecodedReservation(std::string_view text) {
  if (text.size() > kMostReservationTokenBytes || !text.starts_with(kStart)) return std::nullopt;
  std::string packed;
  if (!absl::WebSafeBase64Unescape(Absl(text.substr(kStart.size())), &packed)) return std::nullopt;
  if (packed.size() < kSumBytes) return std::nullopt;
  const std::string sum = packed.substr(packed.size() - kSumBytes);
  packed.resize(packed.size() - kSumBytes);
  if (SumOf(packed) != sum) return std::nullopt;
  Unpacker unpacker(packed);
  ReservationToken token;
  for (uint64_t& half : token.id) half = unpacker.Number(8);
  token.admitted_ns = static_cast<int64_t>(unpacker.Number(8));
  token.factor = static_cast<uint32_t>(unpacker.Number(4));
  for (uint64_t left = unpacker.Number(2); left > 0 && unpacker.is_sound(); --left) {
    const uint64_t count = unpacker.Number(8);
    const auto units = static_cast<int64_t>(unpacker.Number(8));
    token.parts.push_back({count, units, static_cast<int64_t>(unpacker.Number(8))});
  }
  while (unpacker.is_sound() && !unpacker.is_over()) {
    std::string name = unpacker.Text();
    token.attributes.emplace_back(std::move(name), unpacker.Text());
  }
  if (!unpacker.is_over() || !IsSound(token)) return std::nullopt;
  return token;
}

}  // namespace tidegate::server
