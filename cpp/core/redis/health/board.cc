#include "redis/health/board.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tidegate::redis {
namespace {

// All options that determine whether calls to a Redis fail, and which answers they get.
std::string Identity(const RedisOptions& o) {
  std::string text;
  const auto add = [&text](const auto& value) { absl::StrAppend(&text, value, "\n"); };
  const auto add_text = [&text](const std::string& value) {
    absl::StrAppend(&text, value.size(), ":", value, "\n");
  };
  add(static_cast<int>(o.topology));
  add_text(o.unix_path);
  if (o.nodes.empty()) add_text(absl::StrCat(o.host, ":", o.port));
  for (const RedisAddress& node : o.nodes) add_text(absl::StrCat(node.host, ":", node.port));
  for (const std::string* one :
       {&o.service, &o.sentinel_username, &o.sentinel_password, &o.username, &o.password}) {
    add_text(*one);
  }
  add(o.password_source != nullptr);
  add(o.database);
  add(o.client_clock);
  for (const absl::Duration one : {o.timeout, o.connect_timeout, o.breaker_open}) {
    add(absl::ToInt64Nanoseconds(one));
  }
  add(o.breaker_failures);
  add(o.tls.has_value());
  if (o.tls.has_value()) {
    for (const std::string* one :
         {&o.tls->ca_file, &o.tls->ca_dir, &o.tls->cert_file, &o.tls->key_file}) {
      add_text(*one);
    }
    add(o.tls->verify);
    add(o.tls->check_hostname);
  }
  return text;
}

// The place of `server` on the board; takes one if it has none yet.
BreakerState* PlaceOf(Board& board, uint64_t server) {
  for (BreakerState& place : board.breakers) {
    uint64_t found = place.server.load(std::memory_order_acquire);
    if (found == 0 &&
        place.server.compare_exchange_strong(found, server, std::memory_order_acq_rel)) {
      return &place;
    }
    if (found == server) return &place;
  }
  return nullptr;
}

ShmStore* SharedIn(const RedisOptions& options) {
  return dynamic_cast<ShmStore*>(options.fallback.get());
}

}  // namespace

BoardView::BoardView(const RedisOptions& options)
    : hasher(SharedIn(options) != nullptr ? SharedIn(options)->HasherFor(Identity(options))
                                          : Hasher(Hasher::RandomSeed())),
      board(nullptr),
      breaker(nullptr) {
  if (ShmStore* const shm = SharedIn(options); shm != nullptr) {
    board = static_cast<Board*>(shm->board());
    breaker = PlaceOf(*board, hasher.Hash("").lo | 1);
    if (breaker != nullptr) return;
  }
  own = std::make_unique<Board>();
  board = own.get();
  breaker = &board->breakers[0];
}

}  // namespace tidegate::redis
