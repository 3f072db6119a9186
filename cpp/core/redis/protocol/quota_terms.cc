#include "redis/protocol/quota_terms.h"

#include <algorithm>
#include <vector>

#include "tidegate/limit.h"

namespace tidegate::redis {

std::string TermsFor(const QuotaTerms& terms, int64_t now_s) {
  // The server's clock may be in a period before or after this host's.
  constexpr int64_t kBeside = 2;
  constexpr int64_t kBeforeEpoch = int64_t{1} << 33;
  const std::vector<FormerCount>& former = terms.spec().former;
  const int carried = terms.carried_periods();
  // Only former counts need the edges of the periods that may be carried.
  const int64_t before = former.empty() ? kBeside : kBeside + carried + 1;
  const int64_t now = terms.PeriodAt(now_s).index;
  const int64_t first = std::max<int64_t>(1, now - before);
  const int64_t last = now + kBeside + carried + 2;
  std::string bytes;
  const auto put = [&bytes](int64_t value, int width) {
    for (int i = width - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  };
  put(first, 4);
  put(terms.kept_s(), 5);
  put(carried, 1);
  put(terms.spec().rollover.value_or(Limit::kMaxCount), 7);
  put(terms.spec().rollover_percent.value_or(100), 1);
  put(terms.spec().first_prorated ? 1 : 0, 1);
  put(static_cast<int64_t>(former.size()), 1);
  if (!former.empty()) put(terms.longest_period_s(), 4);
  for (const FormerCount& each : former) {
    put(each.count, 7);
    put(each.until_s + kBeforeEpoch, 5);
  }
  for (int64_t i = first; i <= last; ++i) put(terms.Edge(i) + kBeforeEpoch, 5);
  return bytes;
}

}  // namespace tidegate::redis
