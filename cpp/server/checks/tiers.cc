#include "server/checks/tiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tidegate::server {

namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr uint64_t kTierMask = TiersBuilder::kMostTiers;

}  // namespace

// The number of slots is not rounded to a power of two, which would leave up to half of them empty.
size_t Tiers::SlotOf(const Fingerprint& user) const {
  const uint64_t tag = user.hi & ~kTierMask;
  auto slot = static_cast<size_t>((static_cast<Wide>(user.lo) * slots_.size()) >> 64);
  while (slots_[slot] != 0 && (slots_[slot] & ~kTierMask) != tag) {
    if (++slot == slots_.size()) slot = 0;
  }
  return slot;
}

std::string_view Tiers::Of(std::string_view user) const {
  const uint64_t found = slots_[SlotOf(hasher_.Hash(user))];
  return found == 0 ? std::string_view() : names_[(found & kTierMask) - 1];
}

TiersBuilder::TiersBuilder() : hasher_(Hasher::RandomSeed()) {}

absl::Status TiersBuilder::Add(std::string_view user, std::string_view tier) {
  auto name = std::find(names_.begin(), names_.end(), tier);
  if (name == names_.end()) {
    if (names_.size() == kMostTiers) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMostTiers, " tiers were given; expected at most that many"));
    }
    name = names_.insert(names_.end(), std::string(tier));
  }
  Fingerprint print = hasher_.Hash(user);
  print.hi = (print.hi & ~kTierMask) | static_cast<uint64_t>(name - names_.begin() + 1);
  users_.push_back(print);
  return absl::OkStatus();
}

std::shared_ptr<const Tiers> TiersBuilder::Finish() && {
  auto tiers = std::shared_ptr<Tiers>(new Tiers(hasher_));
  tiers->slots_.assign(users_.size() + users_.size() / 4 + 1, 0);
  tiers->names_ = std::move(names_);
  for (const Fingerprint& user : users_) {
    uint64_t& slot = tiers->slots_[tiers->SlotOf(user)];
    if (slot == 0) ++tiers->size_;
    slot = user.hi;
  }
  users_.clear();
  return tiers;
}

}  // namespace tidegate::server
