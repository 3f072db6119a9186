// A descriptor that is readable after Signal() until Clear(): it wakes a thread or an event loop
// that waits for other descriptors. An eventfd if there is one, else a pipe.
#ifndef TIDEGATE_WAKE_H_
#define TIDEGATE_WAKE_H_

namespace tidegate {

class Wake {
 public:
  Wake();  // throws std::system_error if no descriptors are left
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  int fd() const { return read_fd_; }
  // Never blocks; several signals count as one. Safe to call from any thread.
  void Signal();
  void Clear();

 private:
  int read_fd_;
  int write_fd_;
};

}  // namespace tidegate

#endif  // TIDEGATE_WAKE_H_
