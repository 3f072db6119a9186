#include "base/on_a_thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <thread>

namespace tidegate {

bool RunOnAThread(std::function<void()> work) {
  // The program's signal handlers must not run on a thread that it does not know.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  bool started = true;
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::exception&) {  // a lack of resources or of memory
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace tidegate
