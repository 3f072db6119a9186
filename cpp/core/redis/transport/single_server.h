// The client of one server: standalone, or the master that sentinels name.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_SINGLE_SERVER_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_SINGLE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "redis/transport/client.h"
#include "redis/transport/connection.h"
#include "redis/transport/io_thread.h"
#include "redis/transport/process_local.h"

namespace tidegate::redis {

class SingleServer final : public Client {
 public:
  // Begins to connect. `options` must outlive this.
  explicit SingleServer(const RedisOptions& options);

  absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request, Instant deadline) override;
  void Send(uint16_t slot, std::unique_ptr<Caller> caller) override;
  void Kick() override;
  void Renew(const std::string& why) override;
  bool ShowsLife() override;

 private:
  struct Link {
    explicit Link(const RedisOptions& options)
        : connection(std::make_shared<Connection>(options, io)) {}
    void Start() { connection->Start(); }
    void Stop() {
      connection->Stop();
      io->Stop();
    }

    const std::shared_ptr<IoThread> io = std::make_shared<IoThread>();
    const std::shared_ptr<Connection> connection;
  };

  ProcessLocal<Link> link_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_SINGLE_SERVER_H_
