// Finds the file that describes a protobuf symbol: a service, method, message or enumeration.
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
  // Ignores files that are already known or malformed. `file` must stay valid.
  void Add(std::string_view file);

  // Returns the file and everything that it imports; empty if there is no such file.
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
