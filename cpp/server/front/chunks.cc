#include "server/front/chunks.h"

#include <algorithm>

namespace tidegate::server {
namespace {

constexpr int kMostDigits = 15;

int HexDigit(char byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

bool IsControl(char byte) {
  return (static_cast<unsigned char>(byte) < 0x20 && byte != '\t') || byte == 0x7f;
}

}  // namespace

Chunks::State Chunks::Read(std::string_view* bytes, std::string* body) {
  while (!bytes->empty()) {
    if (part_ == Part::kData) {
      const size_t taken = std::min<uint64_t>(size_, bytes->size());
      if (body->size() + taken > most_bytes_) return State::kTooLarge;
      body->append(bytes->substr(0, taken));
      bytes->remove_prefix(taken);
      size_ -= taken;
      if (size_ == 0) part_ = Part::kDataCr;
      continue;
    }
    const State state = ReadByte(bytes->front());
    if (state == State::kMalformed || state == State::kTooLarge) return state;
    bytes->remove_prefix(1);
    if (state == State::kDone) return state;
  }
  return State::kPartial;
}

Chunks::State Chunks::ReadByte(char byte) {
  const auto expect = [&](char expected, Part next) {
    if (byte != expected) return State::kMalformed;
    part_ = next;
    return State::kPartial;
  };
  switch (part_) {
    case Part::kSize:
      if (const int digit = HexDigit(byte); digit >= 0) {
        size_ = size_ << 4 | static_cast<uint64_t>(digit);
        return ++digits_ > kMostDigits ? State::kMalformed : State::kPartial;
      }
      if (digits_ == 0) return State::kMalformed;
      return byte == ';' ? expect(';', Part::kExtension) : expect('\r', Part::kSizeEnd);
    case Part::kExtension:
      if (byte == '\r') return expect('\r', Part::kSizeEnd);
      if (IsControl(byte)) return State::kMalformed;
      return ++line_bytes_ > most_line_bytes_ ? State::kTooLarge : State::kPartial;
    case Part::kSizeEnd:
      return byte == '\n' ? EndSize() : State::kMalformed;
    case Part::kDataCr:
      return expect('\r', Part::kDataLf);
    case Part::kDataLf:
      digits_ = 0;
      return expect('\n', Part::kSize);
    case Part::kTrailer:
    case Part::kTrailerLf:
      return ReadTrailer(byte);
    case Part::kData:
      break;
  }
  return State::kMalformed;
}

Chunks::State Chunks::EndSize() {
  if (size_ > most_bytes_) return State::kTooLarge;
  part_ = size_ > 0 ? Part::kData : Part::kTrailer;
  return State::kPartial;
}

// Trailers are skipped.
Chunks::State Chunks::ReadTrailer(char byte) {
  if (part_ == Part::kTrailerLf) {
    if (byte != '\n') return State::kMalformed;
    if (trailer_line_ == 0) return State::kDone;
    trailer_line_ = 0;
    part_ = Part::kTrailer;
    return State::kPartial;
  }
  if (byte == '\r') {
    part_ = Part::kTrailerLf;
    return State::kPartial;
  }
  if (IsControl(byte)) return State::kMalformed;
  ++trailer_line_;
  return ++line_bytes_ > most_line_bytes_ ? State::kTooLarge : State::kPartial;
}

}  // namespace tidegate::server
