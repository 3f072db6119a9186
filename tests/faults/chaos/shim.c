// Loaded before a process (LD_PRELOAD), this library shifts the wall clock that the process sees
// and decides what the host name "redis.chaos" resolves to. The campaign changes both while the
// process runs, through a page that they share. It can also have the clock of leases go slow.
//
// Waits that end at an instant of the wall clock are cut into slices, so that a step of the clock
// ends or prolongs them as a step of the real clock would. The monotonic clock is left alone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct Page {
  volatile int64_t offset_ns;  // added to the wall clock
  volatile int64_t names;      // 0: the name resolves; 1: it does not; 2: no answer comes
  volatile int64_t slowness;   // by which CLOCK_BOOTTIME goes slower; 0: it does not
};

static struct Page none;
static struct Page* page = &none;
static const char* boot_id;  // a file that stands in for the kernel's boot id, or NULL

static const int64_t kSecond = 1000000000;
static const int64_t kSlice = 10000000;

__attribute__((constructor)) static void Begin(void) {
  boot_id = getenv("CHAOS_BOOT_ID");
  const char* path = getenv("CHAOS_PAGE");
  const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(struct Page), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) page = mapped;
}

// The function of that name that this one stands in for.
#define REAL(name)               \
  static __typeof__(&name) real; \
  if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

// Not through the library, whose function is the one below.
static int64_t RealNow(void) {
  struct timespec t;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

static int64_t ToNs(const struct timespec* t) { return t->tv_sec * kSecond + t->tv_nsec; }

static struct timespec FromNs(int64_t ns) {
  struct timespec t = {ns / kSecond, ns % kSecond};
  if (t.tv_nsec < 0) {
    t.tv_nsec += kSecond;
    --t.tv_sec;
  }
  return t;
}

// The end of the next slice of a wait until `deadline` of the shifted clock, by the real clock.
// False if the deadline has passed.
static int NextSlice(int64_t deadline, struct timespec* end) {
  const int64_t now = RealNow();
  const int64_t left = deadline - (now + page->offset_ns);
  if (left <= 0) return 0;
  *end = FromNs(now + (left < kSlice ? left : kSlice));
  return 1;
}

int clock_gettime(clockid_t id, struct timespec* t) {
  REAL(clock_gettime);
  const int result = real(id, t);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    *t = FromNs(ToNs(t) + page->offset_ns);
  }
  if (result == 0 && id == CLOCK_BOOTTIME && page->slowness > 1) {
    *t = FromNs(ToNs(t) / page->slowness);
  }
  return result;
}

int gettimeofday(struct timeval* tv, void* zone) {
  (void)zone;
  const int64_t ns = RealNow() + page->offset_ns;
  const struct timespec t = FromNs(ns);
  tv->tv_sec = t.tv_sec;
  tv->tv_usec = t.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  const struct timespec t = FromNs(RealNow() + page->offset_ns);
  if (out != NULL) *out = t.tv_sec;
  return t.tv_sec;
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  REAL(syscall);
  const int wait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number != SYS_futex || (a[1] & ~FUTEX_PRIVATE_FLAG) != wait || a[3] == 0) {
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const int64_t deadline = ToNs((const struct timespec*)a[3]);
  struct timespec end;
  for (;;) {
    if (!NextSlice(deadline, &end)) {
      errno = ETIMEDOUT;
      return -1;
    }
    const long result = real(number, a[0], a[1], a[2], (long)&end, a[4], a[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex,
                           const struct timespec* deadline) {
  REAL(pthread_cond_timedwait);
  // glibc: this bit says that the condition waits by the monotonic clock.
  if ((cond->__data.__wrefs & 2) != 0) return real(cond, mutex, deadline);
  struct timespec end;
  for (;;) {
    if (!NextSlice(ToNs(deadline), &end)) return ETIMEDOUT;
    const int result = real(cond, mutex, &end);
    if (result != ETIMEDOUT) return result;
  }
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t id,
                           const struct timespec* deadline) {
  REAL(pthread_cond_clockwait);
  if (id != CLOCK_REALTIME) return real(cond, mutex, id, deadline);
  struct timespec end;
  for (;;) {
    if (!NextSlice(ToNs(deadline), &end)) return ETIMEDOUT;
    const int result = real(cond, mutex, id, &end);
    if (result != ETIMEDOUT) return result;
  }
}

int sem_timedwait(sem_t* sem, const struct timespec* deadline) {
  REAL(sem_timedwait);
  struct timespec end;
  for (;;) {
    if (!NextSlice(ToNs(deadline), &end)) {
      errno = ETIMEDOUT;
      return -1;
    }
    if (real(sem, &end) == 0) return 0;
    if (errno != ETIMEDOUT) return -1;
  }
}

int sem_clockwait(sem_t* sem, clockid_t id, const struct timespec* deadline) {
  if (id == CLOCK_REALTIME) return sem_timedwait(sem, deadline);
  REAL(sem_clockwait);
  return real(sem, id, deadline);
}

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints,
                struct addrinfo** found) {
  REAL(getaddrinfo);
  if (node == NULL || strcmp(node, "redis.chaos") != 0) return real(node, service, hints, found);
  while (page->names == 2) usleep(10000);
  if (page->names == 1) return EAI_AGAIN;
  return real("127.0.0.1", service, hints, found);
}

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  const int is_boot_id = boot_id != NULL && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0;
  return real(is_boot_id ? boot_id : path, mode);
}
