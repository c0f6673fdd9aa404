#include "weft/ps/core/replication/load_meter.h"

#include <algorithm>
#include <cmath>

namespace weft::ps {
namespace {

constexpr absl::Duration kLeastStep = absl::Milliseconds(500);

double SecondsOf(double nanoseconds) { return nanoseconds / 1e9; }

}  // namespace

LoadMeter::LoadMeter(int partitions, int first, int stride,
                     absl::Duration half_life)
    : first_(first),
      stride_(stride),
      size_(partitions <= first ? 0 : (partitions - first - 1) / stride + 1),
      half_life_(half_life),
      counters_(new Counters[size_]),
      sums_(size_) {}

LoadMeter::Counters* LoadMeter::Find(int partition) const {
  const int place = (partition - first_) / stride_;
  if (partition < first_ || place >= size_ ||
      first_ + place * stride_ != partition) {
    return nullptr;
  }
  return &counters_[place];
}

void LoadMeter::Add(int partition, Kind kind, int64_t more) {
  Counters* const counters = Find(partition);
  if (counters == nullptr) return;
  counters->counts[kind].fetch_add(more, std::memory_order_relaxed);
}

void LoadMeter::Count(int partition, int64_t rows, int64_t bytes) {
  Counters* const counters = Find(partition);
  if (counters == nullptr) return;
  counters->counts[kRequests].fetch_add(1, std::memory_order_relaxed);
  counters->counts[kRows].fetch_add(rows, std::memory_order_relaxed);
  counters->counts[kBytes].fetch_add(bytes, std::memory_order_relaxed);
}

void LoadMeter::Busy(int partition, absl::Duration time) {
  Add(partition, kBusy, absl::ToInt64Nanoseconds(time));
}

void LoadMeter::BackupBusy(int partition, absl::Duration time) {
  Add(partition, kBackup, absl::ToInt64Nanoseconds(time));
}

void LoadMeter::Busy(absl::Span<const Share> shares, absl::Duration time) {
  AddShares(shares, kBusy, time);
}

void LoadMeter::BackupBusy(absl::Span<const Share> shares,
                           absl::Duration time) {
  AddShares(shares, kBackup, time);
}

void LoadMeter::AddShares(absl::Span<const Share> shares, Kind kind,
                          absl::Duration time) {
  // A part without rows is work too.
  double all = 0;
  for (const Share& share : shares)
    all += 1.0 + static_cast<double>(share.rows);
  const double of_row =
      all == 0 ? 0 : static_cast<double>(absl::ToInt64Nanoseconds(time)) / all;
  for (const Share& share : shares) {
    const double its = of_row * (1.0 + static_cast<double>(share.rows));
    Add(share.partition, kind, static_cast<int64_t>(its));
  }
}

void LoadMeter::Advance(Instant now) {
  MutexLock lock(mu_);
  if (!has_begun_) {
    has_begun_ = true;
    advanced_ = now;
    return;
  }
  const absl::Duration step = now - advanced_;
  if (step < kLeastStep) return;
  advanced_ = now;
  const double kept = std::exp2(-absl::FDivDuration(step, half_life_));
  seconds_ = seconds_ * kept + absl::ToDoubleSeconds(step);
  for (int i = 0; i < size_; ++i) {
    for (int kind = 0; kind < kKinds; ++kind) {
      std::atomic<int64_t>& counter = counters_[i].counts[kind];
      float& sum = sums_[i][kind];
      int64_t more = 0;
      if (counter.load(std::memory_order_relaxed) != 0) {
        more = counter.exchange(0, std::memory_order_relaxed);
      }
      total_[kind] += static_cast<double>(more);
      sum = static_cast<float>(sum * kept + static_cast<double>(more));
    }
  }
}

Load LoadMeter::RateOf(const Sums& sums) const {
  Load load;
  if (seconds_ <= 0) return load;
  load.requests = sums[kRequests] / seconds_;
  load.rows = sums[kRows] / seconds_;
  load.bytes = sums[kBytes] / seconds_;
  load.busy = SecondsOf(sums[kBusy]) / seconds_;
  load.backup = SecondsOf(sums[kBackup]) / seconds_;
  return load;
}

std::vector<LoadMeter::OfPartition> LoadMeter::Loads() const {
  MutexLock lock(mu_);
  std::vector<OfPartition> loads(size_);
  for (int i = 0; i < size_; ++i) {
    loads[i] = {first_ + i * stride_, RateOf(sums_[i])};
  }
  return loads;
}

Load LoadMeter::Total() const {
  Load total;
  for (const OfPartition& one : Loads()) total += one.load;
  return total;
}

Load LoadMeter::Sum() const {
  MutexLock lock(mu_);
  Load sum;
  sum.requests = total_[kRequests];
  sum.rows = total_[kRows];
  sum.bytes = total_[kBytes];
  sum.busy = SecondsOf(total_[kBusy]);
  sum.backup = SecondsOf(total_[kBackup]);
  return sum;
}

}  // namespace weft::ps
