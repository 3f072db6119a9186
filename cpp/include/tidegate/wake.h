// A descriptor that is readable after Signal() until Clear(): what wakes a thread or an
// event loop out of its wait for other descriptors. An eventfd where there is one,
// else a pipe.
#ifndef TIDEGATE_WAKE_H_
#define TIDEGATE_WAKE_H_

namespace tidegate {

class Wake {
 public:
  Wake();  // throws std::system_error where there are no descriptors left
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  int fd() const { return read_fd_; }
  // Never blocks; of many, one is enough. Safe from all threads.
  void Signal();
  void Clear();

 private:
  int read_fd_;
  int write_fd_;
};

}  // namespace tidegate

#endif  // TIDEGATE_WAKE_H_
