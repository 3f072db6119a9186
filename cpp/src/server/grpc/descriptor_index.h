// Which file describes a symbol of protobuf: a service, a method, a message or an enumeration.
#ifndef TIDEGATE_SERVER_GRPC_DESCRIPTOR_INDEX_H_
#define TIDEGATE_SERVER_GRPC_DESCRIPTOR_INDEX_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tidegate::server {

class DescriptorIndex {
 public:
  // A file that is known already is left out, and one that is malformed. `file` must stay.
  void Add(std::string_view file);

  // The file, and all that it imports; empty if there is none.
  std::vector<std::string_view> FileByName(const std::string& name) const;
  std::vector<std::string_view> FileOfSymbol(const std::string& symbol) const;

 private:
  struct File {
    std::string name;
    std::string_view bytes;
    std::vector<std::string> imports;
    std::vector<std::string> symbols;
  };

  static File Read(std::string_view bytes);
  std::vector<std::string_view> WithImports(size_t file) const;

  std::vector<File> files_;
  std::map<std::string, size_t> names_;
  std::map<std::string, size_t> symbols_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_DESCRIPTOR_INDEX_H_
