#include "server/envoy/wire_codec.h"

#include <limits>
#include <protozero/buffer_fixed.hpp>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate::server::envoy {

namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;
using protozero::tag_and_type;

// Thrown through the loops of protozero, which also reports its errors by exceptions.
struct OutOfBounds {
  std::string reason;
};

std::string_view View(protozero::data_view bytes) { return {bytes.data(), bytes.size()}; }

// Reads a number of 32 bits. Larger numbers are errors, while other readers drop their high bits.
uint32_t ReadUint32(pbf_reader& reader, std::string_view field) {
  const uint64_t number = reader.get_uint64();
  if (number > std::numeric_limits<uint32_t>::max()) {
    throw OutOfBounds{absl::StrCat(Absl(field), " is ", number, "; expected at most ",
                                   std::numeric_limits<uint32_t>::max())};
  }
  return static_cast<uint32_t>(number);
}

Entry ReadEntry(pbf_reader reader) {
  Entry entry;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        entry.key = View(reader.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        entry.value = View(reader.get_view());
        break;
      default:
        reader.skip();
    }
  }
  return entry;
}

void ReadLimit(pbf_reader reader, LimitOverride* limit) {
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::varint):
        limit->requests_per_unit = ReadUint32(reader, "requests_per_unit");
        break;
      case tag_and_type(2, pbf_wire_type::varint): {
        const uint64_t unit = reader.get_uint64();
        if (unit > kLastUnit) {
          throw OutOfBounds{absl::StrCat("the unit is ", unit, "; expected 1 to ", kLastUnit)};
        }
        limit->unit = static_cast<Unit>(unit);
        break;
      }
      default:
        reader.skip();
    }
  }
}

// A google.protobuf.UInt64Value.
uint64_t ReadUint64Value(pbf_reader reader, uint64_t value) {
  while (reader.next()) {
    if (reader.tag_and_type() == tag_and_type(1, pbf_wire_type::varint)) {
      value = reader.get_uint64();
    } else {
      reader.skip();
    }
  }
  return value;
}

void ReadDescriptor(pbf_reader reader, Descriptor* descriptor) {
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        if (descriptor->entries.size() == RateLimitRequest::kMostEntries) {
          throw OutOfBounds{absl::StrCat("a descriptor has more than ",
                                         RateLimitRequest::kMostEntries, " entries")};
        }
        descriptor->entries.push_back(ReadEntry(reader.get_message()));
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        if (!descriptor->limit.has_value()) descriptor->limit.emplace();
        ReadLimit(reader.get_message(), &*descriptor->limit);
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        descriptor->hits_addend =
            ReadUint64Value(reader.get_message(), descriptor->hits_addend.value_or(0));
        break;
      case tag_and_type(4, pbf_wire_type::varint):
        descriptor->is_negative_hits = reader.get_uint64() != 0;
        break;
      default:
        reader.skip();
    }
  }
}

void ReadRequest(pbf_reader reader, RateLimitRequest* request) {
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        request->domain = View(reader.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        if (request->descriptors.size() == RateLimitRequest::kMostDescriptors) {
          throw OutOfBounds{absl::StrCat("the request has more than ",
                                         RateLimitRequest::kMostDescriptors, " descriptors")};
        }
        ReadDescriptor(reader.get_message(), &request->descriptors.emplace_back());
        break;
      case tag_and_type(3, pbf_wire_type::varint):
        request->hits_addend = ReadUint32(reader, "hits_addend");
        break;
      default:
        reader.skip();
    }
  }
}

// Writes into memory that is large enough, so that no byte is a call of a string that may grow.
using FixedWriter = protozero::basic_pbf_writer<protozero::fixed_size_buffer_adaptor>;

// The most that a message takes beside its strings: each of its numbers in full, and five bytes for
// the length of each message in it while it is written.
constexpr size_t kStatusBytes = 64;
constexpr size_t kHeaderBytes = 20;
constexpr size_t kCodeBytes = 2;

