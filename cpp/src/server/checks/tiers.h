// The tiers of users, for requests that come without one.
//
//   TiersBuilder builder;
//   builder.Add("42", "premium");
//   std::shared_ptr<const Tiers> tiers = std::move(builder).Finish();
//
// A user takes 10 bytes: 56 bits of a keyed hash and the number of the tier, at a load of 0.8. A
// user who is not in the table is taken for one who is with a chance of about 2^-54.
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
  // The tier of the user; a view without data for one who is not in the table.
  std::string_view Of(std::string_view user) const;
  size_t size() const { return size_; }
  size_t bytes() const { return slots_.size() * sizeof(uint64_t); }

 private:
  friend class TiersBuilder;
  explicit Tiers(const Hasher& hasher) : hasher_(hasher) {}
  // Of the user with this hash: of which the low word says where the search begins, and the high
  // one is kept.
  size_t SlotOf(const Fingerprint& user) const;

  const Hasher hasher_;
  // The hash above the number of the tier, from 1 up; 0 for an empty slot.
  std::vector<uint64_t> slots_;
  size_t size_ = 0;
  std::vector<std::string> names_;
};

// 16 bytes a user until it has finished.
class TiersBuilder {
 public:
  static constexpr size_t kMostTiers = 255;

  TiersBuilder();
  // Of a user that is added twice the last tier counts. The error says that there are too many
  // tiers.
  absl::Status Add(std::string_view user, std::string_view tier);
  size_t added() const { return users_.size(); }
  std::shared_ptr<const Tiers> Finish() &&;

 private:
  Hasher hasher_;
  std::deque<Fingerprint> users_;  // in the low bits of `hi` the number of the tier
  std::vector<std::string> names_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_TIERS_H_
