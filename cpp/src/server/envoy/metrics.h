// What Envoy's rate limit service counts, by domain and path of the descriptor.
#ifndef TIDEGATE_SERVER_ENVOY_METRICS_H_
#define TIDEGATE_SERVER_ENVOY_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace tidegate::server::envoy {

// Of one path: hits, not requests.
struct Counters {
  std::atomic<int64_t> total_hits{0};
  std::atomic<int64_t> within_limit{0};
  std::atomic<int64_t> near_limit{0};  // of those within: beyond the ratio of "near"
  std::atomic<int64_t> over_limit{0};
  std::atomic<int64_t> shadow_mode{0};  // of those over: allowed all the same
};

// The counters of all paths. Thread-safe.
class Metrics {
 public:
  // Names that requests bring along are bounded: beyond, they count in `other`.
  static constexpr size_t kMostOfRequests = 10'000;

  struct Row {
    std::string domain;
    std::string path;
    std::shared_ptr<const Counters> counters;
    int64_t version = 0;  // of the configuration that had it last
  };

  // The counters of a path of the configuration, which there are as many of as it has.
  std::shared_ptr<Counters> Of(std::string_view domain, std::string_view path);
  // The counters of a path that a request has brought along; `other` if there are too many.
  std::shared_ptr<Counters> OfRequest(std::string_view domain, std::string_view path,
                                      std::shared_ptr<Counters> other);
  // Begins a version of the configuration; afterwards Of() names its paths.
  void BeginVersion();
  // Forgets the paths of the configuration that the version which was begun last does not have.
  void ForgetOtherVersions();

  std::vector<Row> rows() const;

 private:
  // A domain has any bytes, so its length stands before it.
  static std::string NameOf(std::string_view domain, std::string_view path);

  mutable absl::Mutex mutex_;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Row> configured_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Row> of_requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_METRICS_H_