size_t MostBytes(const RateLimitResponse& response) {
  size_t bytes = kCodeBytes;
  for (const DescriptorStatus& status : response.statuses) {
    bytes += kStatusBytes;
    if (status.current_limit.has_value()) bytes += status.current_limit->name.size();
  }
  for (const auto& [name, value] : response.response_headers) {
    bytes += kHeaderBytes + name.size() + value.size();
  }
  return bytes;
}

void WriteStatus(const DescriptorStatus& status, FixedWriter writer) {
  writer.add_enum(1, static_cast<int32_t>(status.code));
  if (status.current_limit.has_value()) {
    FixedWriter limit(writer, 2);
    limit.add_uint32(1, status.current_limit->requests_per_unit);
    limit.add_enum(2, static_cast<int32_t>(status.current_limit->unit));
    const std::string_view name = status.current_limit->name;
    if (!name.empty()) limit.add_string(3, name.data(), name.size());
  }
  if (status.limit_remaining != 0) writer.add_uint32(3, status.limit_remaining);
  if (status.until_reset_ns.has_value()) {
    FixedWriter duration(writer, 4);
    duration.add_int64(1, *status.until_reset_ns / 1'000'000'000);
    duration.add_int32(2, static_cast<int32_t>(*status.until_reset_ns % 1'000'000'000));
  }
}

// Writes a field of a google.protobuf.Struct: its key, and its Value by `write`.
template <typename Write>
void WriteField(pbf_writer& fields, std::string_view key, Write write) {
  pbf_writer field(fields, 1);
  field.add_string(1, key.data(), key.size());
  pbf_writer value(field, 2);
  write(value);
}

__attribute__((cold)) void WriteDynamicMetadata(const RateLimitResponse& response,
                                                pbf_writer metadata) {
  if (response.request != nullptr) response.request->Write(metadata);
  if (!response.metadata.empty()) {
    WriteField(metadata, "metadata", [&](pbf_writer& value) {
      pbf_writer fields(value, 5);
      response.metadata.Write(fields);
    });
  }
  if (!response.has_quota_mode) return;
  WriteField(metadata, "quotaModeEnabled", [](pbf_writer& value) { value.add_bool(4, true); });
  if (response.quota_mode_violations.empty()) return;
  WriteField(metadata, "quotaModeViolations", [&](pbf_writer& value) {
    pbf_writer list(value, 6);
    for (const uint32_t violation : response.quota_mode_violations) {
      pbf_writer number(list, 1);
      number.add_double(2, violation);
    }
  });
}

}  // namespace

absl::Status ParseWire(std::string_view bytes, RateLimitRequest* request) {
  try {
    ReadRequest(pbf_reader(bytes.data(), bytes.size()), request);
  } catch (const OutOfBounds& error) {
    return absl::InvalidArgumentError(error.reason);
  } catch (const protozero::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the body is not a RateLimitRequest: ", error.what(), "; expected its protobuf encoding"));
  }
  return request->Check();
}

std::string WriteWire(const RateLimitResponse& response) {
  std::string bytes(MostBytes(response), '\0');
  protozero::fixed_size_buffer_adaptor buffer(bytes);
  FixedWriter writer(buffer);
  writer.add_enum(1, static_cast<int32_t>(response.overall_code));
  for (const DescriptorStatus& status : response.statuses) {
    WriteStatus(status, FixedWriter(writer, 2));
  }
  for (const auto& [name, value] : response.response_headers) {
    FixedWriter header(writer, 3);
    header.add_string(1, name.data(), name.size());
    header.add_string(2, value);
  }
  bytes.resize(buffer.size());
  if (response.has_metadata()) {
    pbf_writer metadata(bytes);
    WriteDynamicMetadata(response, pbf_writer(metadata, 6));
  }
  return bytes;
}

}  // namespace tidegate::server::envoy
