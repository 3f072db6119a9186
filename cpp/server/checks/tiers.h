// The tiers of users, for requests that come without a tier.
//
//   TiersBuilder builder;
//   builder.Add("42", "premium");
//   std::shared_ptr<const Tiers> tiers = std::move(builder).Finish();
//
// A user takes 10 bytes: 56 bits of a keyed hash and the number of the tier, at a load of 0.8. The
// chance that an unknown user is mistaken for a known one is about 2^-54.
#ifndef TIDEGATE_SERVER_CHECKS_TIERS_H_
#define TIDEGATE_SERVER_CHECKS_TIERS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tidegate/fingerprint.h"

namespace tidegate::server {

// Immutable; thread-safe.
class Tiers {
 public:
  // The tier of the user; a view without data if the user is not in the table.
  std::string_view Of(std::string_view user) const;
  size_t size() const { return size_; }
  size_t bytes() const { return slots_.size() * sizeof(uint64_t); }

 private:
  friend class TiersBuilder;
  explicit Tiers(const Hasher& hasher) : hasher_(hasher) {}
  // The slot of the user with this hash: the search begins at the low word, and the slot keeps the
  // high word.
  size_t SlotOf(const Fingerprint& user) const;

  const Hasher hasher_;
  // The high bits are the hash and the low bits the number of the tier, from 1 up; 0 is empty.
  std::vector<uint64_t> slots_;
  size_t size_ = 0;
  std::vector<std::string> names_;
};

// Takes 16 bytes a user until Finish().
class TiersBuilder {
 public:
  static constexpr size_t kMostTiers = 255;

  TiersBuilder();
  // The last tier of a user counts. Returns an error if there are too many tiers.
  absl::Status Add(std::string_view user, std::string_view tier);
  size_t added() const { return users_.size(); }
  std::shared_ptr<const Tiers> Finish() &&;

 private:
  Hasher hasher_;
  std::deque<Fingerprint> users_;  // the low bits of `hi` are the number of the tier
  std::vector<std::string> names_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_TIERS_H_
