// tidegate._core.ReplayRun: a replay of columns, chunk by chunk.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/gil.h"
#include "tidegate/clients.h"
#include "tidegate/least_limit.h"
#include "tidegate/replayer.h"
#include "tidegate/rule_replayer.h"
#include "tuning/columns.h"

namespace tidegate::python {
namespace {

// Decides requests by limits or rules, with the columns that these read.
class Decider {
 public:
  virtual ~Decider() = default;
  virtual void Run(const RequestColumns& requests, size_t from, size_t to,
                   const AnswerColumns& answers) = 0;
  virtual Decision Hit(size_t at, int64_t now_ns, uint32_t* binding) = 0;
  virtual std::vector<std::string> names() const = 0;
};

class LimitDecider final : public Decider {
 public:
  LimitDecider(const std::vector<Limit>& limits, absl::Span<const uint32_t> keys,
               std::vector<ChargeColumns> charges)
      : replayer_(limits, keys), charges_(std::move(charges)) {
    for (const Limit& limit : limits) names_.push_back(limit.rule());
  }
  void Run(const RequestColumns& requests, size_t from, size_t to,
           const AnswerColumns& answers) override {
    replayer_.Run(requests, charges_, from, to, answers);
  }
  Decision Hit(size_t at, int64_t now_ns, uint32_t* binding) override {
    const Decision decision = replayer_.Hit(charges_, at, now_ns);
    *binding = decision.rule;
    return decision;
  }
  std::vector<std::string> names() const override { return names_; }

 private:
  Replayer replayer_;
  const std::vector<ChargeColumns> charges_;
  std::vector<std::string> names_;
};

// An attribute's column and the values that it points to.
struct Attribute {
  AttributeColumn column;
  std::vector<std::string_view> values;
};

class RuleDecider final : public Decider {
 public:
  RuleDecider(std::unique_ptr<RuleReplayer> replayer, std::vector<Attribute> attributes,
              const int64_t* costs)
      : replayer_(std::move(replayer)), attributes_(std::move(attributes)), costs_(costs) {
    for (Attribute& attribute : attributes_) {
      attribute.column.values = attribute.values;
      columns_.push_back(attribute.column);
    }
  }
  void Run(const RequestColumns& requests, size_t from, size_t to,
           const AnswerColumns& answers) override {
    replayer_->Run(requests, columns_, costs_, from, to, answers);
  }
  Decision Hit(size_t at, int64_t now_ns, uint32_t* binding) override {
    return replayer_->Hit(columns_, at, costs_ == nullptr ? 1 : costs_[at], now_ns, binding);
  }
  std::vector<std::string> names() const override { return replayer_->names(); }

 private:
  const std::unique_ptr<RuleReplayer> replayer_;
  std::vector<Attribute> attributes_;
  std::vector<AttributeColumn> columns_;
  const int64_t* const costs_;
};

const int64_t* CostsOf(const py::object& costs, size_t size) {
  return costs.is_none() ? nullptr : ItemsOf<int64_t>(costs.cast<py::array>(), size, "the costs");
}

// A column of `answers` by its name; null if there is none.
template <typename T>
T* AnswerOf(const py::dict& answers, const char* name, size_t size) {
  if (!answers.contains(name)) return nullptr;
  auto column = answers[name].cast<py::array>();
  return WritableItemsOf<T>(column, size, name);
}

ClientBehaviour BehaviourOf(const py::dict& given) {
  const auto reaction = given["reaction"].cast<std::string>();
  ClientBehaviour b;
  b.reaction = reaction == "obey"       ? ClientBehaviour::Reaction::kObey
               : reaction == "back-off" ? ClientBehaviour::Reaction::kBackOff
                                        : ClientBehaviour::Reaction::kHammer;
  b.most_attempts = given["attempts"].cast<uint32_t>();
  b.pause_ns = given["pause_ns"].cast<int64_t>();
  b.most_pause_ns = given["most_pause_ns"].cast<int64_t>();
  b.factor = given["factor"].cast<double>();
  b.jitter = given["jitter"].cast<double>();
  b.seed = given["seed"].cast<uint64_t>();
  b.whole_seconds = given["whole_seconds"].cast<bool>();
  return b;
}

// Not for several threads at once.
class ReplayRun {
 public:
  static std::unique_ptr<ReplayRun> OfLimits(const std::vector<Limit>& limits, const py::list& keys,
                                             const std::vector<uint32_t>& counts,
                                             const py::list& costs, const py::list& used,
                                             const py::array& times, const py::object& order,
                                             const py::dict& answers, const py::object& clients) {
    auto run = std::make_unique<ReplayRun>(times, order, answers, clients);
    const size_t size = run->requests_.size;
    std::vector<ChargeColumns> charges;
    for (size_t i = 0; i < limits.size(); ++i) {
      charges.push_back({ItemsOf<uint32_t>(keys[i].cast<py::array>(), size, "the keys"),
                         CostsOf(costs[i], size), CostsOf(used[i], size)});
      WithoutGil([&] { CheckCodes(charges[i].keys, size, counts[i]); });
    }
    run->kept_.append(keys);
    run->kept_.append(costs);
    run->kept_.append(used);
    run->decider_ = WithoutGil(
        [&] { return std::make_unique<LimitDecider>(limits, counts, std::move(charges)); });
    return run;
  }

