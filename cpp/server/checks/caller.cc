#include "server/checks/caller.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/recorder.h"
#include "server/checks/sha256.h"

namespace tidegate::server {

namespace {

constexpr std::string_view kOfKey = "key:sha256-";
constexpr std::string_view kOfUser = "user:";

std::string DigestOfKey(std::string_view key) {
  const Digest digest = Sha256(key);
  return absl::StrCat(Absl(kOfKey), absl::BytesToHexString(absl::string_view(
                                        reinterpret_cast<const char*>(digest.data()), 8)));
}

}  // namespace

std::string_view NameOfUser(std::string_view user, std::string* name) {
  std::string_view rest = user;
  while (rest.starts_with(kOfUser)) rest.remove_prefix(kOfUser.size());
  if (!rest.starts_with(kOfKey)) return user;
  return *name = absl::StrCat(Absl(kOfUser), Absl(user));
}

Caller CallerOf(const Asked& asked, std::string* name) {
  Caller caller{asked.Get("user"), asked.Get("endpoint"), asked.Get("tier"), asked.Get("ip")};
  const std::string_view key = asked.Get("api_key");
  if (caller.user.data() == nullptr && key.data() != nullptr) {
    caller.user = *name = DigestOfKey(key);
  } else {
    caller.user = NameOfUser(caller.user, name);
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
