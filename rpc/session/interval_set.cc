#include "weft/rpc/session/interval_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::rpc {

void IntervalSet::Add(Interval interval) {
  WEFT_CHECK_LE(interval.first, interval.last);
  if (empty()) {
    newest_ = interval;
  } else if (interval.first > newest_.last + 1) {
    earlier_.emplace_hint(earlier_.end(), newest_.first, newest_.last);
    newest_ = interval;
  } else if (interval.first >= newest_.first) {
    newest_.last = std::max(newest_.last, interval.last);
  } else {
    AddEarlier(newest_);
    AddEarlier(interval);
    const auto last = std::prev(earlier_.end());
    newest_ = {last->first, last->second};
    earlier_.erase(last);
  }
}

void IntervalSet::AddEarlier(Interval interval) {
  auto it = earlier_.upper_bound(interval.first);
  if (it != earlier_.begin()) {
    const auto before = std::prev(it);
    if (before->second + 1 >= interval.first) {
      if (before->second >= interval.last) return;
      interval.first = before->first;
      it = before;
    }
  }
  // Every interval that it touches becomes part of it.
  while (it != earlier_.end() && it->first <= interval.last + 1) {
    interval.last = std::max(interval.last, it->second);
    it = earlier_.erase(it);
  }
  earlier_.emplace_hint(it, interval.first, interval.last);
}

void IntervalSet::Remove(Interval interval) {
  if (empty() || interval.first > newest_.last) return;
  // All in one map while it is cut, but for what lies beyond.
  earlier_.emplace(newest_.first, newest_.last);
  auto it = earlier_.upper_bound(interval.first);
  if (it != earlier_.begin()) --it;
  while (it != earlier_.end() && it->first <= interval.last) {
    const Interval whole{it->first, it->second};
    if (whole.last < interval.first) {
      ++it;
      continue;
    }
    earlier_.erase(it);
    if (whole.first < interval.first) {
      earlier_.emplace(whole.first, interval.first - 1);
    }
    if (whole.last > interval.last) {
      earlier_.emplace(interval.last + 1, whole.last);
      break;
    }
    it = earlier_.upper_bound(whole.last);
  }
  newest_ = Interval();
  if (earlier_.empty()) return;
  const auto last = std::prev(earlier_.end());
  newest_ = Interval{last->first, last->second};
  earlier_.erase(last);
}

void IntervalSet::ForEachPart(
    Interval interval, absl::FunctionRef<void(Interval, bool)> fn) const {
  uint64_t next = interval.first;  // what lies before it was given to fn
  const auto take = [&](uint64_t first, uint64_t last) {
    first = std::max(first, next);
    last = std::min(last, interval.last);
    if (first > last) return;
    if (first > next) fn(Interval{next, first - 1}, false);
    fn(Interval{first, last}, true);
    next = last + 1;
  };
  auto it = earlier_.upper_bound(interval.first);
  if (it != earlier_.begin()) --it;
  for (; it != earlier_.end() && it->first <= interval.last; ++it) {
    take(it->first, it->second);
  }
  if (!empty()) take(newest_.first, newest_.last);
  if (next <= interval.last) fn(Interval{next, interval.last}, false);
}

bool IntervalSet::Contains(uint64_t id) const {
  if (empty() || id > newest_.last) return false;
  if (id >= newest_.first) return true;
  const auto it = earlier_.upper_bound(id);
  return it != earlier_.begin() && std::prev(it)->second >= id;
}

Intervals IntervalSet::Intervals() const {
  rpc::Intervals intervals;
  AppendTo(&intervals);
  return intervals;
}

std::string IntervalSet::ToString() const {
  std::string text;
  for (const Interval interval : Intervals()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", interval.first, "-",
                    interval.last);
  }
  return text;
}

}  // namespace weft::rpc
