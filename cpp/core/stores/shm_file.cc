#include "stores/shm_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/platform.h"
#include "table/table.h"

namespace tidegate {
namespace {

using Boot = std::array<unsigned char, 16>;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  const int fd_;
};

absl::Status Failed(const std::string& path, const char* what, int error) {
  return absl::UnavailableError(
      absl::StrCat("the shared memory ", path, " ", what, ": ", std::strerror(error)));
}

absl::Status Refused(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the shared memory ", path, " is refused: ", why,
                   "; remove it (tidegate shm remove), or choose another name"));
}

// An id that differs after every boot; all zero if the system has none.
Boot ThisBoot() {
  char text[64] = {};
#if defined(__APPLE__)
  size_t size = sizeof text - 1;
  sysctlbyname("kern.bootsessionuuid", text, &size, nullptr, 0);
#else
  std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file != nullptr) {
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = 0;
    std::fclose(file);
  }
#endif
  Boot boot{};
  if (text[0] == 0) return boot;
  const XXH128_hash_t hash = XXH3_128bits(text, std::strlen(text));
  std::memcpy(boot.data(), &hash, boot.size());
  return boot;
}

int64_t ReadClock(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

#if defined(TIDEGATE_LINUX)
// Where a link of /proc leads, such as "time:[4026531834]"; empty if there is none.
std::string LinkAt(const char* path) {
  char text[64];
  const ssize_t size = readlink(path, text, sizeof text);
  return size < 0 ? std::string() : std::string(text, static_cast<size_t>(size));
}
#endif

uint64_t ChecksumOf(const ShmHeader& header) {
  return XXH3_64bits(&header, offsetof(ShmHeader, checksum));
}

std::string Megabytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Allocates all memory now: later a lack of memory could not be reported, only raise SIGBUS.
int Allocate(int fd, uint64_t bytes) {
#if defined(__APPLE__)
  fstore_t room{F_ALLOCATEALL, F_PEOFPOSMODE, 0, static_cast<off_t>(bytes), 0};
  // Some file systems cannot; they say so.
  if (fcntl(fd, F_PREALLOCATE, &room) != 0 && errno != ENOTSUP && errno != EINVAL) return errno;
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
#else
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
#endif
}

absl::Status NoRoom(const std::string& path, uint64_t bytes, int64_t capacity, int error) {
  const std::string directory = DirectoryOf(path);
  struct statvfs room;
  const bool known = statvfs(directory.c_str(), &room) == 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the shared memory ", path, " for ", capacity, " keys needs ", bytes, " bytes (",
      Megabytes(bytes), ") under ", directory, ", ",
      known ? absl::StrCat(Megabytes(uint64_t{room.f_bavail} * room.f_frsize), " of ",
                           Megabytes(uint64_t{room.f_blocks} * room.f_frsize), " are free there")
            : "which has less space",
      " (", std::strerror(error),
      "); make it larger (containers: --shm-size), or give a smaller capacity"));
}

// A file that has no name yet, or a name that nobody looks for.
struct Nameless {
  int fd = -1;
  std::string name;  // empty if it has none
};

