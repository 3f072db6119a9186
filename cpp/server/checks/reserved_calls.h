// The calls of reservations: Reserve, Commit, Extend and Release; and refunds that are made once.
#ifndef TIDEGATE_SERVER_CHECKS_RESERVED_CALLS_H_
#define TIDEGATE_SERVER_CHECKS_RESERVED_CALLS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"
#include "tidegate/decision.h"

namespace tidegate::server {

// These behave like Service::Handle().
bool Reserve(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, Asked asked,
             Answer* answer, const Later& later);
bool Commit(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
            Answer* answer, const Later& later);
bool Extend(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
            Answer* answer, const Later& later);
bool Release(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
             Answer* answer, const Later& later);

// How long a refund is remembered.
inline constexpr int64_t kRefundKnownNs = 600'000'000'000;
// Gives back what a check with these attributes and cost charged, unless a refund `id` has done so.
// `hit` is its decision, or null if it is not known.
bool RefundOnce(const std::shared_ptr<const CheckConfig>& config, const Asked& asked,
                const std::array<uint64_t, 2>& id, const Decision* hit, Answer* answer,
                const Later& later);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_RESERVED_CALLS_H_
