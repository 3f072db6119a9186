// Refund, Reset and Status.
#ifndef TIDEGATE_SERVER_CHECKS_OTHER_CALLS_H_
#define TIDEGATE_SERVER_CHECKS_OTHER_CALLS_H_

#include <memory>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"

namespace tidegate::server {

// These behave like Service::Handle().
bool Refund(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
            const Later& later);
bool Reset(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
           const Later& later);
bool AnswerStatus(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, Asked asked,
                  Answer* answer, const Later& later);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_OTHER_CALLS_H_
