#include "weft/ps/core/cut.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/numeric/bits.h"

namespace weft::ps {
namespace {

// A key's place is its partition's rank among all partitions, server after
// server, above the lower bits of the mixed key; equal only for equal keys. An
// entry is the upper bits of the place, and below them the key's index: so
// little is moved, and entries of equal keys are in order of their indices.
using Entry = uint64_t;

// Entries are first dealt out to buckets by their upper bits, so that what is
// sorted then lies in the first-level cache.
constexpr int kBucketBits = 11;  // a bucket has about so many bits of entries
constexpr int kMostBuckets = 8;  // bits
constexpr int kMostBits = 11;    // of one counting pass
constexpr int kMostPasses = 3;
constexpr size_t kFew = 32;  // entries that are sorted by insertion alone
// Moves an entry that a sort by insertion may need where entries are nearly
// sorted.
constexpr size_t kMovesExpected = 8;
// Keys that are fetched ahead.
constexpr size_t kAhead = 24;

// Gives up, and returns false, after about so many moves.
bool SortByInsertion(Entry* entries, size_t n, size_t moves) {
  for (size_t i = 1; i < n; ++i) {
    if (entries[i - 1] <= entries[i]) continue;
    const Entry entry = entries[i];
    size_t at = i;
    for (; at > 0 && entries[at - 1] > entry; --at) {
      entries[at] = entries[at - 1];
    }
    entries[at] = entry;
    if (i - at > moves) return false;
    moves -= i - at;
  }
  return true;
}

// The entries by `bits` bits from `shift` on, in their order where these are
// equal. `counts`: how many there are of each value.
void Deal(const Entry* entries, size_t n, int shift, int bits, uint32_t* counts,
          Entry* to) {
  const size_t values = size_t{1} << bits;
  uint32_t begin = 0;
  for (size_t v = 0; v < values; ++v) {
    const uint32_t count = counts[v];
    counts[v] = begin;
    begin += count;
  }
  for (size_t i = 0; i < n; ++i) {
    to[counts[(entries[i] >> shift) & (values - 1)]++] = entries[i];
  }
}

// Sorts; the result is in `entries` or in `scratch`, and is returned. The
// upper `equal` bits are the same for all. Mixed keys are spread evenly, so
// counting passes over a few bits more than tell that many apart leave little
// to move.
Entry* SortEntries(Entry* entries, Entry* scratch, size_t n, int equal) {
  if (n <= kFew) {
    (void)SortByInsertion(entries, n, n * n);
    return entries;
  }
  const int wanted = static_cast<int>(absl::bit_width(n)) + 2;
  const int passes =
      std::min((wanted + kMostBits - 1) / kMostBits, kMostPasses);
  const int bits = std::min((wanted + passes - 1) / passes, kMostBits);
  const size_t values = size_t{1} << bits;
  std::array<uint32_t, kMostPasses << kMostBits> counts;
  std::fill_n(counts.begin(), values * passes, 0);
  const int lowest = 64 - equal - passes * bits;
  for (int pass = 0; pass < passes; ++pass) {
    uint32_t* const own = counts.data() + pass * values;
    const int shift = lowest + pass * bits;
    for (size_t i = 0; i < n; ++i) ++own[(entries[i] >> shift) & (values - 1)];
  }
  for (int pass = 0; pass < passes; ++pass) {
    Deal(entries, n, lowest + pass * bits, bits, counts.data() + pass * values,
         scratch);
    std::swap(entries, scratch);
  }
  if (!SortByInsertion(entries, n, kMovesExpected * n)) {
    std::sort(entries, entries + n);
  }
  return entries;
}

// Partition p's rank among all, server after server.
uint64_t RankOf(int partition, const Placement& placement) {
  const int server = placement.ServerOf(partition);
  const int each = placement.partitions() / placement.servers();
  const int more = placement.partitions() % placement.servers();
  return static_cast<uint64_t>(server * each + std::min(server, more) +
                               partition / placement.servers());
}

}  // namespace

std::vector<uint64_t> SlicesOf(const std::vector<DensePart::Group>& groups) {
  std::vector<uint64_t> slices;
  for (const DensePart::Group& group : groups) {
    slices.insert(slices.end(), group.slices.begin(), group.slices.end());
  }
  return slices;
}

std::vector<DensePart> CutDense(const TableLayout& layout,
                                const Placement& placement) {
  std::vector<DensePart> parts(placement.servers());
  std::map<int, size_t> group_of;  // by partition
  for (int64_t slice = 0; slice < layout.slices(); ++slice) {
    const int partition = placement.PartitionOfSlice(slice);
    DensePart& part = parts[placement.ServerOf(partition)];
    const auto [it, is_new] =
        group_of.try_emplace(partition, part.groups.size());
    if (is_new) part.groups.push_back({partition, {}, 0});
    DensePart::Group& group = part.groups[it->second];
    group.slices.push_back(static_cast<uint64_t>(slice));
    group.elements += layout.RowLength(static_cast<uint64_t>(slice));
    part.elements += layout.RowLength(static_cast<uint64_t>(slice));
  }
  if (layout.slices() <= placement.partitions()) {
    for (DensePart& part : parts) {
      part.is_whole = part.elements == layout.spec().elements();
    }
  }
  return parts;
}

namespace {

// The places of keys.
class Places {
 public:
  explicit Places(const Placement& placement)
      : placement_(placement),
        shift_(placement.key_shift()),
        in_order_(placement.servers() == 1 || shift_ == 64),
        below_(shift_ == 64 ? 0 : (uint64_t{1} << shift_) - 1) {}

