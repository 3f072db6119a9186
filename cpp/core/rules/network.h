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

// An IPv6 address. IPv4 addresses are mapped to IPv6 (::ffff:0:0/96), also those that a gateway of
// NAT64 has put into one of IPv6 (64:ff9b::/96).
using Address = std::array<uint8_t, 16>;
// Nothing if the text is not an address. Brackets, a port and a zone are left out, as in
// "[2001:db8::1]:443", "192.0.2.1:443" and "fe80::1%eth0".
std::optional<Address> ParseAddress(std::string_view text);
// The text that a client with this address is counted by. For IPv6 it is the network of 64 bits,
// made in `room`, since a client may have every address in it. Any other text stays as it is.
std::string_view CountedAddress(std::string_view text, std::string* room);
// Whether a network of this prefix may hold the address. One that is shorter than the prefix of all
// mapped addresses is one of IPv6, which has no address of IPv4.
bool HoldsFamilyOf(const Address& address, int prefix);
// The address with all bits after the first `prefix` set to 0.
Address Masked(Address address, int prefix);

struct Network {
  Address address{};
  int prefix = 0;  // from 0 to 128

  // Reads "10.0.0.0/8", "2001:db8::/32", or an address alone.
  static absl::StatusOr<Network> Parse(std::string_view text);
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_NETWORK_H_
