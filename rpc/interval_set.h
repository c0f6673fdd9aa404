// IntervalSet: a set of call ids, kept as the intervals that it consists of.

#ifndef WEFT_RPC_INTERVAL_SET_H_
#define WEFT_RPC_INTERVAL_SET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"

namespace weft::rpc {

// Both ends belong to it.
struct Interval {
  uint64_t first = 0;
  uint64_t last = 0;

  friend bool operator==(Interval a, Interval b) {
    return a.first == b.first && a.last == b.last;
  }
};

// Neighbours are joined, so memory is one entry for each gap.
class IntervalSet {
 public:
  void Add(uint64_t id) { Add(Interval{id, id}); }
  // REQUIRES: interval.first <= interval.last < UINT64_MAX.
  void Add(Interval interval);
  bool Contains(uint64_t id) const;
  void Clear() { last_by_first_.clear(); }

  bool empty() const { return last_by_first_.empty(); }
  size_t size() const { return last_by_first_.size(); }  // of intervals
  std::vector<Interval> Intervals() const;               // ascending

  std::string ToString() const;  // "1-7 9-9"

 private:
  absl::btree_map<uint64_t, uint64_t> last_by_first_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_INTERVAL_SET_H_
