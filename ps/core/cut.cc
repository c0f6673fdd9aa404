#include "weft/ps/core/cut.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/numeric/bits.h"

namespace weft::ps {
namespace {

// A key's place is its partition's rank among all partitions, server after
// server, above the lower bits of the mixed key; equal only for equal keys. An
// entry is the upper bits of the place, and below them the key's index: so
// little is moved, and entries of equal keys are in order of their indices.
using Entry = uint64_t;

constexpr int kMostBits = 11;  // of one counting pass
constexpr int kMostPasses = 3;
constexpr size_t kFew = 32;  // entries that are sorted by insertion alone
// Moves an entry that a sort by insertion may need where entries are nearly
// sorted.
constexpr size_t kMovesExpected = 8;

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

// Sorts; the result is in `entries` or in `scratch`, and is returned. Mixed
// keys are spread evenly, so counting passes over a few bits more than tell
// that many apart leave little to move.
Entry* SortEntries(Entry* entries, Entry* scratch, size_t n) {
  if (n <= kFew) {
    (void)SortByInsertion(entries, n, n * n);
    return entries;
  }
  const int wanted = static_cast<int>(absl::bit_width(n)) + 2;
  const int passes =
      std::min((wanted + kMostBits - 1) / kMostBits, kMostPasses);
  const int bits = std::min((wanted + passes - 1) / passes, kMostBits);
  const size_t values = size_t{1} << bits;
  std::array<uint32_t, size_t{1} << kMostBits> begins;
  for (int pass = 1; pass <= passes; ++pass) {
    const int shift = 64 - (passes + 1 - pass) * bits;
    std::fill_n(begins.begin(), values, 0);
    for (size_t i = 0; i < n; ++i) {
      ++begins[(entries[i] >> shift) & (values - 1)];
    }
    uint32_t begin = 0;
    for (size_t v = 0; v < values; ++v) {
      const uint32_t count = begins[v];
      begins[v] = begin;
      begin += count;
    }
    for (size_t i = 0; i < n; ++i) {
      scratch[begins[(entries[i] >> shift) & (values - 1)]++] = entries[i];
    }
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

  uint64_t Of(int64_t key) const {
    const uint64_t mixed = Mix64(static_cast<uint64_t>(key));
    if (in_order_) return mixed;  // ranks are partitions
    const int partition = static_cast<int>(mixed >> shift_);
    return RankOf(partition, placement_) << shift_ | (mixed & below_);
  }

 private:
  const Placement& placement_;
  const int shift_;
  const bool in_order_;
  const uint64_t below_;
};

// The indices of keys in the order of their places, equal ones ascending.
std::vector<uint32_t> OrderOf(absl::Span<const int64_t> keys,
                              const Placement& placement) {
  const size_t n = keys.size();
  const Places places(placement);
  const uint64_t low = (uint64_t{1} << absl::bit_width(n - 1)) - 1;
  const std::unique_ptr<Entry[]> memory(new Entry[2 * n]);
  for (size_t i = 0; i < n; ++i) memory[i] = (places.Of(keys[i]) & ~low) | i;
  const Entry* const entries = SortEntries(memory.get(), memory.get() + n, n);
  std::vector<uint32_t> order(n);
  for (size_t i = 0; i < n; ++i) {
    order[i] = static_cast<uint32_t>(entries[i] & low);
  }
  // Keys with equal upper bits: mostly equal keys.
  for (size_t begin = 0; begin < n;) {
    size_t end = begin + 1;
    bool is_one_key = true;
    while (end < n && ((entries[end] ^ entries[begin]) & ~low) == 0) {
      is_one_key &= keys[order[end]] == keys[order[begin]];
      ++end;
    }
    if (!is_one_key) {
      std::sort(order.begin() + begin, order.begin() + end,
                [&](uint32_t a, uint32_t b) {
                  const uint64_t at_a = places.Of(keys[a]);
                  const uint64_t at_b = places.Of(keys[b]);
                  return at_a != at_b ? at_a < at_b : a < b;
                });
    }
    begin = end;
  }
  return order;
}

// The servers' parts of cut.keys, which are in their order.
void AddGroups(const Placement& placement, SparseCut& cut) {
  const int64_t n = static_cast<int64_t>(cut.keys.size());
  SparsePart* part = nullptr;
  for (int64_t begin = 0; begin < n;) {
    const int partition = placement.PartitionOfKey(cut.keys[begin]);
    int64_t end = begin + 1;
    while (end < n && placement.PartitionOfKey(cut.keys[end]) == partition) {
      ++end;
    }
    SparsePart* const next = &cut.parts[placement.ServerOf(partition)];
    if (next != part) next->begin = begin;
    part = next;
    part->groups.push_back({partition, begin - part->begin, end - part->begin});
    part->end = end;
    begin = end;
  }
}

}  // namespace

SparseCut CutSparse(absl::Span<const int64_t> keys,
                    const Placement& placement) {
  const size_t n = keys.size();
  SparseCut cut;
  cut.parts.resize(placement.servers());
  if (n == 0) return cut;
  cut.order = OrderOf(keys, placement);
  cut.keys.resize(n);
  bool repeats = false;
  for (size_t i = 0; i < n; ++i) {
    cut.keys[i] = static_cast<uint64_t>(keys[cut.order[i]]);
    repeats |= i > 0 && cut.keys[i] == cut.keys[i - 1];
  }
  if (repeats) {
    cut.unique_of.resize(n);
    uint32_t last = 0;
    for (size_t i = 1; i < n; ++i) {
      if (cut.keys[i] != cut.keys[last]) cut.keys[++last] = cut.keys[i];
      cut.unique_of[i] = last;
    }
    cut.keys.resize(last + 1);
  }
  AddGroups(placement, cut);
  return cut;
}

}  // namespace weft::ps
