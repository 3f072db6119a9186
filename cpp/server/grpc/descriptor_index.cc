#include "server/grpc/descriptor_index.h"

#include <protozero/pbf_reader.hpp>
#include <set>
#include <utility>

namespace tidegate::server {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

// Numbers of fields in google/protobuf/descriptor.proto.
enum File : uint32_t {
  kFileName = 1,
  kPackage = 2,
  kImport = 3,
  kMessage = 4,
  kEnum = 5,
  kService = 6
};
enum Message : uint32_t { kName = 1, kNestedMessage = 3, kNestedEnum = 4 };
enum ServiceField : uint32_t { kMethod = 2 };

// Reads the next field that is a string or a message, since all other fields are irrelevant.
bool NextBytes(pbf_reader* reader) {
  while (reader->next()) {
    if (reader->wire_type() == pbf_wire_type::length_delimited) return true;
    reader->skip();
  }
  return false;
}

std::string NameIn(pbf_reader reader) {
  return reader.next(kName, pbf_wire_type::length_delimited) ? reader.get_string() : std::string();
}

std::string Join(const std::string& scope, const std::string& name) {
  return scope.empty() ? name : scope + "." + name;
}

void AddMessage(pbf_reader reader, const std::string& scope, std::vector<std::string>* symbols) {
  const std::string name = Join(scope, NameIn(reader));
  symbols->push_back(name);
  while (NextBytes(&reader)) {
    if (reader.tag() == kNestedMessage) {
      AddMessage(reader.get_message(), name, symbols);
    } else if (reader.tag() == kNestedEnum) {
      symbols->push_back(Join(name, NameIn(reader.get_message())));
    } else {
      reader.skip();
    }
  }
}

void AddService(pbf_reader reader, const std::string& scope, std::vector<std::string>* symbols) {
  const std::string name = Join(scope, NameIn(reader));
  symbols->push_back(name);
  while (reader.next(kMethod, pbf_wire_type::length_delimited)) {
    symbols->push_back(Join(name, NameIn(reader.get_message())));
  }
}

std::string PackageIn(pbf_reader reader) {
  return reader.next(kPackage, pbf_wire_type::length_delimited) ? reader.get_string()
                                                                : std::string();
}

}  // namespace

DescriptorIndex::File DescriptorIndex::Read(std::string_view bytes) {
  DescriptorIndex::File file;
  file.bytes = bytes;
  pbf_reader reader(bytes.data(), bytes.size());
  const std::string package = PackageIn(reader);
  while (NextBytes(&reader)) {
    switch (reader.tag()) {
      case kFileName:
        file.name = reader.get_string();
        break;
      case kImport:
        file.imports.push_back(reader.get_string());
        break;
      case kMessage:
        AddMessage(reader.get_message(), package, &file.symbols);
        break;
      case kEnum:
        file.symbols.push_back(Join(package, NameIn(reader.get_message())));
        break;
      case kService:
        AddService(reader.get_message(), package, &file.symbols);
        break;
      default:
        reader.skip();
    }
  }
  return file;
}

void DescriptorIndex::Add(std::string_view bytes) {
  File file;
  try {
    file = Read(bytes);
  } catch (const protozero::exception&) {
    return;
  }
  const size_t index = files_.size();
  if (!names_.emplace(file.name, index).second) return;
  for (const std::string& symbol : file.symbols) symbols_.emplace(symbol, index);
  files_.push_back(std::move(file));
}

std::vector<std::string_view> DescriptorIndex::WithImports(size_t file) const {
  std::vector<size_t> found{file};
  std::set<size_t> seen{file};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const std::string& import : files_[found[i]].imports) {
      const auto known = names_.find(import);
      if (known != names_.end() && seen.insert(known->second).second) {
        found.push_back(known->second);
      }
    }
  }
  std::vector<std::string_view> bytes;
  bytes.reserve(found.size());
  for (const size_t index : found) bytes.push_back(files_[index].bytes);
  return bytes;
}

std::vector<std::string_view> DescriptorIndex::FileByName(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? std::vector<std::string_view>() : WithImports(found->second);
}

std::vector<std::string_view> DescriptorIndex::FileOfSymbol(const std::string& symbol) const {
  const auto found = symbols_.find(symbol);
  return found == symbols_.end() ? std::vector<std::string_view>() : WithImports(found->second);
}

}  // namespace tidegate::server
