// For any bytes that a client sends over HTTP/2 after the preface, the session stays within its
// bounds, and ends when its time is over. The first byte is the size of the pieces, and picks the
// events between them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/grpc/health.h"
#include "server/grpc/reflection.h"
#include "session_testing.h"

namespace tidegate::server {
namespace {

FrontOptions NarrowStreams() {
  FrontOptions options = NarrowBounds();
  options.streams = 8;
  options.reset_burst = 20;
  options.control_frame_burst = 20;
  return options;
}

void Run(std::string_view bytes, size_t piece, bool drains) {
  TestSetting setting(NarrowStreams());
  const auto health = std::make_shared<Health>();
  (void)setting.routes.Add(health);
  (void)setting.routes.Add(std::make_shared<Reflection>(&setting.routes));
  const std::unique_ptr<Session> session = MakeHttp2Session(&setting.around, 1, {"peer"});
  std::string out;
  session->Receive(kHttp2Preface);
  for (size_t i = 0; !session->over() && !bytes.empty(); ++i) {
    session->Receive(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
    if (i % 3 == 1 && !setting.service->pending.empty()) {
      setting.service->pending.front()->Send({});
      setting.service->pending.erase(setting.service->pending.begin());
    }
    if (i % 4 == 2) health->Set("", i % 8 == 2);
    if (i % 5 == 3) setting.Pass(session.get(), seconds(3));
    if (drains && i == 6) session->Drain();
    setting.Deliver(session.get());
    out.clear();
    session->Fill(&out);
    if (out.size() > kOutputChunk + (32 << 10)) std::abort();
  }
  for (int i = 0; i < 4 && !session->over(); ++i) {
    setting.Pass(session.get(), seconds(10'000));
    setting.Deliver(session.get());
    session->Fill(&out);
  }
  // Only streams that health or reflection keep open have no end.
  if (!session->over() && !session->busy()) std::abort();
}

}  // namespace
}  // namespace tidegate::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  tidegate::server::Run(bytes, data[0] % 128 + 1, data[0] >= 128);
  return 0;
}
