#include "redis/transport/single_server.h"

#include <utility>

namespace tidegate::redis {

SingleServer::SingleServer(const RedisOptions& options)
    : link_([&options] { return std::make_shared<Link>(options); }) {}

absl::StatusOr<Reply> SingleServer::Call(uint16_t, const std::string& request, Instant deadline) {
  return link_.Get().connection->Call(request, 1, deadline);
}

void SingleServer::Send(uint16_t, std::unique_ptr<Caller> caller) {
  link_.Get().connection->Send(std::move(caller));
}

void SingleServer::Kick() { link_.Get().io->Flush(); }

void SingleServer::Renew(const std::string& why) { link_.Get().connection->Renew(why); }

bool SingleServer::ShowsLife() { return link_.Get().connection->ShowsLife(); }

}  // namespace tidegate::redis
