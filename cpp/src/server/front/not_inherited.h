// A listening socket that child processes after fork() do not keep: else the port of a process that
// was killed would go on taking connections, which nobody accepts.
#ifndef TIDEGATE_SERVER_FRONT_NOT_INHERITED_H_
#define TIDEGATE_SERVER_FRONT_NOT_INHERITED_H_

namespace tidegate::server {

// In a child, the descriptor is one of /dev/null then. Thread-safe.
class NotInherited {
 public:
  explicit NotInherited(int fd);
  ~NotInherited();
  NotInherited(const NotInherited&) = delete;
  NotInherited& operator=(const NotInherited&) = delete;

 private:
  const int fd_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_NOT_INHERITED_H_