  // `attributes` are (name, codes, values): each value is bytes, or None for no value.
  static std::unique_ptr<ReplayRun> OfRules(const std::shared_ptr<RuleSet>& rules,
                                            const py::list& attributes, const py::object& costs,
                                            const py::array& times, const py::object& order,
                                            const py::dict& answers, const py::object& clients) {
    auto run = std::make_unique<ReplayRun>(times, order, answers, clients);
    const size_t size = run->requests_.size;
    std::vector<Attribute> columns;
    for (const py::handle each : attributes) {
      const auto [name, codes, values] = each.cast<std::tuple<std::string, py::array, py::list>>();
      const int number = rules->AttributeNumber(name);
      if (number < 0) continue;  // no rule uses it
      Attribute attribute;
      attribute.column.number = static_cast<uint32_t>(number);
      attribute.column.codes = ItemsOf<uint32_t>(codes, size, "the codes");
      CheckCodes(attribute.column.codes, size, values.size());
      for (const py::handle value : values) {
        attribute.values.push_back(value.is_none() ? std::string_view()
                                                   : value.cast<std::string_view>());
      }
      columns.push_back(std::move(attribute));
    }
    run->kept_.append(attributes);
    run->kept_.append(costs);
    run->decider_ = std::make_unique<RuleDecider>(ValueOrThrow(RuleReplayer::Create(rules)),
                                                  std::move(columns), CostsOf(costs, size));
    return run;
  }

  ReplayRun(const py::array& times, const py::object& order, const py::dict& answers,
            const py::object& clients) {
    const auto size = static_cast<size_t>(times.size());
    requests_.size = size;
    requests_.times_ns = ItemsOf<int64_t>(times, size, "the times");
    if (!order.is_none()) {
      requests_.order = ItemsOf<int64_t>(order.cast<py::array>(), size, "the order");
    }
    answers_.allowed = AnswerOf<uint8_t>(answers, "allowed", size);
    answers_.remaining = AnswerOf<int64_t>(answers, "remaining", size);
    answers_.few_remaining = AnswerOf<uint32_t>(answers, "few_remaining", size);
    answers_.retry_after_ns = AnswerOf<int64_t>(answers, "retry_after_ns", size);
    answers_.delay_ns = AnswerOf<int64_t>(answers, "delay_ns", size);
    answers_.rule = AnswerOf<uint32_t>(answers, "rule", size);
    answers_.zeroed = clients.is_none();
    if (!clients.is_none()) clients_.emplace(BehaviourOf(clients.cast<py::dict>()));
    outcomes_.last = answers_;
    outcomes_.attempts = AnswerOf<uint32_t>(answers, "attempts", size);
    outcomes_.waited_ns = AnswerOf<int64_t>(answers, "waited_ns", size);
    kept_ = py::list();
    kept_.append(times);
    kept_.append(order);
    kept_.append(answers.attr("copy")());
  }

  void Run(size_t to) {
    to = std::min(to, requests_.size);
    WithoutGil([&] {
      if (clients_.has_value()) {
        clients_->Run(requests_, done_, to, Hit(), outcomes_);
      } else {
        decider_->Run(requests_, done_, to, answers_);
      }
    });
    done_ = std::max(done_, to);
  }

  bool Finish(size_t most) {
    if (!clients_.has_value()) return true;
    return WithoutGil([&] { return clients_->Finish(requests_, most, Hit(), outcomes_); });
  }

  std::vector<std::string> names() const { return decider_->names(); }
  int64_t attempts() const { return clients_.has_value() ? clients_->attempts() : -1; }
  int64_t refused_attempts() const {
    return clients_.has_value() ? clients_->refused_attempts() : -1;
  }

 private:
  struct HitOfDecider {
    Decider* decider;
    Decision operator()(size_t at, int64_t now_ns, uint32_t* binding) const {
      return decider->Hit(at, now_ns, binding);
    }
  };
  const HitOfDecider& Hit() {
    hit_.decider = decider_.get();
    return hit_;
  }

  RequestColumns requests_;
  AnswerColumns answers_;
  ClientOutcomes outcomes_;
  std::unique_ptr<Decider> decider_;
  HitOfDecider hit_{nullptr};
  std::optional<ClientReplay> clients_;
  size_t done_ = 0;
  py::list kept_;  // the columns that the other members point into
};

py::array_t<int64_t> PyLeastLimits(const Limit& shape, const py::array& codes, size_t keys,
                                   const py::array& times, const py::object& costs) {
  const auto size = static_cast<size_t>(times.size());
  const auto* const code_items = ItemsOf<uint32_t>(codes, size, "the codes");
  const auto* const time_items = ItemsOf<int64_t>(times, size, "the times");
  const int64_t* const cost_items = CostsOf(costs, size);
  auto least = WithoutGil([&] {
    CheckCodes(code_items, size, keys);
    return LeastLimits(shape, keys, size, code_items, time_items, cost_items);
  });
  return ColumnOf(ValueOrThrow(std::move(least)));
}

}  // namespace

void RegisterReplayRun(py::module_& m) {
  py::class_<ReplayRun>(m, "ReplayRun")
      .def_static("of_limits", &ReplayRun::OfLimits, py::arg("limits"), py::arg("keys"),
                  py::arg("counts"), py::arg("costs"), py::arg("used"), py::arg("times_ns"),
                  py::arg("order"), py::arg("answers"), py::arg("clients"))
      .def_static("of_rules", &ReplayRun::OfRules, py::arg("rules"), py::arg("attributes"),
                  py::arg("costs"), py::arg("times_ns"), py::arg("order"), py::arg("answers"),
                  py::arg("clients"))
      .def("run", &ReplayRun::Run, py::arg("to"))
      .def("finish", &ReplayRun::Finish, py::arg("most"))
      .def_property_readonly("names", &ReplayRun::names)
      .def_property_readonly("attempts", &ReplayRun::attempts)
      .def_property_readonly("refused_attempts", &ReplayRun::refused_attempts);
  m.def("least_limits", &PyLeastLimits, py::arg("shape"), py::arg("codes"), py::arg("keys"),
        py::arg("times_ns"), py::arg("costs"));
}

}  // namespace tidegate::python
