// What a file says about a descriptor for its clients, a google.protobuf.Struct: the service sends
// it back while the descriptor is within its limit, so that a proxy can choose whom to ask.
#ifndef TIDEGATE_SERVER_ENVOY_METADATA_H_
#define TIDEGATE_SERVER_ENVOY_METADATA_H_

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace protozero {
template <typename>
class basic_pbf_writer;
}

namespace tidegate::server::envoy {

struct RateLimitRequest;

class Metadata {
 public:
  // Reads a JSON object. An error says what was given and what is expected.
  static absl::StatusOr<Metadata> Parse(std::string_view json);

  // What a request asked: its domain, its descriptors as texts `key=value`, and its hits. Bytes
  // that are not UTF-8 are shown as '?'.
  static Metadata Of(const RateLimitRequest& request);

  bool empty() const { return fields_.empty(); }
  // Adds the fields of `other` that are not there. Fields that are objects in both are merged
  // likewise.
  __attribute__((cold)) void Merge(const Metadata& other) { Merge(other.fields_, &fields_); }

  void AppendJson(std::string* json) const { AppendJson(fields_, json); }
  // Writes the fields of a Struct.
  void Write(protozero::basic_pbf_writer<std::string>& writer) const { Write(fields_, writer); }

 private:
  struct Value;
  using Fields = std::map<std::string, Value, std::less<>>;
  using List = std::vector<Value>;
  struct Value {
    // Null, or what its type says.
    std::variant<std::monostate, bool, double, std::string, List, Fields> data;
  };
  struct Reader;

  static void Merge(const Fields& from, Fields* to);
  static void AppendJson(const Value& value, std::string* json);
  static void AppendJson(const Fields& fields, std::string* json);
  static void Write(const Value& value, protozero::basic_pbf_writer<std::string>& writer);
  static void Write(const Fields& fields, protozero::basic_pbf_writer<std::string>& writer);

  Fields fields_;
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_METADATA_H_
