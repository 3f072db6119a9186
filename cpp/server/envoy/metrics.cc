#include "server/envoy/metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate::server::envoy {

std::string Metrics::NameOf(std::string_view domain, std::string_view path) {
  return absl::StrCat(domain.size(), ":", Absl(domain), Absl(path));
}

std::shared_ptr<Counters> Metrics::Of(std::string_view domain, std::string_view path) {
  const std::string name = NameOf(domain, path);
  absl::MutexLock lock(&mutex_);
  Row& row = configured_[name];
  if (row.counters == nullptr) {
    if (auto of_request = of_requests_.extract(name)) {
      row = std::move(of_request.mapped());
    } else {
      row = {std::string(domain), std::string(path), std::make_shared<Counters>()};
    }
  }
  row.version = version_;
  return std::const_pointer_cast<Counters>(row.counters);
}

std::shared_ptr<Counters> Metrics::OfRequest(std::string_view domain, std::string_view path,
                                             std::shared_ptr<Counters> other) {
  const std::string name = NameOf(domain, path);
  absl::MutexLock lock(&mutex_);
  for (const auto* paths : {&configured_, &of_requests_}) {
    const auto found = paths->find(name);
    if (found != paths->end()) return std::const_pointer_cast<Counters>(found->second.counters);
  }
  if (of_requests_.size() >= kMostOfRequests) return other;
  auto counters = std::make_shared<Counters>();
  of_requests_.emplace(name, Row{std::string(domain), std::string(path), counters});
  return counters;
}

void Metrics::BeginVersion() {
  absl::MutexLock lock(&mutex_);
  ++version_;
}

void Metrics::ForgetOtherVersions() {
  absl::MutexLock lock(&mutex_);
  const int64_t version = version_;
  absl::erase_if(configured_, [version](const auto& row) { return row.second.version != version; });
}

std::vector<Metrics::Row> Metrics::rows() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Row> rows;
  rows.reserve(configured_.size() + of_requests_.size());
  for (const auto* paths : {&configured_, &of_requests_}) {
    for (const auto& [name, row] : *paths) rows.push_back(row);
  }
  return rows;
}

}  // namespace tidegate::server::envoy
