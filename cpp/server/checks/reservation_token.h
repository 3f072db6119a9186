// The token by which callers settle a reservation: at any instance of the service, also one that
// was started since, and under rules that have changed since, as far as they still count the same.
//
// A token holds the reservation's id, which nobody can guess, what was reserved of which counts,
// and the attributes of the request. It gives no units by itself: the store has a record of each
// open reservation, and takes the units from there.
#ifndef TIDEGATE_SERVER_CHECKS_RESERVATION_TOKEN_H_
#define TIDEGATE_SERVER_CHECKS_RESERVATION_TOKEN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidegate::server {

struct ReservationToken {
  struct Part {
    uint64_t count = 0;  // DigestOfCount() of what it is charged to
    int64_t units = 0;   // Reservation::kNone if nothing was reserved
    int64_t until_ns = 0;
  };

  std::array<uint64_t, 2> id{};
  int64_t admitted_ns = 0;
  uint32_t factor = 1;  // by which a penalty multiplied the cost
  std::vector<Part> parts;
  std::vector<std::pair<std::string, std::string>> attributes;
};

inline constexpr size_t kMostReservationTokenBytes = size_t{48} << 10;

// A text of letters, digits, '-', '_' and '.'.
std::string Encoded(const ReservationToken& token);
// Nothing if `text` is not a token, or was cut or altered by mistake.
std::optional<ReservationToken> DecodedReservation(std::string_view text);

// The same in every process for the same name of a count.
uint64_t DigestOfCount(std::string_view name);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_RESERVATION_TOKEN_H_
