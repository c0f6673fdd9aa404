#include "weft/ps/core/row_life.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/ps/core/placement.h"

namespace weft::ps {
namespace {

// With these seeds neither hash depends on the bits that place a key.
constexpr uint64_t kSketchSeed = 0x5b5ad4d1c2ee8f37;
constexpr uint64_t kChanceSeed = 0x1f83d9abfb41bd6b;

constexpr uint64_t kFormat = 0x31656669'6c776f72;  // "rowlife1"

// What Format() begins with. Then the counts, and the keys with their times.
struct Header {
  uint64_t format = kFormat;
  int64_t clock = 0;
  int64_t admit_after = 0;
  int64_t added = 0;
  uint64_t counts = 0;
  uint64_t gone = 0;
};

struct Gone {
  uint64_t key;
  int64_t when;
};

}  // namespace

CountMin::CountMin(int counters, int admit_after)
    : counters_(counters),
      halved_after_(std::max<int64_t>(1, int64_t{counters} * admit_after / 4)),
      counts_(static_cast<size_t>(counters) * kRows) {}

int CountMin::Add(uint64_t key) {
  const uint64_t hash = Mix64(Mix64(key) ^ kSketchSeed);
  uint8_t* at[kRows];
  uint8_t least = 255;
  for (int row = 0; row < kRows; ++row) {
    const auto place = static_cast<int64_t>(hash >> (16 * row) & 0xffff);
    at[row] = &counts_[row * counters_ + place % counters_];
    least = std::min(least, *at[row]);
  }
  const int count = std::min(255, least + 1);
  for (uint8_t* counter : at) {
    if (*counter == least) *counter = static_cast<uint8_t>(count);
  }
  if (++added_ >= halved_after_) {
    added_ = 0;
    for (uint8_t& counter : counts_) counter /= 2;
  }
  return count;
}

RowLife::RowLife(const RowLimits& limits)
    : limits_(limits),
      sketch_(limits.admit_after > 1 ? limits.counters : 0,
              limits.admit_after) {}

void RowLife::Advance() {
  ++clock_;
  while (!gone_.empty() &&
         clock_ - gone_.front().second > limits_.drop_versions) {
    gone_at_.erase(gone_.front().first);
    gone_.pop_front();
  }
}

RowLife::Entry RowLife::Enter(uint64_t key) {
  if (!gone_at_.empty() && gone_at_.contains(key)) return Entry::kTooLate;
  if (limits_.admit_after > 1) {
    return sketch_.Add(key) >= limits_.admit_after ? Entry::kMade
                                                   : Entry::kNotYet;
  }
  if (limits_.admit_probability >= 1) return Entry::kMade;
  const uint64_t bits =
      Mix64(Mix64(limits_.seed ^ kChanceSeed) ^
            Mix64(Mix64(key) ^ Mix64(static_cast<uint64_t>(clock_))));
  const double chance = static_cast<double>(bits >> 11) * 0x1.0p-53;
  return chance < limits_.admit_probability ? Entry::kMade : Entry::kNotYet;
}

RowLife::Verdict RowLife::CheckOldest(int64_t rows, int64_t touched) const {
  if (limits_.idle_versions > 0 && clock_ - touched > limits_.idle_versions) {
    return Verdict::kIdle;
  }
  const bool is_full = limits_.most_rows > 0 && rows > limits_.most_rows;
  return is_full ? Verdict::kFull : Verdict::kStays;
}

void RowLife::NoteEvicted(uint64_t key) {
  if (limits_.drop_versions == 0) return;
  if (!gone_at_.emplace(key, clock_).second) return;
  gone_.emplace_back(key, clock_);
  if (gone_.size() <= kMostRemembered) return;
  gone_at_.erase(gone_.front().first);
  gone_.pop_front();
}

std::string RowLife::Format() const {
  Header header;
  header.clock = clock_;
  header.admit_after = limits_.admit_after;
  header.added = sketch_.added();
  header.counts = sketch_.counts().size();
  header.gone = gone_.size();
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  out.append(reinterpret_cast<const char*>(sketch_.counts().data()),
             header.counts);
  for (const auto& [key, when] : gone_) {
    const Gone gone = {key, when};
    out.append(reinterpret_cast<const char*>(&gone), sizeof(gone));
  }
  return out;
}

absl::Status RowLife::Load(absl::string_view from) {
  Header header;
  if (!from.empty()) {
    if (from.size() < sizeof(header)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the state of a bounded table's partition has ", from.size(),
          " bytes, wanted at least ", sizeof(header)));
    }
    std::memcpy(&header, from.data(), sizeof(header));
    from.remove_prefix(sizeof(header));
  }
  constexpr uint64_t kMostCounts = uint64_t{CountMin::kRows} * kMostCounters;
  constexpr int64_t kMostAdded = int64_t{kMostCounters} * kMostAdmitAfter;
  constexpr int64_t kMostClock = int64_t{1} << 62;
  if (header.format != kFormat || header.clock < 0 ||
      header.clock > kMostClock || header.added < 0 ||
      header.added > kMostAdded || header.counts > kMostCounts ||
      header.gone > kMostRemembered ||
      from.size() != header.counts + header.gone * sizeof(Gone)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the state of a bounded table's partition cannot be read: format ",
        header.format, ", clock ", header.clock, ", ", header.counts,
        " counters and ", header.gone, " keys in ", from.size(), " bytes"));
  }
  RowLife loaded(limits_);
  loaded.clock_ = header.clock;
  if (header.counts == sketch_.counts().size() &&
      header.admit_after == limits_.admit_after) {
    std::vector<uint8_t> counts(header.counts);
    if (!counts.empty()) std::memcpy(counts.data(), from.data(), counts.size());
    loaded.sketch_.Load(std::move(counts), header.added);
  }
  from.remove_prefix(header.counts);
  int64_t last = 0;
  for (uint64_t i = 0; i < header.gone; ++i) {
    Gone gone;
    std::memcpy(&gone, from.data() + i * sizeof(gone), sizeof(gone));
    if (gone.when < last || gone.when > header.clock) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the state of a bounded table's partition lets key ", gone.key,
          " go at ", gone.when, ", wanted ", last, " to ", header.clock));
    }
    last = gone.when;
    if (limits_.drop_versions > 0 &&
        loaded.gone_at_.emplace(gone.key, gone.when).second) {
      loaded.gone_.emplace_back(gone.key, gone.when);
    }
  }
  *this = std::move(loaded);
  return absl::OkStatus();
}

int64_t RowLife::MostBytes(const RowLimits& limits) {
  return static_cast<int64_t>(
      sizeof(Header) + size_t{CountMin::kRows} * limits.counters +
      (limits.drop_versions > 0 ? kMostRemembered * sizeof(Gone) : 0));
}

int64_t RowLife::memory_bytes() const {
  return static_cast<int64_t>(sizeof(*this) + sketch_.counts().capacity() +
                              gone_.size() * sizeof(gone_[0]) +
                              gone_at_.capacity() * (2 * sizeof(uint64_t) + 1));
}

}  // namespace weft::ps
