#include "weft/dist_autograd/core/message_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::dist_autograd {

std::string MessageId::ToString() const {
  return absl::StrCat("message ", number, " of ", producer.ToString());
}

void MessageSet::Add(const MessageId& id) {
  Add(id.producer, {id.number, id.number});
}

void MessageSet::Add(WorkerKey producer, MessageInterval interval) {
  MessageIntervals& all = producers_[producer];
  // The first that ends at or after the number before `interval`: it and those
  // that follow up to its end become one.
  auto it = std::lower_bound(all.begin(), all.end(), interval.first,
                             [](const MessageInterval& a, uint64_t first) {
                               return a.last + 1 < first;
                             });
  auto end = it;
  while (end != all.end() && end->first <= interval.last + 1) {
    interval.first = std::min(interval.first, end->first);
    interval.last = std::max(interval.last, end->last);
    ++end;
  }
  it = all.erase(it, end);
  all.insert(it, interval);
}

void MessageSet::Add(const MessageSet& other) {
  for (const auto& [producer, intervals] : other.producers_) {
    for (const MessageInterval& interval : intervals) Add(producer, interval);
  }
}

void MessageSet::Shorten(size_t most_intervals) {
  size_t count = intervals();
  if (count <= most_intervals) return;
  std::vector<std::pair<size_t, WorkerKey>> longest;
  for (const auto& [producer, intervals] : producers_) {
    longest.emplace_back(intervals.size(), producer);
  }
  std::stable_sort(
      longest.begin(), longest.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [size, producer] : longest) {
    if (count <= most_intervals) return;
    count -= size - 1;
    AddAll(producer);
  }
}

std::vector<WorkerKey> MessageSet::producers_of_all() const {
  std::vector<WorkerKey> found;
  for (const auto& [producer, intervals] : producers_) {
    if (intervals.back().last == kLastMessage) found.push_back(producer);
  }
  return found;
}

bool MessageSet::Contains(const MessageId& id) const {
  for (const MessageInterval& interval : Of(id.producer)) {
    if (interval.first <= id.number && id.number <= interval.last) return true;
  }
  return false;
}

bool MessageSet::ContainsAll(const MessageSet& other) const {
  for (const auto& [producer, intervals] : other.producers_) {
    const MessageIntervals& mine = Of(producer);
    for (const MessageInterval& wanted : intervals) {
      const bool covered = std::any_of(
          mine.begin(), mine.end(), [&](const MessageInterval& interval) {
            return interval.first <= wanted.first &&
                   wanted.last <= interval.last;
          });
      if (!covered) return false;
    }
  }
  return true;
}

size_t MessageSet::intervals() const {
  size_t count = 0;
  for (const auto& [producer, intervals] : producers_) {
    count += intervals.size();
  }
  return count;
}

const MessageIntervals& MessageSet::Of(WorkerKey producer) const {
  static const MessageIntervals* const kNone = new MessageIntervals();
  const auto it = producers_.find(producer);
  return it == producers_.end() ? *kNone : it->second;
}

uint64_t MessageSet::CountOf(WorkerKey producer) const {
  uint64_t count = 0;
  for (const MessageInterval& interval : Of(producer)) {
    count += interval.last - interval.first + 1;
  }
  return count;
}

std::string MessageSet::ToString() const {
  std::string text;
  for (const auto& [producer, intervals] : producers_) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", producer.ToString(), ":");
    for (const MessageInterval& interval : intervals) {
      if (interval.last == kLastMessage) {
        absl::StrAppend(&text, " all");
        continue;
      }
      absl::StrAppend(&text, " ", interval.first, "-", interval.last);
    }
  }
  return text;
}

}  // namespace weft::dist_autograd
