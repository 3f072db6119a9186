#include "tidegate/wake.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/platform.h"
#if defined(TIDEGATE_LINUX)
#include <sys/eventfd.h>
#endif

namespace tidegate {

#if defined(TIDEGATE_LINUX)
Wake::Wake() : read_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), write_fd_(read_fd_) {
  if (read_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}
#else
Wake::Wake() {
  int ends[2];
  if (pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  for (const int end : ends) {
    (void)fcntl(end, F_SETFD, FD_CLOEXEC);
    (void)fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
  }
  read_fd_ = ends[0];
  write_fd_ = ends[1];
}
#endif

Wake::~Wake() {
  close(read_fd_);
  if (write_fd_ != read_fd_) close(write_fd_);
}

void Wake::Signal() {
  const uint64_t one = 1;
  // A full pipe is readable already.
  while (write(write_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Wake::Clear() {
  uint64_t some[64];
  while (read(read_fd_, some, sizeof some) > 0 && write_fd_ != read_fd_) {
  }
}

}  // namespace tidegate
