// JSON lines. simdjson chooses at run time the instructions that the processor has.
#include <simdjson.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "logs/parser.h"

namespace tidegate::logs {
namespace {

namespace dom = simdjson::dom;

class JsonParser final : public Parser {
 public:
  explicit JsonParser(const std::vector<std::pair<std::string, Target>>& fields) {
    for (const auto& [name, target] : fields) fields_.push_back({Places(name), target});
  }

  Outcome Parse(std::string_view line, Record* record) override {
    padded_.assign(line);
    padded_.append(simdjson::SIMDJSON_PADDING, ' ');
    dom::object object;
    const auto error = parser_
                           .parse(reinterpret_cast<const uint8_t*>(padded_.data()), line.size(),
                                  /*realloc_if_needed=*/false)
                           .get(object);
    if (error != simdjson::SUCCESS) {
      record->Fail("a JSON object", line);
      return Outcome::kBad;
    }
    for (const Field& field : fields_) {
      dom::element value;
      if (Find(object, field.places, &value) && !Set(field.target, value, record)) {
        return Outcome::kBad;
      }
    }
    return record->Complete() ? Outcome::kRequest : Outcome::kBad;
  }

 private:
  // One way to a value, as names of members: a.b.c, or a and then b.c, and so on.
  using Place = std::vector<std::string>;
  struct Field {
    std::vector<Place> places;
    Target target;
  };

  static std::vector<Place> Places(const std::string& name) {
    std::vector<Place> places{{name}};
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      for (Place& rest : Places(name.substr(dot + 1))) {
        rest.insert(rest.begin(), name.substr(0, dot));
        places.push_back(std::move(rest));
        if (places.size() >= kMostPlaces) return places;
      }
    }
    return places;
  }

  static bool Find(const dom::object& object, const std::vector<Place>& places,
                   dom::element* value) {
    for (const Place& place : places) {
      dom::object inner = object;
      for (size_t i = 0; i < place.size(); ++i) {
        if (inner[place[i]].get(*value) != simdjson::SUCCESS) break;
        if (i + 1 == place.size()) return true;
        if (value->get(inner) != simdjson::SUCCESS) break;
      }
    }
    return false;
  }

  static bool Set(const Target& target, dom::element value, Record* record) {
    switch (value.type()) {
      case dom::element_type::STRING:
        return record->Set(target, std::string_view(value.get_string()));
      case dom::element_type::INT64:
        return record->Set(target, int64_t(value.get_int64()));
      case dom::element_type::DOUBLE:
        return record->Set(target, double(value.get_double()));
      case dom::element_type::BOOL:
        return record->Set(target, std::string_view(bool(value.get_bool()) ? "true" : "false"));
      case dom::element_type::NULL_VALUE:
        return true;
      case dom::element_type::UINT64:
        return record->Fail("a number below 2^63", "a larger number");
      case dom::element_type::OBJECT:
        return record->Fail("a text or a number", "an object");
      case dom::element_type::ARRAY:
        return record->Fail("a text or a number", "a list");
    }
    return true;
  }

  static constexpr size_t kMostPlaces = 16;

  dom::parser parser_;
  std::string padded_;
  std::vector<Field> fields_;
};

}  // namespace

std::unique_ptr<Parser> MakeJsonParser(const std::vector<std::pair<std::string, Target>>& fields) {
  return std::make_unique<JsonParser>(fields);
}

}  // namespace tidegate::logs
