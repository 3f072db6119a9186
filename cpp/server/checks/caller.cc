#include "server/checks/caller.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/checks/recorder.h"
#include "server/checks/sha256.h"

namespace tidegate::server {

namespace {

std::string DigestOfKey(std::string_view key) {
  const Digest digest = Sha256(key);
  return absl::StrCat("key:sha256-", absl::BytesToHexString(absl::string_view(
                                         reinterpret_cast<const char*>(digest.data()), 8)));
}

}  // namespace

Caller CallerOf(const Asked& asked, std::string* digest) {
  Caller caller{asked.Get("user"), asked.Get("endpoint"), asked.Get("tier"), asked.Get("ip")};
  const std::string_view key = asked.Get("api_key");
  if (caller.user.data() == nullptr && key.data() != nullptr) {
    caller.user = *digest = DigestOfKey(key);
  }
  return caller;
}

void KeptCaller::Keep(const Caller& caller) {
  text_.clear();
  const std::string_view texts[] = {caller.user, caller.endpoint, caller.tier, caller.ip};
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const std::string_view text = texts[i].substr(0, Recorder::kMostText);
    text_ += text;
    sizes_[i] = text.size();
  }
}

Caller KeptCaller::view() const {
  Caller caller;
  std::string_view rest = text_;
  std::string_view* const texts[] = {&caller.user, &caller.endpoint, &caller.tier, &caller.ip};
  for (size_t i = 0; i < sizes_.size(); ++i) {
    *texts[i] = rest.substr(0, sizes_[i]);
    rest.remove_prefix(sizes_[i]);
  }
  return caller;
}

}  // namespace tidegate::server
