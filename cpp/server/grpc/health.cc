#include "server/grpc/health.h"

#include <memory>
#include <optional>
#include <protozero/pbf_message.hpp>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "server/grpc/descriptors.h"

namespace tidegate::server {
namespace {

// Returns HealthCheckRequest.service; nothing for a malformed message.
std::optional<std::string> ParseName(std::string_view message) {
  std::string name;
  try {
    protozero::pbf_reader reader(message.data(), message.size());
    while (reader.next()) {
      if (reader.tag_and_type() ==
          protozero::tag_and_type(1, protozero::pbf_wire_type::length_delimited)) {
        name = reader.get_string();
      } else {
        reader.skip();
      }
    }
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return name;
}

constexpr std::string_view kMalformed = "the message is malformed; expected a HealthCheckRequest";

}  // namespace

class Health::Watch final : public StreamingCall {
 public:
  Watch(Health* health, StreamWriter writer) : health_(health), writer_(std::move(writer)) {}
  ~Watch() override {
    if (!name_.has_value()) return;
    const std::lock_guard lock(health_->mu_);
    const auto [begin, end] = health_->watches_.equal_range(*name_);
    for (auto place = begin; place != end; ++place) {
      if (place->second != this) continue;
      health_->watches_.erase(place);
      return;
    }
  }

  void OnMessage(std::string_view message) override {
    std::optional<std::string> name = ParseName(message);
    if (name_.has_value() || !name.has_value()) {
      writer_.Finish(GrpcStatus::kInvalidArgument,
                     name_.has_value() ? "the call has several messages; expected one"
                                       : std::string(kMalformed));
      return;
    }
    const std::lock_guard lock(health_->mu_);
    name_ = std::move(name);
    health_->watches_.emplace(*name_, this);
    Send(health_->StatusOf(*name_));
  }
  void OnEnd() override {
    if (!name_.has_value()) {
      writer_.Finish(GrpcStatus::kInvalidArgument, "the call has no message; expected one");
    }
  }
  void Send(Status status) const { writer_.Send(Encode(status)); }

 private:
  Health* const health_;
  const StreamWriter writer_;
  std::optional<std::string> name_;
};

std::string Health::Encode(Status status) {
  std::string message;
  protozero::pbf_writer(message).add_enum(1, static_cast<int32_t>(status));
  return message;
}

Health::Status Health::StatusOf(const std::string& name) const {
  const auto found = statuses_.find(name);
  return found == statuses_.end() ? Status::kUnknown : found->second;
}

void Health::SetLocked(const std::string& name, Status status) {
  Status& known = statuses_.try_emplace(name, Status::kUnknown).first->second;
  if (std::exchange(known, status) == status) return;
  const auto [begin, end] = watches_.equal_range(name);
  for (auto watch = begin; watch != end; ++watch) watch->second->Send(status);
}

void Health::Set(const std::string& name, bool serving) {
  const std::lock_guard lock(mu_);
  SetLocked(name, serving && !draining_ ? Status::kServing : Status::kNotServing);
}

void Health::OnDrain() {
  const std::lock_guard lock(mu_);
  draining_ = true;
  for (const auto& [name, status] : statuses_) SetLocked(name, Status::kNotServing);
}

std::vector<Route> Health::routes() const { return {{"", "/grpc.health.v1.Health/Check"}}; }

std::vector<std::pair<std::string, StreamingMethod*>> Health::streaming_methods() {
  return {{"/grpc.health.v1.Health/Watch", this}};
}

std::vector<std::string_view> Health::descriptors() const { return {HealthDescriptor()}; }

bool Health::Handle(const Request& request, Answer* answer, const Later& /*later*/) {
  const std::optional<std::string> name = ParseName(request.body);
  if (!name.has_value()) {
    answer->grpc_status = GrpcStatus::kInvalidArgument;
    answer->grpc_message = kMalformed;
    return true;
  }
  const std::lock_guard lock(mu_);
  const Status status = StatusOf(*name);
  if (status == Status::kUnknown) {
    answer->grpc_status = GrpcStatus::kNotFound;
    answer->grpc_message = "the service is unknown; expected the name of one of this server";
  } else {
    answer->body = Encode(status);
  }
  return true;
}

std::unique_ptr<StreamingCall> Health::Start(StreamWriter writer) {
  return std::make_unique<Watch>(this, std::move(writer));
}

}  // namespace tidegate::server
