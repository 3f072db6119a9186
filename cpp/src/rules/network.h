// Ranges of IP addresses.
#ifndef TIDEGATE_RULES_NETWORK_H_
#define TIDEGATE_RULES_NETWORK_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tidegate {

// An IPv4 address as the IPv6 address that stands for it (::ffff:0:0/96).
using Address = std::array<uint8_t, 16>;
// Empty for what is no address.
std::optional<Address> ParseAddress(std::string_view text);
// What a client of this address is counted by: of IPv6 its network of 64 bits, since a client has
// as many addresses in it as it wants. `text` itself where that is an IPv4 address or none; else it
// is made in `room`.
std::string_view CountedAddress(std::string_view text, std::string* room);
// With all bits after the first `prefix` set to 0.
Address Masked(Address address, int prefix);

struct Network {
  Address address{};
  int prefix = 0;  // from 0 to 128

  // "10.0.0.0/8", "2001:db8::/32", or an address alone.
  static absl::StatusOr<Network> Parse(std::string_view text);
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_NETWORK_H_