Nameless MakeNameless(const std::string& path) {
#if defined(TIDEGATE_LINUX) && defined(O_TMPFILE)
  const int fd = open(DirectoryOf(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return {fd, ""};
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return {};
#endif
  std::random_device random;
  const std::string name = absl::StrFormat("%s.new-%d-%08x", path, getpid(), random());
  return {open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), name};
}

// Makes a whole file and then names it. Returns AlreadyExists if another process was faster; the
// caller then opens that file.
absl::Status Make(const std::string& path, int64_t capacity) {
  const auto slices = static_cast<uint64_t>(
      std::ceil(static_cast<double>(capacity) / ShmStore::kLoad / Table::kSliceCells));
  ShmHeader header{};
  header.magic = ShmHeader::kMagic;
  header.version = ShmHeader::kVersion;
  header.byte_order = ShmHeader::kByteOrder;
  header.cell_bytes = sizeof(Cell);
  header.slice_cells = Table::kSliceCells;
  header.bytes = ShmHeader::kSlicesAt + slices * Table::kSliceBytes;
  header.slices = slices;
  header.capacity = capacity;
  header.epoch_offset_ns =
      ReadClock(CLOCK_REALTIME) - ReadClock(CLOCK_MONOTONIC) + MonotonicOffsetNs().value_or(0);
  header.boot = ThisBoot();
  header.seed = Hasher::RandomSeed();
  header.checksum = ChecksumOf(header);

  const Nameless made = MakeNameless(path);
  const File file(made.fd);
  if (!file.ok()) return Failed(path, "cannot be made", errno);
  const auto finish = [&]() -> absl::Status {
    // The umask may have removed bits.
    if (fchmod(file.fd(), 0600) != 0) return Failed(path, "cannot be made", errno);
    if (const int error = Allocate(file.fd(), header.bytes); error != 0) {
      return NoRoom(path, header.bytes, capacity, error);
    }
    if (pwrite(file.fd(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
      return Failed(path, "cannot be written", errno);
    }
    const int linked = made.name.empty()
                           ? linkat(AT_FDCWD, absl::StrCat("/proc/self/fd/", file.fd()).c_str(),
                                    AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW)
                           : link(made.name.c_str(), path.c_str());
    if (linked == 0) return absl::OkStatus();
    if (errno == EEXIST) return absl::AlreadyExistsError(path);
    return Failed(path, "cannot be named", errno);
  };
  absl::Status status = finish();
  if (!made.name.empty()) unlink(made.name.c_str());
  return status;
}

// Only its owner can remove such a file: under /dev/shm everybody may make one of any name.
absl::Status RefusedForItsOwner(const std::string& path, uid_t owner) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the shared memory ", path, " is refused: it belongs to user ", owner, ", this is user ",
      geteuid(),
      "; expected another name, or a path in a directory that only this user may write "
      "to, such as shm:///run/SERVICE/limits (systemd: RuntimeDirectory=SERVICE)"));
}

// Returns Aborted for an intact file of an earlier boot.
absl::Status Verify(const std::string& path, int fd, const ShmOptions& options, ShmHeader* header) {
  struct stat found;
  if (fstat(fd, &found) != 0) return Failed(path, "cannot be read", errno);
  if (!S_ISREG(found.st_mode)) return Refused(path, "it is not a regular file");
  if (found.st_uid != geteuid()) return RefusedForItsOwner(path, found.st_uid);
  if ((found.st_mode & 077) != 0) {
    return Refused(path, absl::StrFormat("its mode is %04o, which lets other users in; 0600 "
                                         "is accepted",
                                         found.st_mode & 07777));
  }
  const auto size = static_cast<uint64_t>(found.st_size);
  if (size < sizeof *header) {
    return Refused(path,
                   absl::StrCat("it has ", size, " bytes, less than a header's ", sizeof *header));
  }
  if (pread(fd, static_cast<void*>(header), sizeof *header, 0) !=
      static_cast<ssize_t>(sizeof *header)) {
    return Failed(path, "cannot be read", errno);
  }
  if (header->magic != ShmHeader::kMagic) return Refused(path, "it is not a file of tidegate");
  if (header->version != ShmHeader::kVersion) {
    return Refused(path, absl::StrCat("its layout is version ", header->version,
                                      ", this tidegate has version ", ShmHeader::kVersion));
  }
  if (header->checksum != ChecksumOf(*header)) {
    return Refused(path, "its header is damaged (the checksum does not match)");
  }
  if (header->byte_order != ShmHeader::kByteOrder || header->cell_bytes != sizeof(Cell) ||
      header->slice_cells != Table::kSliceCells || header->slices == 0 ||
      header->slices > uint64_t{1} << 24 ||
      header->bytes != ShmHeader::kSlicesAt + header->slices * Table::kSliceBytes) {
    return Refused(path, "it was made by another build of tidegate");
  }
  if (header->boot != ThisBoot()) return absl::AbortedError("stale");
  if (size != header->bytes) {
    return Refused(path, absl::StrCat("it has ", size, " bytes instead of ", header->bytes));
  }
  if (options.capacity.has_value() && *options.capacity != header->capacity) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the shared memory ", path, " was made for ", header->capacity, " keys, not for ",
        *options.capacity, "; expected that capacity, none, or another name"));
  }
  return absl::OkStatus();
}

