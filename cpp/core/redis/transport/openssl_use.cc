#include "redis/transport/openssl_use.h"

#include <openssl/crypto.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace tidegate::redis {
namespace {

// Sequentially consistent: either the handler of exit() sees a user, or the user sees `exiting`.
std::atomic<bool> exiting{false};
std::atomic<int> users{0};

void AwaitUsers() {
  exiting.store(true);
  // A thread that was ended inside OpenSSL never leaves it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (users.load() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

bool Register() {
  // Handlers run in reverse order: OpenSSL registers its own here, if it has not yet.
  (void)OPENSSL_init_crypto(0, nullptr);
  (void)std::atexit(AwaitUsers);
  // The parent's users of OpenSSL do not exist in the child.
  (void)pthread_atfork(nullptr, nullptr, [] { users.store(0); });
  return true;
}

bool Enter() {
  static const bool registered = Register();
  (void)registered;
  users.fetch_add(1);
  if (!exiting.load()) return true;
  users.fetch_sub(1);
  return false;
}

void Leave() { users.fetch_sub(1); }

// Frees OpenSSL's data of the thread, which it would otherwise do at the very end of the thread.
struct ThreadEnd {
  ~ThreadEnd() {
    if (!Enter()) return;
    OPENSSL_thread_stop();
    Leave();
  }
};

}  // namespace

OpenSslUse::OpenSslUse() : allowed_(Enter()) {
  thread_local ThreadEnd end;
  (void)end;
}

OpenSslUse::~OpenSslUse() {
  if (allowed_) Leave();
}

}  // namespace tidegate::redis
