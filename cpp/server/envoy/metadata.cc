#include "server/envoy/metadata.h"

#include <simdjson.h>

#include <charconv>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/envoy/rate_limit_message.h"
#include "server/json_text.h"

namespace tidegate::server::envoy {

namespace dom = simdjson::dom;
using protozero::pbf_writer;

// The parser bounds the depth of what it reads, and so that of these recursions.
struct Metadata::Reader {
  static Value Read(const dom::element& element) {
    switch (element.type()) {
      case dom::element_type::OBJECT:
        return {ReadFields(dom::object(element))};
      case dom::element_type::ARRAY: {
        List list;
        for (const dom::element each : dom::array(element)) list.push_back(Read(each));
        return {std::move(list)};
      }
      case dom::element_type::STRING:
        return {std::string(std::string_view(element))};
      case dom::element_type::BOOL:
        return {bool(element)};
      case dom::element_type::NULL_VALUE:
        return {};
      default:
        return {double(element)};
    }
  }

  static Fields ReadFields(const dom::object& object) {
    Fields fields;
    for (const dom::key_value_pair field : object) {
      fields.insert_or_assign(std::string(field.key), Read(field.value));
    }
    return fields;
  }
};

absl::StatusOr<Metadata> Metadata::Parse(std::string_view json) {
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root);
      error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("the metadata are not JSON: ", simdjson::error_message(error)));
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("the metadata are no JSON object; expected one");
  }
  Metadata metadata;
  metadata.fields_ = Reader::ReadFields(object);
  return metadata;
}

Metadata Metadata::Of(const RateLimitRequest& request) {
  const auto text = [](std::string bytes) {
    if (!simdjson::validate_utf8(bytes)) {
      for (char& byte : bytes) {
        if ((static_cast<unsigned char>(byte) & 0x80U) != 0) byte = '?';
      }
    }
    return bytes;
  };
  List descriptors;
  for (const Descriptor& descriptor : request.descriptors) {
    Fields& fields = descriptors.emplace_back().data.emplace<Fields>();
    List& entries = fields["entries"].data.emplace<List>();
    for (const Entry& entry : descriptor.entries) {
      entries.emplace_back().data = text(absl::StrCat(Absl(entry.key), "=", Absl(entry.value)));
    }
    if (descriptor.hits_addend.has_value()) {
      fields["hitsAddend"].data = static_cast<double>(*descriptor.hits_addend);
    }
  }
  Metadata metadata;
  metadata.fields_["domain"].data = text(std::string(request.domain));
  metadata.fields_["descriptors"].data = std::move(descriptors);
  if (request.hits_addend != 0) {
    metadata.fields_["hitsAddend"].data = static_cast<double>(request.hits_addend);
  }
  return metadata;
}

void Metadata::Merge(const Fields& from, Fields* to) {
  for (const auto& [name, value] : from) {
    const auto [there, is_new] = to->try_emplace(name, value);
    if (is_new) continue;
    const auto* const more = std::get_if<Fields>(&value.data);
    auto* const fields = std::get_if<Fields>(&there->second.data);
    if (more != nullptr && fields != nullptr) Merge(*more, fields);
  }
}

void Metadata::AppendJson(const Value& value, std::string* json) {
  if (const auto* const fields = std::get_if<Fields>(&value.data)) {
    AppendJson(*fields, json);
  } else if (const auto* const list = std::get_if<List>(&value.data)) {
    json->push_back('[');
    for (const Value& each : *list) {
      if (&each != &list->front()) json->push_back(',');
      AppendJson(each, json);
    }
    json->push_back(']');
  } else if (const auto* const text = std::get_if<std::string>(&value.data)) {
    AppendJsonString(*text, json);
  } else if (const auto* const number = std::get_if<double>(&value.data)) {
    char digits[32];
    json->append(digits, std::to_chars(std::begin(digits), std::end(digits), *number).ptr);
  } else if (const auto* const flag = std::get_if<bool>(&value.data)) {
    json->append(*flag ? "true" : "false");
  } else {
    json->append("null");
  }
}

void Metadata::AppendJson(const Fields& fields, std::string* json) {
  char before = '{';
  for (const auto& [name, value] : fields) {
    json->push_back(before);
    before = ',';
    AppendJsonString(name, json);
    json->push_back(':');
    AppendJson(value, json);
  }
  if (before == '{') json->push_back('{');
  json->push_back('}');
}

// Writes the one of the fields of a google.protobuf.Value that has the value.
void Metadata::Write(const Value& value, pbf_writer& writer) {
  if (const auto* const fields = std::get_if<Fields>(&value.data)) {
    pbf_writer object(writer, 5);
    Write(*fields, object);
  } else if (const auto* const list = std::get_if<List>(&value.data)) {
    pbf_writer values(writer, 6);
    for (const Value& each : *list) {
      pbf_writer item(values, 1);
      Write(each, item);
    }
  } else if (const auto* const text = std::get_if<std::string>(&value.data)) {
    writer.add_string(3, *text);
  } else if (const auto* const number = std::get_if<double>(&value.data)) {
    writer.add_double(2, *number);
  } else if (const auto* const flag = std::get_if<bool>(&value.data)) {
    writer.add_bool(4, *flag);
  } else {
    writer.add_enum(1, 0);
  }
}

void Metadata::Write(const Fields& fields, pbf_writer& writer) {
  for (const auto& [name, value] : fields) {
    pbf_writer field(writer, 1);
    field.add_string(1, name);
    pbf_writer item(field, 2);
    Write(value, item);
  }
}

}  // namespace tidegate::server::envoy
