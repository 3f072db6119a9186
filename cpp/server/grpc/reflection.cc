#include "server/grpc/reflection.h"

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "server/grpc/descriptors.h"

namespace tidegate::server {
namespace {

// Numbers of fields in grpc/reflection/v1/reflection.proto.
enum RequestField : uint32_t {
  kHost = 1,
  kFileByName = 3,
  kFileOfSymbol = 4,
  kFileOfExtension = 5,
  kExtensionsOfType = 6,
  kListServices = 7,
};
enum ResponseField : uint32_t {
  kValidHost = 1,
  kOriginalRequest = 2,
  kFiles = 4,
  kServices = 6,
  kError = 7,
};

struct Question {
  uint32_t what = 0;
  std::string host;
  std::string name;
};

Question ParseQuestion(std::string_view request) {
  Question question;
  protozero::pbf_reader reader(request.data(), request.size());
  while (reader.next()) {
    if (reader.wire_type() != protozero::pbf_wire_type::length_delimited) {
      reader.skip();
    } else if (reader.tag() == kHost) {
      question.host = reader.get_string();
    } else {
      question.what = reader.tag();
      question.name = reader.get_string();
    }
  }
  return question;
}

void AddError(GrpcStatus status, const std::string& why, protozero::pbf_writer* response) {
  protozero::pbf_writer error(*response, kError);
  error.add_int32(1, static_cast<int32_t>(status));
  error.add_string(2, why);
}

void AddFiles(const std::vector<std::string_view>& files, protozero::pbf_writer* response) {
  if (files.empty()) {
    AddError(GrpcStatus::kNotFound, "the file or symbol is unknown; expected one of this server",
             response);
    return;
  }
  protozero::pbf_writer found(*response, kFiles);
  for (const std::string_view file : files) found.add_bytes(1, file.data(), file.size());
}

void AddServices(const std::vector<std::string>& names, protozero::pbf_writer* response) {
  protozero::pbf_writer services(*response, kServices);
  for (const std::string& name : names) {
    protozero::pbf_writer service(services, 1);
    service.add_string(1, name);
  }
}

}  // namespace

class Reflection::Call final : public StreamingCall {
 public:
  Call(Reflection* reflection, StreamWriter writer)
      : reflection_(reflection), writer_(std::move(writer)) {}

  void OnMessage(std::string_view message) override {
    std::string response = reflection_->Respond(message);
    if (response.empty()) {
      writer_.Finish(GrpcStatus::kInvalidArgument,
                     "the message is malformed; expected a ServerReflectionRequest");
    } else {
      writer_.Send(std::move(response));
    }
  }
  void OnEnd() override { writer_.Finish(GrpcStatus::kOk); }

 private:
  Reflection* const reflection_;
  const StreamWriter writer_;
};

std::vector<std::pair<std::string, StreamingMethod*>> Reflection::streaming_methods() {
  return {{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", this},
          {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", this}};
}

std::vector<std::string_view> Reflection::descriptors() const {
  return {ReflectionDescriptor(), ReflectionAlphaDescriptor()};
}

bool Reflection::Handle(const Request& /*request*/, Answer* answer, const Later& /*later*/) {
  answer->grpc_status = GrpcStatus::kUnimplemented;  // this service has no routes
  return true;
}

std::unique_ptr<StreamingCall> Reflection::Start(StreamWriter writer) {
  std::call_once(indexed_, [this] {
    for (const auto& service : routes_->routed()) {
      for (const std::string_view file : service->descriptors()) index_.Add(file);
    }
  });
  return std::make_unique<Call>(this, std::move(writer));
}

std::string Reflection::Respond(std::string_view request) {
  Question question;
  try {
    question = ParseQuestion(request);
  } catch (const protozero::exception&) {
    return {};
  }
  std::string bytes;
  protozero::pbf_writer response(bytes);
  response.add_string(kValidHost, question.host);
  response.add_bytes(kOriginalRequest, request.data(), request.size());
  switch (question.what) {
    case kFileByName:
      AddFiles(index_.FileByName(question.name), &response);
      break;
    case kFileOfSymbol:
      AddFiles(index_.FileOfSymbol(question.name), &response);
      break;
    case kListServices:
      AddServices(routes_->GrpcServices(), &response);
      break;
    case kFileOfExtension:
    case kExtensionsOfType:
      AddError(GrpcStatus::kNotFound,
               "the request is about extensions; expected none, as this server has none",
               &response);
      break;
    default:
      AddError(GrpcStatus::kInvalidArgument,
               "the request is of an unknown kind; expected one of server reflection v1",
               &response);
  }
  return bytes;
}

}  // namespace tidegate::server
