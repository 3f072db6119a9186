// The calendar of quotas, and the soft events.
#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "base/text.h"
#include "tidegate/limit.h"
#include "tidegate/quota.h"

namespace tidegate {
namespace {

constexpr int64_t kDayS = 86'400;
constexpr int64_t kYear10000 = 253'402'300'800;
// The number of the period that begins 1970, so that all numbers are positive.
constexpr int64_t kFirst = 10;

struct Unit {
  std::string_view name;
  int64_t nominal_days;
  int months;  // 0: days
  int days;
};
constexpr std::array<Unit, 5> kUnits = {{
    {"day", 1, 0, 1},
    {"week", 7, 0, 7},
    {"month", 30, 1, 0},
    {"quarter", 91, 3, 0},
    {"year", 365, 12, 0},
}};

const Unit& UnitOf(QuotaPeriod period) { return kUnits[static_cast<size_t>(period)]; }

// The day on which a period begins.
absl::CivilDay FirstDay(const QuotaSpec& spec, int64_t index) {
  const Unit& unit = UnitOf(spec.period);
  const int64_t n = index - kFirst;
  if (unit.months == 0) {
    // The fifth of January 1970 was a Monday.
    const int first = unit.days == 7 ? 5 + spec.anchor_day - 1 : 1;
    return absl::CivilDay(1970, 1, first) + n * unit.days;
  }
  const absl::CivilMonth month =
      absl::CivilMonth(1970, 1) + n * unit.months + (spec.anchor_month - 1) % unit.months;
  const absl::CivilDay last = absl::CivilDay(month + 1) - 1;
  return absl::CivilDay(month) + std::min<int64_t>(spec.anchor_day, last.day()) - 1;
}

bool IsZoneName(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' ||
           c == '_' || c == '-' || c == '+';
  };
  return !name.empty() && name.size() <= 64 && name.front() != '/' && name != "localtime" &&
         std::all_of(name.begin(), name.end(), plain);
}

absl::Status Bad(std::string_view what, int64_t given, std::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(what), " is ", given, "; expected ", Absl(accepted)));
}

absl::Status CheckFormer(const std::vector<FormerCount>& former) {
  if (former.size() > QuotaTerms::kMostFormer) {
    return Bad("the number of former counts of a quota", static_cast<int64_t>(former.size()),
               absl::StrCat("at most ", QuotaTerms::kMostFormer, ", the latest"));
  }
  int64_t after_s = 0;
  for (const FormerCount& each : former) {
    if (each.count < 0 || each.count > Limit::kMaxQuotaCount) {
      return Bad("a former count of a quota", each.count,
                 absl::StrCat("0 to ", Limit::kMaxQuotaCount));
    }
    if (each.until_s <= after_s || each.until_s >= kYear10000) {
      return Bad("the instant at which a former count of a quota ended", each.until_s,
                 "seconds since 1970, later than for the counts before it");
    }
    after_s = each.until_s;
  }
  return absl::OkStatus();
}

absl::Status Check(const QuotaSpec& spec) {
  const Unit& unit = UnitOf(spec.period);
  const int most_day = unit.months > 0 ? 31 : unit.days;
  if (spec.anchor_day < 1 || spec.anchor_day > most_day) {
    return Bad("the anchor day of a quota", spec.anchor_day,
               absl::StrCat("1 to ", most_day, " for the period ", Absl(unit.name)));
  }
  if (spec.anchor_month < 1 || spec.anchor_month > 12) {
    return Bad("the anchor month of a quota", spec.anchor_month, "1 to 12");
  }
  if (spec.anchor_month != 1 && unit.months < 3) {
    return Bad("the anchor month of a quota", spec.anchor_month,
               "none, since only quarters and years have one");
  }
  if (spec.rollover && (*spec.rollover < 1 || *spec.rollover > Limit::kMaxCount)) {
    return Bad("the rollover of a quota", *spec.rollover, absl::StrCat("1 to ", Limit::kMaxCount));
  }
  if (spec.rollover_percent && (*spec.rollover_percent < 1 || *spec.rollover_percent > 100)) {
    return Bad("the rollover of a quota in percent", *spec.rollover_percent, "1 to 100");
  }
  if (spec.rollover_periods < 1 || spec.rollover_periods > QuotaTerms::kMostPeriods) {
    return Bad("the number of periods that the carried units of a quota last",
               spec.rollover_periods, absl::StrCat("1 to ", QuotaTerms::kMostPeriods));
  }
  return CheckFormer(spec.former);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const QuotaTerms>> QuotaTerms::Create(QuotaSpec spec) {
  if (absl::Status status = Check(spec); !status.ok()) return status;
  std::shared_ptr<QuotaTerms> terms(new QuotaTerms(std::move(spec)));
  const std::string& zone = terms->spec_.zone;
  if (!IsZoneName(zone) || !absl::LoadTimeZone(zone, &terms->zone_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the time zone of a quota is ", Quote(zone),
                     ", which this system does not know; expected a name of the IANA database "
                     "such as 'Europe/Berlin' (the system's package tzdata holds them; TZDIR names "
                     "another folder)"));
  }
  return terms;
}

