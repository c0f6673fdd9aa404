// IntervalSet: a set of call ids, kept as the intervals that it consists of.

#ifndef WEFT_RPC_SESSION_INTERVAL_SET_H_
#define WEFT_RPC_SESSION_INTERVAL_SET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"

namespace weft::rpc {

// Both ends belong to it.
struct Interval {
  uint64_t first = 0;
  uint64_t last = 0;

  friend bool operator==(Interval a, Interval b) {
    return a.first == b.first && a.last == b.last;
  }
};

using Intervals = absl::InlinedVector<Interval, 1>;

// Neighbours are joined, so memory is one entry for each gap. The last interval
// is where ids are added as a rule: it lies apart.
class IntervalSet {
 public:
  void Add(uint64_t id) { Add(Interval{id, id}); }
  // REQUIRES: interval.first <= interval.last < UINT64_MAX, interval.last > 0.
  void Add(Interval interval);
  // REQUIRES: as Add.
  void Remove(Interval interval);
  bool Contains(uint64_t id) const;
  // Cuts `interval` into its largest parts that belong to the set or do not,
  // in ascending order.
  void ForEachPart(
      Interval interval,
      absl::FunctionRef<void(Interval part, bool belongs)> fn) const;
  void Clear() {
    newest_ = Interval();
    if (!earlier_.empty()) earlier_.clear();
  }

  bool empty() const { return newest_.last == 0; }
  size_t size() const { return earlier_.size() + !empty(); }  // of intervals
  rpc::Intervals Intervals() const;                           // ascending
  template <typename T>  // a container of Interval
  void AppendTo(T* intervals) const {
    for (const auto& [first, last] : earlier_) {
      intervals->push_back(Interval{first, last});
    }
    if (!empty()) intervals->push_back(newest_);
  }

  std::string ToString() const;  // "1-7 9-9"

 private:
  void AddEarlier(Interval interval);

  Interval newest_;  // its last is 0 if there is none
  absl::btree_map<uint64_t, uint64_t> earlier_;  // last by first
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_INTERVAL_SET_H_