// Removes the name of the file open as `fd`, unless another process has already. Holds a lock, so
// that it never removes the file's successor. The kernel releases the lock of a process that dies.
absl::Status Retire(const std::string& path, int fd) {
  if (flock(fd, LOCK_EX) != 0) return Failed(path, "cannot be locked", errno);
  struct stat mine;
  struct stat named;
  if (fstat(fd, &mine) != 0) return Failed(path, "cannot be read", errno);
  if (lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
      mine.st_dev == named.st_dev && unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Failed(path, "is of an earlier boot and cannot be removed", errno);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<int64_t> MonotonicOffsetNs() {
#if defined(TIDEGATE_LINUX)
  std::FILE* const file = std::fopen("/proc/self/timens_offsets", "re");
  if (file == nullptr) return 0;  // a kernel without time namespaces
  char name[16];
  int64_t seconds = 0;
  int64_t ns = 0;
  const bool read = std::fscanf(file, "%15s %" SCNd64 " %" SCNd64, name, &seconds, &ns) == 3 &&
                    std::strcmp(name, "monotonic") == 0;
  std::fclose(file);
  if (!read) return std::nullopt;
  // They are those of the namespace that children will be in.
  if (LinkAt("/proc/self/ns/time") != LinkAt("/proc/self/ns/time_for_children")) {
    return std::nullopt;
  }
  return seconds * 1'000'000'000 + ns;
#else
  return 0;
#endif
}

absl::StatusOr<void*> MapShmFile(const std::string& path, const ShmOptions& options) {
  if (!MonotonicOffsetNs().has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the shared memory ", path,
        " cannot be used: this process has left its time namespace for "
        "its children, and the offset of its own clock is unknown; expected a process that was "
        "started in its time namespace"));
  }
  for (int tries = 0; tries < 1000; ++tries) {
    // Nonblocking: a pipe in its place must not block us.
    const File file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file.ok() && errno == ENOENT) {
      absl::Status made = Make(path, options.capacity.value_or(ShmOptions::kDefaultCapacity));
      if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
      continue;
    }
    if (!file.ok() && errno == ELOOP) return Refused(path, "it is a symbolic link");
    if (!file.ok()) {
      const int error = errno;
      struct stat found;
      if (error == EACCES && lstat(path.c_str(), &found) == 0 && found.st_uid != geteuid()) {
        return RefusedForItsOwner(path, found.st_uid);
      }
      return Failed(path, "cannot be opened", error);
    }
    ShmHeader header;
    absl::Status status = Verify(path, file.fd(), options, &header);
    if (absl::IsAborted(status)) {
      status = Retire(path, file.fd());
      if (status.ok()) continue;
    }
    if (!status.ok()) return status;
    void* memory = mmap(nullptr, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    if (memory == MAP_FAILED) return Failed(path, "cannot be mapped", errno);
    // The header must be the verified one, not one that was written since.
    if (std::memcmp(memory, &header, offsetof(ShmHeader, used)) != 0) {
      munmap(memory, header.bytes);
      return Refused(path, "its header changes");
    }
    return memory;
  }
  return absl::UnavailableError(
      absl::StrCat("the shared memory ", path, " is made and removed over and over"));
}

absl::Status RemoveShmFile(const std::string& path, bool any) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return Failed(path, "cannot be removed", errno);
  if (!S_ISREG(found.st_mode) || found.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not removed: it is not a regular file of this user"));
  }
  if (!any) {
    const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    uint64_t magic = 0;
    if (!file.ok() || pread(file.fd(), &magic, sizeof magic, 0) != sizeof magic ||
        magic != ShmHeader::kMagic) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not removed: it is not a file of tidegate"));
    }
  }
  if (unlink(path.c_str()) != 0) return Failed(path, "cannot be removed", errno);
  return absl::OkStatus();
}

}  // namespace tidegate
