#include "weft/ps/cut.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>

#include "absl/numeric/bits.h"

namespace weft::ps {
namespace {

// A key's place: its partition's rank among all partitions, server after
// server, above the lower bits of the mixed key. Equal only for equal keys.
struct Entry {
  uint64_t place;
  uint32_t index;  // of the caller's keys
};

constexpr int kMostBits = 11;  // of one counting pass
constexpr size_t kFew = 20;    // entries that are sorted by insertion

void SortByInsertion(Entry* entries, size_t n) {
  for (size_t i = 1; i < n; ++i) {
    const Entry entry = entries[i];
    size_t at = i;
    for (; at > 0 && entries[at - 1].place > entry.place; --at) {
      entries[at] = entries[at - 1];
    }
    entries[at] = entry;
  }
}

// Sorts by the `values` values, a power of two, of the places' bits from
// `shift` on, stably.
void CountingPass(Entry* entries, Entry* scratch, size_t n, int shift,
                  size_t values) {
  std::array<uint32_t, size_t{1} << kMostBits> begins;
  std::fill_n(begins.begin(), values, 0);
  const auto value_of = [=](const Entry& entry) {
    return static_cast<size_t>(entry.place >> shift) & (values - 1);
  };
  for (size_t i = 0; i < n; ++i) ++begins[value_of(entries[i])];
  uint32_t begin = 0;
  for (size_t v = 0; v < values; ++v) {
    const uint32_t count = begins[v];
    begins[v] = begin;
    begin += count;
  }
  for (size_t i = 0; i < n; ++i) {
    scratch[begins[value_of(entries[i])]++] = entries[i];
  }
  std::copy_n(scratch, n, entries);
}

// Sorts by the lower `bits` of the places, stably; all above are equal. Each
// pass takes so many bits that about eight entries are left for each value, and
// what is left is sorted in the same way.
void SortEntries(Entry* entries, Entry* scratch, size_t n, int bits) {
  if (n <= kFew) return SortByInsertion(entries, n);
  if (bits == 0) return;
  const int wanted = static_cast<int>(absl::bit_width(n)) - 3;
  const int shift = bits - std::min({bits, wanted, kMostBits});
  CountingPass(entries, scratch, n, shift, size_t{1} << (bits - shift));
  for (size_t begin = 0; begin < n;) {
    const uint64_t value = entries[begin].place >> shift;
    size_t end = begin + 1;
    while (end < n && entries[end].place >> shift == value) ++end;
    SortEntries(entries + begin, scratch, end - begin, shift);
    begin = end;
  }
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

SparseCut CutSparse(absl::Span<const int64_t> keys,
                    const Placement& placement) {
  const size_t n = keys.size();
  const int shift = placement.key_shift();
  // Every bit below the partition's.
  const uint64_t below =
      shift == 64 ? ~uint64_t{0} : (uint64_t{1} << shift) - 1;
  const bool in_order = placement.servers() == 1;  // ranks are partitions
  SparseCut cut;
  cut.parts.resize(placement.servers());
  if (n == 0) return cut;

  const auto entries = std::unique_ptr<Entry[]>(new Entry[2 * n]);
  for (size_t i = 0; i < n; ++i) {
    uint64_t place = Mix64(static_cast<uint64_t>(keys[i]));
    if (!in_order && shift < 64) {
      const int partition = static_cast<int>(place >> shift);
      place = RankOf(partition, placement) << shift | (place & below);
    }
    entries[i] = {place, static_cast<uint32_t>(i)};
  }
  SortEntries(entries.get(), entries.get() + n, n, 64);

  cut.order.resize(n);
  for (size_t i = 0; i < n; ++i) cut.order[i] = entries[i].index;
  for (size_t i = 1; i < n && cut.unique_of.empty(); ++i) {
    if (entries[i].place == entries[i - 1].place) cut.unique_of.resize(n);
  }
  for (SparsePart& part : cut.parts) {
    part.keys.reserve(n / placement.servers());
  }
  SparsePart* part = nullptr;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t place = entries[i].place;
    if (i == 0 || place != entries[i - 1].place) {
      const uint64_t key = static_cast<uint64_t>(keys[entries[i].index]);
      const bool is_next =
          i == 0 ||
          (shift < 64 && place >> shift != entries[i - 1].place >> shift);
      if (is_next) {
        const int partition = placement.PartitionOfKey(key);
        part = &cut.parts[placement.ServerOf(partition)];
        const int64_t at = static_cast<int64_t>(part->keys.size());
        part->groups.push_back({partition, at, at});
      }
      part->keys.push_back(key);
      ++part->groups.back().end;
      ++cut.unique;
    }
    if (!cut.unique_of.empty()) {
      cut.unique_of[i] = static_cast<uint32_t>(cut.unique - 1);
    }
  }
  return cut;
}

}  // namespace weft::ps
