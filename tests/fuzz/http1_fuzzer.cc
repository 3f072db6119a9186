// The session gives the same answers to the bytes of an HTTP/1.1 client however the network cuts
// them. The first byte is the size of the pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "session_testing.h"

namespace tidegate::server {
namespace {

// All answers to `bytes`, given in pieces.
std::string AnswersTo(std::string_view bytes, size_t piece) {
  TestSetting setting(NarrowBounds());
  const std::unique_ptr<Session> session = MakeHttp1Session(&setting.around, 1, {"peer"});
  std::string answers;
  while (!session->over() && (!bytes.empty() || session->wants_turn())) {
    session->Receive(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
    while (!setting.service->pending.empty()) {
      const auto pending = std::move(setting.service->pending.back());
      setting.service->pending.pop_back();
      pending->Send({});
      setting.Deliver(session.get());
    }
    session->Fill(&answers);
  }
  if (!answers.empty() && !answers.starts_with("HTTP/1.1 ")) std::abort();
  setting.Pass(session.get(), seconds(10'000));
  if (!session->over()) std::abort();
  return answers;
}

}  // namespace
}  // namespace tidegate::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::server::AnswersTo;
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = data[0] % 64 + 1;
  if (AnswersTo(bytes, piece) != AnswersTo(bytes, bytes.size() + 1)) std::abort();
  return 0;
}
