// Keeps child processes from inheriting a listening socket after fork(): otherwise the port of a
// killed process would still receive connections that nobody accepts.
#ifndef TIDEGATE_SERVER_FRONT_NOT_INHERITED_H_
#define TIDEGATE_SERVER_FRONT_NOT_INHERITED_H_

namespace tidegate::server {

// In a child, the descriptor then refers to /dev/null. Thread-safe.
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
