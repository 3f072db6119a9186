// However the network cuts the bytes of a server, they are read as the same replies, or as broken
// by the same fault. The first byte picks whether the rest is sent unchanged or builds valid
// replies, which must then be read. The next eight are the lengths of the pieces, in turn.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fuzzer/FuzzedDataProvider.h"
#include "redis/transport/stream.h"

namespace tidegate::redis {
namespace {

constexpr size_t kMostBytes = 4096;
constexpr int kDeepest = 4;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

struct Outcome {
  std::vector<Reply> replies;
  const char* fault = nullptr;
};

// How a stream reads `bytes`, sent in pieces of these lengths, over and over.
Outcome ReadInPieces(std::string_view bytes, const std::vector<size_t>& lengths) {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
  Outcome outcome;
  Stream stream(ends[0]);
  for (size_t piece = 0; !bytes.empty() && outcome.fault == nullptr; ++piece) {
    const size_t length = std::min(lengths[piece % lengths.size()], bytes.size());
    Require(write(ends[1], bytes.data(), length) == static_cast<ssize_t>(length),
            "a socket takes a piece at once");
    bytes.remove_prefix(length);
    outcome.fault = stream.Read(&outcome.replies);
  }
  close(ends[1]);
  return outcome;
}

bool Same(const redisReply& a, const redisReply& b) {
  if (a.type != b.type || a.integer != b.integer || a.len != b.len || a.elements != b.elements) {
    return false;
  }
  if ((a.str == nullptr) != (b.str == nullptr)) return false;
  if (a.str != nullptr && std::memcmp(a.str, b.str, a.len) != 0) return false;
  for (size_t i = 0; i < a.elements; ++i) {
    if (!Same(*a.element[i], *b.element[i])) return false;
  }
  return true;
}

std::string Line(FuzzedDataProvider& in) {
  std::string line = in.ConsumeRandomLengthString(20);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\r' || c == '\n'; }, ' ');
  return line;
}

std::string AReply(FuzzedDataProvider& in, int depth) {
  switch (in.ConsumeIntegralInRange(0, depth < kDeepest ? 6 : 5)) {
    case 0:
      return "+" + Line(in) + "\r\n";
    case 1:
      return "-" + Line(in) + "\r\n";
    case 2:
      return ":" + std::to_string(in.ConsumeIntegral<int64_t>()) + "\r\n";
    case 3:
      return "$-1\r\n";
    case 4:
      return "*-1\r\n";
    case 5: {
      const std::string bytes = in.ConsumeRandomLengthString(100);
      return "$" + std::to_string(bytes.size()) + "\r\n" + bytes + "\r\n";
    }
    default: {
      const int elements = in.ConsumeIntegralInRange(0, 8);
      std::string array = "*" + std::to_string(elements) + "\r\n";
      for (int i = 0; i < elements; ++i) array += AReply(in, depth + 1);
      return array;
    }
  }
}

void Check(std::string_view bytes, const std::vector<size_t>& lengths, const size_t* valid) {
  const Outcome whole = ReadInPieces(bytes, {bytes.size()});
  const Outcome pieces = ReadInPieces(bytes, lengths);
  if (valid != nullptr) {
    Require(whole.fault == nullptr, "valid replies are no fault");
    Require(whole.replies.size() == *valid, "each valid reply is read");
  }
  Require((whole.fault == nullptr) == (pieces.fault == nullptr), "pieces have the same fault");
  Require(whole.fault == nullptr || std::string_view(whole.fault) == pieces.fault,
          "pieces have the same fault");
  Require(whole.replies.size() == pieces.replies.size(), "pieces are as many replies");
  for (size_t i = 0; i < whole.replies.size(); ++i) {
    Require(Same(*whole.replies[i], *pieces.replies[i]), "pieces are the same replies");
  }
}

}  // namespace
}  // namespace tidegate::redis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 10 || size > tidegate::redis::kMostBytes) return 0;
  std::vector<size_t> lengths;
  for (size_t i = 1; i < 9; ++i) lengths.push_back(1 + data[i]);
  if (data[0] % 2 == 0) {
    const std::string_view bytes(reinterpret_cast<const char*>(data + 9), size - 9);
    tidegate::redis::Check(bytes, lengths, nullptr);
    return 0;
  }
  FuzzedDataProvider in(data + 9, size - 9);
  std::string bytes;
  size_t count = 0;
  while (in.remaining_bytes() > 0 && bytes.size() < tidegate::redis::kMostBytes) {
    bytes += tidegate::redis::AReply(in, 0);
    ++count;
  }
  tidegate::redis::Check(bytes, lengths, &count);
  return 0;
}
