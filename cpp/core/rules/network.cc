#include "rules/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate {

namespace {

constexpr int kIpv4Prefix = 96;
constexpr int kCountedPrefix = 64;
constexpr size_t kLongestAddress = 45;
constexpr Address kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Address kNat64 = {0, 0x64, 0xff, 0x9b};

// Whether the address has the same first 96 bits.
bool IsIn(const Address& network, const Address& address) {
  return std::equal(network.begin(), network.begin() + 12, address.begin());
}

absl::Status BadNetwork(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("the network is ", Quote(text), "; expected ", Absl(expected)));
}

}  // namespace

namespace {

// The address as it is written.
std::optional<Address> Written(std::string_view text) {
  if (text.empty() || text.size() > kLongestAddress) return std::nullopt;
  const std::string terminated(text);
  Address address{};
  if (text.find(':') != std::string_view::npos) {
    if (inet_pton(AF_INET6, terminated.c_str(), address.data()) != 1) return std::nullopt;
    return address;
  }
  address = kMapped;
  if (inet_pton(AF_INET, terminated.c_str(), address.data() + 12) != 1) return std::nullopt;
  return address;
}

// The address alone of one with brackets, a port or a zone, as proxies and sockets write it. Empty
// if there is none of these.
std::string_view HostOf(std::string_view text) {
  const size_t colon = text.find(':');
  std::string_view host;
  if (text.front() == '[') {
    const size_t end = text.find(']');
    if (end != std::string_view::npos) host = text.substr(1, end - 1);
  } else if (colon != std::string_view::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
  } else if (text.find('%') != std::string_view::npos) {
    host = text;
  }
  return host.substr(0, host.find('%'));
}

}  // namespace

std::optional<Address> ParseAddress(std::string_view text) {
  // The `ip` of an IPv6 client may be its network, such as 2001:db8::/64.
  std::optional<Address> address = Written(text.substr(0, text.find('/')));
  if (!address.has_value() && !text.empty()) address = Written(HostOf(text));
  if (address.has_value() && IsIn(kNat64, *address)) {
    std::copy_n(kMapped.begin(), 12, address->begin());
  }
  return address;
}

std::string_view CountedAddress(std::string_view text, std::string* room) {
  if (text.find(':') == std::string_view::npos) return text;
  const std::optional<Address> address = ParseAddress(text);
  if (!address.has_value()) return text;
  char shown[INET6_ADDRSTRLEN] = {};
  if (IsIn(kMapped, *address)) {
    inet_ntop(AF_INET, address->data() + 12, shown, sizeof(shown));
    return *room = shown;
  }
  inet_ntop(AF_INET6, Masked(*address, kCountedPrefix).data(), shown, sizeof(shown));
  return *room = std::string(shown) + "/64";
}

bool HoldsFamilyOf(const Address& address, int prefix) {
  return prefix >= kIpv4Prefix || !IsIn(kMapped, address);
}

Address Masked(Address address, int prefix) {
  for (int i = 0; i < 16; ++i) {
    const int kept = std::clamp(prefix - 8 * i, 0, 8);
    address[static_cast<size_t>(i)] &= static_cast<uint8_t>(0xff00U >> kept);
  }
  return address;
}

absl::StatusOr<Network> Network::Parse(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view host = text.substr(0, slash);
  const std::optional<Address> address = Written(host);
  if (!address.has_value())
    return BadNetwork(text, "a CIDR such as '10.0.0.0/8' or '2001:db8::/32'");
  const bool is_v4 = host.find(':') == std::string_view::npos;
  const int most = is_v4 ? 32 : 128;
  int bits = most;
  if (slash != std::string_view::npos) {
    const std::string digits(text.substr(slash + 1));
    const bool plain = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
    if (!plain || !absl::SimpleAtoi(digits, &bits) || bits > most) {
      return BadNetwork(text, absl::StrCat("a prefix from 0 to ", most, " after the '/'"));
    }
  }
  if (bits >= kIpv4Prefix && IsIn(kNat64, *address)) {
    return BadNetwork(text,
                      "the network of IPv4 behind it, such as '192.0.2.0/24', by which clients of "
                      "NAT64 are taken");
  }
  const Network network{*address, bits + (is_v4 ? kIpv4Prefix : 0)};
  if (Masked(*address, network.prefix) != *address) {
    return BadNetwork(text, absl::StrCat("zeros after the first ", bits, " bits of the address"));
  }
  return network;
}

}  // namespace tidegate
