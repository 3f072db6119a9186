// Strict reading of a chunked HTTP/1.1 request body.
#ifndef TIDEGATE_SERVER_FRONT_CHUNKS_H_
#define TIDEGATE_SERVER_FRONT_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidegate::server {

class Chunks {
 public:
  enum class State { kPartial, kDone, kMalformed, kTooLarge };

  Chunks(size_t most_bytes, size_t most_line_bytes)
      : most_bytes_(most_bytes), most_line_bytes_(most_line_bytes) {}

  // Removes the bytes of the body from the front of `bytes`, and appends its content to `body`.
  State Read(std::string_view* bytes, std::string* body);

 private:
  enum class Part { kSize, kExtension, kSizeEnd, kData, kDataCr, kDataLf, kTrailer, kTrailerLf };

  State ReadByte(char byte);
  State ReadTrailer(char byte);
  State EndSize();

  const size_t most_bytes_;
  const size_t most_line_bytes_;  // the bound on a size with extensions, and on all trailers
  Part part_ = Part::kSize;
  uint64_t size_ = 0;  // the bytes left of this chunk
  int digits_ = 0;
  size_t line_bytes_ = 0;
  size_t trailer_line_ = 0;  // the bytes of this trailer line
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_CHUNKS_H_
