// IdMap: values by call id, in the order of the ids.
//
// Ids are given in ascending order and most end about in that order, so they
// lie in a queue: to add the last or to take one of the first is cheap and
// seldom allocates. Elsewhere it costs the distance to the nearer end.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_RPC_SESSION_ID_MAP_H_
#define WEFT_RPC_SESSION_ID_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <tuple>
#include <utility>

namespace weft::rpc {

template <typename T>
class IdMap {
 public:
  using iterator = typename std::deque<std::pair<uint64_t, T>>::iterator;
  using const_iterator =
      typename std::deque<std::pair<uint64_t, T>>::const_iterator;

  iterator begin() { return entries_.begin(); }
  iterator end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  size_t size() const { return entries_.size(); }

  // The first with this id or a larger one.
  iterator lower_bound(uint64_t id) { return LowerBound(entries_, id); }
  iterator find(uint64_t id) { return Find(entries_, id); }
  const_iterator find(uint64_t id) const { return Find(entries_, id); }
  bool contains(uint64_t id) const { return find(id) != end(); }

  // The value of `id`, and whether it is new: made of `args`. Iterators are
  // void after that, as after erase().
  template <typename... Args>
  std::pair<iterator, bool> try_emplace(uint64_t id, Args&&... args) {
    if (entries_.empty() || entries_.back().first < id) {
      entries_.emplace_back(std::piecewise_construct, std::forward_as_tuple(id),
                            std::forward_as_tuple(std::forward<Args>(args)...));
      return {std::prev(end()), true};
    }
    const iterator it = lower_bound(id);
    if (it->first == id) return {it, false};
    return {entries_.emplace(
                it, std::piecewise_construct, std::forward_as_tuple(id),
                std::forward_as_tuple(std::forward<Args>(args)...)),
            true};
  }
  // Returns the next one.
  iterator erase(iterator it) {
    if (it != begin()) return entries_.erase(it);
    entries_.pop_front();
    return begin();
  }

 private:
  template <typename Entries>
  static auto LowerBound(Entries& entries, uint64_t id) {
    if (entries.empty() || entries.front().first >= id) return entries.begin();
    return std::lower_bound(entries.begin(), entries.end(), id,
                            [](const auto& entry, uint64_t wanted) {
                              return entry.first < wanted;
                            });
  }
  template <typename Entries>
  static auto Find(Entries& entries, uint64_t id) {
    const auto it = LowerBound(entries, id);
    return it != entries.end() && it->first == id ? it : entries.end();
  }

  std::deque<std::pair<uint64_t, T>> entries_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_ID_MAP_H_
