// A store of tests that passes its calls to another store; tests override some of them.
#ifndef TIDEGATE_TESTS_CPP_WRAPPED_STORE_H_
#define TIDEGATE_TESTS_CPP_WRAPPED_STORE_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "tidegate/store.h"

namespace tidegate::testing {

class WrappedStore : public Store {
 public:
  explicit WrappedStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  std::string_view kind() const override { return "wrapped"; }
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override {
    return inner_->Bind(limit, scope);
  }
  Decision Hit(const Charge& charge, const Moment& moment) override {
    return inner_->Hit(charge, moment);
  }
  Decision Peek(const Charge& charge, const Moment& moment) override {
    return inner_->Peek(charge, moment);
  }
  int64_t Refund(const Charge& charge, const Moment& moment) override {
    return inner_->Refund(charge, moment);
  }
  void Reset(const Charge& charge, const Moment& moment) override { inner_->Reset(charge, moment); }
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override {
    inner_->Release(charge, admitted_ns, moment);
  }
  StoreStats stats() const override { return inner_->stats(); }

 protected:
  const std::shared_ptr<Store> inner_;
};

}  // namespace tidegate::testing

#endif  // TIDEGATE_TESTS_CPP_WRAPPED_STORE_H_
