// A store as a user would write it, with only the installed headers. Its calls wait at a gate that
// the test opens; asynchronous calls wait on a thread of the store.
#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tidegate/memory_store.h"
#include "tidegate/store.h"

namespace {

namespace py = pybind11;
using tidegate::BoundLimit;
using tidegate::Charge;
using tidegate::Decision;
using tidegate::Moment;
using tidegate::Op;
using tidegate::Outcomes;
using tidegate::Store;

class GatedStore final : public Store {
 public:
  GatedStore() : memory_(*tidegate::MemoryStore::Create({})), worker_([this] { Work(); }) {}
  ~GatedStore() override {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      open_ = ended_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void SetOpen(bool open) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      open_ = open;
    }
    changed_.notify_all();
  }
  int waiting() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return waiting_ + static_cast<int>(submitted_.size());
  }
  int flushes() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return flushes_;
  }

  std::string_view kind() const override { return "gated"; }
  bool blocks() const override { return true; }
  BoundLimit Bind(const tidegate::Limit& limit, std::string_view scope) const override {
    return memory_->Bind(limit, scope);
  }
  Decision Hit(const Charge& charge, const Moment& moment) override {
    Wait();
    return At(moment, memory_->Hit(charge, moment));
  }
  Decision Peek(const Charge& charge, const Moment& moment) override {
    Wait();
    return At(moment, memory_->Peek(charge, moment));
  }
  int64_t Refund(const Charge& charge, const Moment& moment) override {
    Wait();
    return memory_->Refund(charge, moment);
  }
  void Reset(const Charge& charge, const Moment& moment) override {
    Wait();
    memory_->Reset(charge, moment);
  }
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override {
    Wait();
    memory_->Release(charge, admitted_ns, moment);
  }
  tidegate::StoreStats stats() const override { return memory_->stats(); }

  // Copied, because the caller owns the keys of a plan. The limits outlive the call.
  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 const Moment& moment, Clock clock, Outcomes* outcomes,
                                 Done done) override {
    auto keys = std::make_shared<std::deque<std::string>>();
    std::vector<Charge> charges(plan.begin(), plan.end());
    for (Charge& charge : charges) charge.key = keys->emplace_back(charge.key);
    const std::lock_guard<std::mutex> lock(mu_);
    submitted_.push_back([this, op, keys, charges = std::move(charges), admitted_ns, moment, clock,
                          outcomes, done = std::move(done)] {
      done(At(moment, *memory_->Submit(op, charges, admitted_ns, moment, clock, outcomes, {})));
    });
    return std::nullopt;
  }
  void Flush() override {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      ++flushes_;
    }
    changed_.notify_all();
  }
  absl::Status Ping() override { return absl::UnavailableError("nobody is at home"); }

 private:
  static Decision At(const Moment& moment, Decision decision) {
    decision.at_ns = moment.now_ns;
    return decision;
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    ++waiting_;
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mu_);
    for (;;) {
      changed_.wait(lock, [this] { return open_ && (ended_ || !submitted_.empty()); });
      if (submitted_.empty()) return;
      const auto call = std::move(submitted_.front());
      submitted_.pop_front();
      lock.unlock();
      call();
      lock.lock();
    }
  }

  const std::shared_ptr<tidegate::MemoryStore> memory_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = true;
  bool ended_ = false;
  int waiting_ = 0;
  int flushes_ = 0;
  std::deque<std::function<void()>> submitted_;
  std::thread worker_;
};

}  // namespace

PYBIND11_MODULE(gated_store, m) {
  py::module_::import("tidegate._core");
  py::class_<GatedStore, Store, std::shared_ptr<GatedStore>>(m, "GatedStore")
      .def(py::init<>())
      .def("set_open", &GatedStore::SetOpen)
      .def_property_readonly("waiting", &GatedStore::waiting)
      .def_property_readonly("flushes", &GatedStore::flushes);
}
