// Placement: which partition a row belongs to, and which server a partition.
//
// A sparse key goes to a partition by its hash, a dense table's slices go
// round robin, and partitions go round robin over the servers. Partitions are
// fixed for a table's life, so that a checkpoint made with two servers loads
// on three.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_CORE_PLACEMENT_H_
#define WEFT_PS_CORE_PLACEMENT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft::ps {

// splitmix64's finaliser after the golden-ratio add: a bijection that mixes
// every bit. Source: Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// FNV-1a, for names; stable across builds and machines.
constexpr uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Written into every checkpoint and compared when one is loaded: rows placed
// by another function would be looked for in the wrong partition.
inline constexpr absl::string_view kPlacementName = "splitmix64-top-bits/1";

class Placement {
 public:
  // REQUIRES: `partitions` is a power of two; both are positive.
  Placement(absl::string_view table, int partitions, int servers);

  int partitions() const { return partitions_; }
  int servers() const { return servers_; }

  int PartitionOfKey(uint64_t key) const {
    return PartitionOfMixed(Mix64(key));
  }
  int PartitionOfMixed(uint64_t mixed) const {
    return shift_ == 64 ? 0 : static_cast<int>(mixed >> shift_);
  }
  int PartitionOfSlice(int64_t slice) const {
    return static_cast<int>((first_ + static_cast<uint64_t>(slice)) &
                            (static_cast<uint64_t>(partitions_) - 1));
  }
  // The bits of a mixed key above this one are its partition; 64: there is one.
  int key_shift() const { return shift_; }
  int ServerOf(int partition) const { return partition % servers_; }

 private:
  int partitions_;
  int servers_;
  int shift_;       // 64 - log2(partitions)
  uint64_t first_;  // where slice 0 goes, so that small tables spread
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PLACEMENT_H_
