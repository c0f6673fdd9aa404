#include "weft/rpc/interval_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::rpc {

void IntervalSet::Add(Interval interval) {
  WEFT_CHECK_LE(interval.first, interval.last);
  auto it = last_by_first_.upper_bound(interval.first);
  if (it != last_by_first_.begin()) {
    const auto before = std::prev(it);
    if (before->second + 1 >= interval.first) {
      if (before->second >= interval.last) return;
      // The usual case: the last one grows.
      if (it == last_by_first_.end() || it->first > interval.last + 1) {
        before->second = interval.last;
        return;
      }
      interval.first = before->first;
      it = before;
    }
  }
  // Every interval that it touches becomes part of it.
  while (it != last_by_first_.end() && it->first <= interval.last + 1) {
    interval.last = std::max(interval.last, it->second);
    it = last_by_first_.erase(it);
  }
  last_by_first_.emplace_hint(it, interval.first, interval.last);
}

bool IntervalSet::Contains(uint64_t id) const {
  const auto it = last_by_first_.upper_bound(id);
  return it != last_by_first_.begin() && std::prev(it)->second >= id;
}

std::vector<Interval> IntervalSet::Intervals() const {
  std::vector<Interval> intervals;
  intervals.reserve(last_by_first_.size());
  for (const auto& [first, last] : last_by_first_) {
    intervals.push_back(Interval{first, last});
  }
  return intervals;
}

std::string IntervalSet::ToString() const {
  std::string text;
  for (const auto& [first, last] : last_by_first_) {
    absl::StrAppend(&text, text.empty() ? "" : " ", first, "-", last);
  }
  return text;
}

}  // namespace weft::rpc