  // Whether a place is the mixed key.
  bool in_order() const { return in_order_; }
  uint64_t Of(uint64_t mixed) const {
    if (in_order_) return mixed;  // ranks are partitions
    const int partition = static_cast<int>(mixed >> shift_);
    return RankOf(partition, placement_) << shift_ | (mixed & below_);
  }
  // The rank of a place, or of as many of a place's upper bits.
  uint64_t RankAt(uint64_t place) const { return place >> 1 >> (shift_ - 1); }

 private:
  const Placement& placement_;
  const int shift_;
  const bool in_order_;
  const uint64_t below_;
};

// Puts a cut together of entries in their order.
class Assembly {
 public:
  Assembly(absl::Span<const int64_t> keys, const Placement& placement,
           const Places& places, uint64_t low, SparseCut& cut)
      : keys_(keys),
        placement_(placement),
        places_(places),
        low_(low),
        cut_(cut) {
    cut.parts.resize(placement.servers());
    cut.keys.resize(keys.size());
    cut.order.resize(keys.size());
    const size_t most = std::min<size_t>(keys.size(), placement.partitions()) /
                            placement.servers() +
                        1;
    for (SparsePart& part : cut.parts) part.groups.reserve(most);
  }

  // The entries that follow.
  void Add(Entry* entries, size_t n) {
    size_t one_by_one = 0;  // those before it have the order of their places
    for (size_t i = 0; i < n; ++i) {
      const Entry entry = entries[i];
      __builtin_prefetch(
          &keys_[entries[i + kAhead < n ? i + kAhead : i] & low_]);
      if (i + 1 < n && ((entry ^ entries[i + 1]) & ~low_) == 0 &&
          i >= one_by_one) {
        one_by_one = SortRun(entries, i, n);
      }
      const uint32_t index = static_cast<uint32_t>(entries[i] & low_);
      const uint64_t key = static_cast<uint64_t>(keys_[index]);
      if (keys_ended_ > 0 && key == cut_.keys[keys_ended_ - 1]) {
        if (cut_.unique_of.empty()) CountUnique();
      } else {
        const uint64_t rank = places_.RankAt(entry);
        if (rank != rank_) BeginGroup(rank, key);
        cut_.keys[keys_ended_++] = key;
      }
      if (!cut_.unique_of.empty()) {
        cut_.unique_of[sorted_] = static_cast<uint32_t>(keys_ended_ - 1);
      }
      cut_.order[sorted_++] = index;
    }
  }

  void End() {
    EndGroup();
    cut_.sorted = sorted_;
    cut_.keys.resize(keys_ended_);
  }

