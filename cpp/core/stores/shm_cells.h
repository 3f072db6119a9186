// The cells of a ShmStore's file, which Limiter steps without a virtual call.
#ifndef TIDEGATE_SRC_STORES_SHM_CELLS_H_
#define TIDEGATE_SRC_STORES_SHM_CELLS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "table/cell_store.h"
#include "table/table.h"
#include "tidegate/shm_store.h"

namespace tidegate {

struct ShmHeader;

class ShmCells final : public CellStore<ShmCells, ShmStore> {
 public:
  ShmCells(std::string path, void* memory);
  ~ShmCells() override;
  ShmCells(const ShmCells&) = delete;
  ShmCells& operator=(const ShmCells&) = delete;

  absl::Status Accepts(const Limit& limit) const override;
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  Decision ChargeUsed(Op op, const Charge& charge, const Moment& moment) override;
  int64_t Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  void Forget(const Charge& charge, const Moment& moment) override;
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  int64_t Extend(absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment) override;
  absl::StatusOr<QuotaStatus> StatusOf(const Charge& charge, const Moment& moment) override;
  absl::Status TopUp(const Charge& charge, const QuotaTopUp& top_up, const Moment& moment) override;
  absl::Status BringForward(const Charge& charge, const Moment& moment) override;
  ClockShift clock_shift() const override;
  StoreStats stats() const override;

  const std::string& path() const override { return path_; }
  int64_t capacity() const override { return capacity_; }
  size_t bytes() const override { return bytes_; }
  int64_t NowNs() const override;
  void* board() const override;
  Hasher HasherFor(std::string_view use) const override;
  Census Count(int64_t now_ns, size_t busiest) const override;

 private:
  friend struct CellCalls;
  struct NoPass {
    explicit operator bool() const { return true; }
  };

  NoPass Enter() const { return {}; }
  NoPass EnterQuickly(int) const { return {}; }
  Table& TableOf(const Fingerprint&) { return table_; }
  static bool IsTendingDue(int64_t) { return false; }
  static bool IsDue(const Table::Entry& entry, int64_t) { return entry.changed(); }
  void Entered(const Table::Entry& entry, int64_t now_ns);
  Decision HitOther(const Charge& charge, const Fingerprint& key, const Moment& moment);
  // Defined in shm_quotas.cc.
  template <typename Call>
  auto WithQuota(const Charge& charge, const Moment& moment, Call call);
  Decision HitQuota(const Charge& charge, const Moment& moment);
  Decision PeekAtQuota(const Charge& charge, const Moment& moment);
  Decision ChargeQuota(Op op, const Charge& charge, const Moment& moment);
  int64_t RefundToQuota(const Charge& charge, const Moment& moment);
  void ResetQuota(const Charge& charge, const Moment& moment);
  void ForgetQuota(const Charge& charge, const Moment& moment);

  const std::string path_;
  ShmHeader* const header_;
  const Hasher hasher_;
  const int64_t capacity_;
  const size_t bytes_;
  const int64_t clock_offset_ns_;  // file's time minus this process's monotonic clock, uncorrected
  WallFollower follower_;
  Table table_;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_STORES_SHM_CELLS_H_
