// A message on its way between a node and the centre, for the model checkers of leases.
#ifndef TIDEGATE_TESTS_CPP_LEASES_MESSAGE_H_
#define TIDEGATE_TESTS_CPP_LEASES_MESSAGE_H_

#include <cstddef>
#include <cstdint>

#include "leases/holding.h"

namespace tidegate::leases {

struct Message {
  enum class Stage : uint8_t { kNone, kQuestion, kReply } stage = Stage::kNone;
  size_t node = 0;
  Question question;
  Granted granted;
};

}  // namespace tidegate::leases

#endif  // TIDEGATE_TESTS_CPP_LEASES_MESSAGE_H_