QuotaTerms::QuotaTerms(QuotaSpec spec) : spec_(std::move(spec)) {
  static std::atomic<uint64_t> serials{0};
  serial_ = ++serials;
  carries_ = spec_.rollover.has_value() || spec_.rollover_percent.has_value();
  if (carries_ || spec_.first_prorated) {
    // The state is kept until carried units have expired, and at least a year: a key that comes
    // back as a new one loses the units that it would have carried.
    kept_s_ = std::max<int64_t>(366 * kDayS, (spec_.rollover_periods + 1) * longest_period_s());
  }
}

int64_t QuotaTerms::Edge(int64_t index) const {
  const absl::TimeZone::TimeInfo midnight = zone_.At(absl::CivilSecond(FirstDay(spec_, index)));
  // If there are two midnights, the first; if there is none, the instant at which clocks skip it.
  return absl::ToUnixSeconds(midnight.kind == absl::TimeZone::TimeInfo::SKIPPED ? midnight.trans
                                                                                : midnight.pre);
}

QuotaTerms::Period QuotaTerms::PeriodAt(int64_t now_s) const {
  // The calendar is slow, and most calls of a thread fall into the same few periods, so each thread
  // caches them.
  struct Known {
    uint64_t serial = 0;
    Period period;
  };
  thread_local std::array<Known, 8> cache;
  Known& known = cache[serial_ % cache.size()];
  if (known.serial == serial_ && known.period.start_s <= now_s && now_s < known.period.end_s) {
    return known.period;
  }
  const absl::CivilDay day(zone_.At(absl::FromUnixSeconds(now_s)).cs);
  const Unit& unit = UnitOf(spec_.period);
  int64_t index = kFirst;
  if (unit.months == 0) {
    index += (day - absl::CivilDay(1970, 1, 1)) / unit.days;
  } else {
    index += (absl::CivilMonth(day) - absl::CivilMonth(1970, 1)) / unit.months;
  }
  // The estimate may be off by one or two periods.
  while (Edge(index) > now_s) --index;
  while (Edge(index + 1) <= now_s) ++index;
  known = {serial_, {index, Edge(index), Edge(index + 1)}};
  return known.period;
}

int64_t QuotaTerms::CarriedOf(int64_t limit, int64_t left) const {
  if (!carries_) return 0;
  int64_t most = left;
  if (spec_.rollover) most = std::min(most, *spec_.rollover);
  if (spec_.rollover_percent) {
    const int percent = *spec_.rollover_percent;
    most = std::min(most, limit / 100 * percent + limit % 100 * percent / 100);
  }
  return most;
}

int64_t QuotaTerms::CountAt(int64_t count, int64_t at_s) const {
  for (const FormerCount& each : spec_.former) {
    if (at_s < each.until_s) return each.count;
  }
  return count;
}

bool QuotaTerms::HadCount(int64_t count, int64_t had, int64_t end_s) const {
  int64_t since_s = 0;
  for (const FormerCount& each : spec_.former) {
    if (each.count == had && since_s < end_s && each.until_s > end_s - longest_period_s()) {
      return true;
    }
    since_s = each.until_s;
  }
  return count == had && since_s < end_s;
}

int64_t QuotaTerms::longest_period_s() const {
  return (UnitOf(spec_.period).nominal_days + 2) * kDayS;
}

int64_t QuotaTerms::nominal_period_ns() const {
  return UnitOf(spec_.period).nominal_days * kDayS * 1'000'000'000;
}

std::string QuotaTerms::TextOf(int64_t count) const {
  std::string text = NameOf(count);
  for (const FormerCount& each : spec_.former) {
    absl::StrAppend(&text, " was ", each.count, " until ",
                    absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(each.until_s),
                                     absl::UTCTimeZone()));
  }
  return text;
}

std::string QuotaTerms::NameOf(int64_t count) const {
  std::string text = absl::StrCat("quota ", count, "/", Absl(UnitOf(spec_.period).name));
  if (spec_.anchor_month != 1) {
    absl::StrAppend(&text, " anchor ", spec_.anchor_month, "-", spec_.anchor_day);
  } else if (spec_.anchor_day != 1) {
    absl::StrAppend(&text, " anchor ", spec_.anchor_day);
  }
  if (spec_.zone != "UTC") absl::StrAppend(&text, " in ", spec_.zone);
  if (spec_.rollover) absl::StrAppend(&text, " rollover ", *spec_.rollover);
  if (spec_.rollover_percent) {
    absl::StrAppend(&text, " rollover ", *spec_.rollover_percent, "%");
  }
  if (carries_ && spec_.rollover_periods != 1) {
    absl::StrAppend(&text, " for ", spec_.rollover_periods, " periods");
  }
  if (spec_.first_prorated) absl::StrAppend(&text, " first prorated");
  return text;
}

void QuotaEvents::Push(std::string_view key, uint8_t happened, const QuotaState& state) {
  int64_t available = state.base.left();
  for (const QuotaGrant& grant : state.carried) available += grant.left();
  for (const QuotaTopUp& top_up : state.top_ups) available += top_up.left();
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < std::size(kQuotaEvents); ++i) {
    if ((happened >> i & 1) == 0) continue;
    if (events_.size() == kMost) {
      ++dropped_;
      return;
    }
    events_.push_back({std::string(key), kQuotaEvents[i], state.used, available, state.end_s});
  }
}

std::vector<QuotaEvents::Event> QuotaEvents::Take() {
  const std::lock_guard lock(mutex_);
  std::vector<Event> taken(std::make_move_iterator(events_.begin()),
                           std::make_move_iterator(events_.end()));
  events_.clear();
  return taken;
}

int64_t QuotaEvents::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace tidegate
