#include "server/front/mailbox.h"

#include <utility>

namespace tidegate::server {

void Mailbox::Post(Posted posted) {
  const std::lock_guard lock(mu_);
  if (closed_) return;
  posted_.push_back(std::move(posted));
  if (!std::exchange(asleep_, false)) return;
  wake_.Signal();
}

bool Mailbox::Take(std::vector<Posted>* posted) {
  const std::lock_guard lock(mu_);
  posted_.swap(*posted);
  return !posted->empty();
}

bool Mailbox::Sleep() {
  const std::lock_guard lock(mu_);
  asleep_ = posted_.empty();
  return asleep_;
}

void Mailbox::Awake() {
  const std::lock_guard lock(mu_);
  asleep_ = false;
}

void Mailbox::Close() {
  std::vector<Posted> dropped;
  const std::lock_guard lock(mu_);
  closed_ = true;
  posted_.swap(dropped);
}

namespace {

class MailedAnswer final : public Pending {
 public:
  MailedAnswer(std::shared_ptr<Mailbox> mailbox, CallId id)
      : mailbox_(std::move(mailbox)), id_(id) {}
  ~MailedAnswer() override {
    if (mailbox_ != nullptr) mailbox_->Post({id_, Posted::Kind::kDropped, {}});
  }

  void Send(Answer answer) override {
    const std::shared_ptr<Mailbox> mailbox = std::move(mailbox_);
    mailbox_ = nullptr;
    if (mailbox != nullptr) mailbox->Post({id_, Posted::Kind::kAnswer, std::move(answer)});
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  const CallId id_;
};

}  // namespace

std::unique_ptr<Pending> MakePending(std::shared_ptr<Mailbox> mailbox, CallId id) {
  return std::make_unique<MailedAnswer>(std::move(mailbox), id);
}

}  // namespace tidegate::server