 private:
  // Sorts the entries from `begin` on whose upper bits are equal: mostly those
  // of one key, which are in order. Returns their end.
  size_t SortRun(Entry* entries, size_t begin, size_t n) const {
    size_t end = begin + 1;
    bool is_one_key = true;
    for (; end < n && ((entries[end] ^ entries[begin]) & ~low_) == 0; ++end) {
      is_one_key &= KeyOf(entries[end]) == KeyOf(entries[begin]);
    }
    if (!is_one_key) {
      std::sort(entries + begin, entries + end, [this](Entry a, Entry b) {
        const uint64_t at_a = places_.Of(Mix64(KeyOf(a)));
        const uint64_t at_b = places_.Of(Mix64(KeyOf(b)));
        return at_a != at_b ? at_a < at_b : a < b;
      });
    }
    return end;
  }
  uint64_t KeyOf(Entry entry) const {
    return static_cast<uint64_t>(keys_[entry & low_]);
  }

  // A key repeats for the first time.
  void CountUnique() {
    cut_.unique_of.resize(keys_.size());
    std::iota(cut_.unique_of.begin(), cut_.unique_of.begin() + sorted_, 0);
  }

  void BeginGroup(uint64_t rank, uint64_t first) {
    EndGroup();
    rank_ = rank;
    begin_ = static_cast<int64_t>(keys_ended_);
    partition_ = placement_.PartitionOfKey(first);
  }
  void EndGroup() {
    const int64_t end = static_cast<int64_t>(keys_ended_);
    if (end == begin_) return;
    SparsePart& part = cut_.parts[placement_.ServerOf(partition_)];
    if (part.groups.empty()) part.begin = begin_;
    part.groups.push_back({partition_, begin_ - part.begin, end - part.begin});
    part.end = end;
    cut_.sorted = sorted_;
  }

  const absl::Span<const int64_t> keys_;
  const Placement& placement_;
  const Places& places_;
  const uint64_t low_;
  SparseCut& cut_;
  size_t sorted_ = 0;
  size_t keys_ended_ = 0;  // how many unique ones there are
  // The group that is open.
  uint64_t rank_ = ~uint64_t{0};
  int partition_ = 0;
  int64_t begin_ = 0;
};

}  // namespace

SparseCut CutSparse(absl::Span<const int64_t> keys, const Placement& placement,
                    absl::FunctionRef<void(const SparseCut&)> grown) {
  const size_t n = keys.size();
  SparseCut cut;
  cut.parts.resize(placement.servers());
  if (n == 0) return cut;
  const Places places(placement);
  const uint64_t low = (uint64_t{1} << absl::bit_width(n - 1)) - 1;
  const int bits = std::clamp(
      static_cast<int>(absl::bit_width(n)) - kBucketBits, 0, kMostBuckets);
  const auto bucket_of = [bits](Entry e) { return e >> 1 >> (63 - bits); };
  const std::unique_ptr<Entry[]> memory(new Entry[2 * n]);
  Entry* entries = memory.get();
  Entry* scratch = entries + n;
  std::array<uint32_t, (1 << kMostBuckets) + 1> ends = {};
  const auto mix = [&](auto place_of) {
    for (size_t i = 0; i < n; ++i) {
      entries[i] = (place_of(Mix64(static_cast<uint64_t>(keys[i]))) & ~low) | i;
      ++ends[bucket_of(entries[i])];
    }
  };
  if (places.in_order()) {
    mix([](uint64_t mixed) { return mixed; });
  } else {
    mix([&places](uint64_t mixed) { return places.Of(mixed); });
  }
  if (bits > 0) {
    Deal(entries, n, 64 - bits, bits, ends.data(), scratch);
    std::swap(entries, scratch);
  } else {
    ends[0] = static_cast<uint32_t>(n);
  }
  Assembly assembly(keys, placement, places, low, cut);
  size_t begin = 0;
  for (size_t b = 0; b < size_t{1} << bits; ++b) {
    const size_t size = ends[b] - begin;
    assembly.Add(SortEntries(entries + begin, scratch + begin, size, bits),
                 size);
    begin = ends[b];
    if (begin < n) grown(cut);
  }
  assembly.End();
  return cut;
}

SparseCut CutSparse(absl::Span<const int64_t> keys,
                    const Placement& placement) {
  return CutSparse(keys, placement, [](const SparseCut&) {});
}

}  // namespace weft::ps
