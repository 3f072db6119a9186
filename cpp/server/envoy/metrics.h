// The counters of Envoy's rate limit service, by domain and path of the descriptor.
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

// The counters of one path, in hits, not requests.
struct Counters {
  std::atomic<int64_t> total_hits{0};
  std::atomic<int64_t> within_limit{0};
  std::atomic<int64_t> near_limit{0};  // hits within the limit but beyond the ratio of "near"
  std::atomic<int64_t> over_limit{0};
  std::atomic<int64_t> shadow_mode{0};  // hits over the limit that were still allowed
};

// The counters of all paths. Thread-safe.
class Metrics {
 public:
  // The number of names that come from requests; hits of further names count in `other`.
  static constexpr size_t kMostOfRequests = 10'000;

  struct Row {
    std::string domain;
    std::string path;
    std::shared_ptr<const Counters> counters;
    int64_t version = 0;  // the last configuration that had this path
  };

  // The counters of a path of the configuration, whose number is not bounded here. If requests have
  // brought the path before, they are counted on.
  std::shared_ptr<Counters> Of(std::string_view domain, std::string_view path);
  // The counters of a path that comes from a request; `other` if there are too many paths.
  std::shared_ptr<Counters> OfRequest(std::string_view domain, std::string_view path,
                                      std::shared_ptr<Counters> other);
  // Begins a version of the configuration, whose paths are then named by Of().
  void BeginVersion();
  // Forgets the paths that the latest version of the configuration does not have.
  void ForgetOtherVersions();

  std::vector<Row> rows() const;

 private:
  // A domain may have any bytes, so it is preceded by its length.
  static std::string NameOf(std::string_view domain, std::string_view path);

  mutable absl::Mutex mutex_;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Row> configured_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Row> of_requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_METRICS_H_
