#include "server/front/not_inherited.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace tidegate::server {
namespace {

struct Sockets {
  std::mutex mu;  // held during fork(), so that the child sees a consistent list
  std::vector<int> fds;
};

Sockets& All() {
  static Sockets& all = *new Sockets;  // never destroyed: a process may fork while it exits
  return all;
}

void ReplaceInChild() {
  Sockets& all = All();
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const int fd : all.fds) {
    if (null >= 0) (void)dup3(null, fd, O_CLOEXEC);
  }
  if (null >= 0) (void)close(null);
  all.fds.clear();
  all.mu.unlock();
}

}  // namespace

NotInherited::NotInherited(int fd) : fd_(fd) {
  static const int once =
      pthread_atfork([] { All().mu.lock(); }, [] { All().mu.unlock(); }, ReplaceInChild);
  (void)once;
  const std::lock_guard lock(All().mu);
  All().fds.push_back(fd);
}

NotInherited::~NotInherited() {
  const std::lock_guard lock(All().mu);
  std::vector<int>& fds = All().fds;
  const auto place = std::find(fds.begin(), fds.end(), fd_);
  if (place != fds.end()) fds.erase(place);
}

}  // namespace tidegate::server
