#include "weft/ps/cut.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::ps {

std::vector<DensePart> CutDense(const TableLayout& layout,
                                const Placement& placement) {
  std::map<int, DensePart::Group> by_partition;
  for (int64_t slice = 0; slice < layout.slices(); ++slice) {
    const int partition = placement.PartitionOfSlice(slice);
    DensePart::Group& group = by_partition[partition];
    group.partition = partition;
    group.slices.push_back(static_cast<uint64_t>(slice));
    group.elements += layout.RowLength(static_cast<uint64_t>(slice));
  }
  std::vector<DensePart> parts(placement.servers());
  for (auto& [partition, group] : by_partition) {
    DensePart& part = parts[placement.ServerOf(partition)];
    part.elements += group.elements;
    part.groups.push_back(std::move(group));
  }
  return parts;
}

SparseCut CutSparse(absl::Span<const int64_t> keys,
                    const Placement& placement) {
  struct Entry {
    int server;
    int partition;
    uint64_t key;
    size_t index;
    auto Place() const { return std::tie(server, partition, key); }
  };
  std::vector<Entry> entries;
  entries.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t key = static_cast<uint64_t>(keys[i]);
    const int partition = placement.PartitionOfKey(key);
    entries.push_back({placement.ServerOf(partition), partition, key, i});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.Place() < b.Place();
  });

  SparseCut cut;
  cut.parts.resize(placement.servers());
  cut.unique_of.resize(keys.size());
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
    if (previous == nullptr || previous->key != entry.key) {
      SparsePart& part = cut.parts[entry.server];
      const int64_t at = static_cast<int64_t>(part.keys.size());
      if (part.groups.empty() ||
          part.groups.back().partition != entry.partition) {
        part.groups.push_back({entry.partition, at, at});
      }
      part.keys.push_back(entry.key);
      ++part.groups.back().end;
      ++cut.unique;
    }
    cut.unique_of[entry.index] = cut.unique - 1;
    previous = &entry;
  }
  return cut;
}

}  // namespace weft::ps
