// RoundGate: when a synchronous table may apply a round.
//
// Each of the workers gives one part to each round. A round closes when every
// worker that still counts has given its part; its parts are then applied in
// rank order, so that the same parts give the same bits whatever the order in
// which they came. A worker that is declared dead counts no more: nobody waits
// for it, and what it had given to an open round still goes in.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_ROUND_GATE_H_
#define WEFT_PS_ROUND_GATE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace weft::ps {

template <typename Part>
class RoundGate {
 public:
  // A worker may be at most this many rounds ahead of the open one, which
  // bounds the parts that are kept.
  static constexpr int64_t kLookahead = 4;

  enum class Answer {
    kKept,       // the part belongs to an open round and is kept
    kDuplicate,  // this worker had given its part to this open round before
    kApplied,    // the round is closed, and had this worker's part
    kMissed,     // the round was closed without this worker, then thought dead
    kTooFar,     // more than kLookahead rounds ahead
    kUnknown,    // no such rank, or one that was declared dead
  };

  explicit RoundGate(int workers, int64_t open = 0) : open_(open) {
    for (int rank = 0; rank < workers; ++rank) members_[rank] = Member{};
  }

  Answer Give(int rank, int64_t round, Part part) {
    const auto member = members_.find(rank);
    if (member == members_.end() || round < 0) return Answer::kUnknown;
    if (round < open_) {
      const bool was_counted =
          round >= member->second.since && round < member->second.until;
      return was_counted ? Answer::kApplied : Answer::kMissed;
    }
    if (member->second.until != kForEver) return Answer::kUnknown;
    if (round - open_ > kLookahead) return Answer::kTooFar;
    const bool is_new = rounds_[round].emplace(rank, std::move(part)).second;
    return is_new ? Answer::kKept : Answer::kDuplicate;
  }

  // What `rank` gave to a round that is not closed yet; null if nothing.
  const Part* Find(int rank, int64_t round) const {
    const auto parts = rounds_.find(round);
    if (parts == rounds_.end()) return nullptr;
    const auto part = parts->second.find(rank);
    return part == parts->second.end() ? nullptr : &part->second;
  }

  // The parts of the open round in rank order if it may close, which it then
  // does; else nothing. Call it until it gives nothing.
  std::vector<Part> Close() {
    std::vector<Part> parts;
    if (live() == 0 || !Missing().empty()) return parts;
    const auto it = rounds_.find(open_);
    for (auto& [rank, part] : it->second) parts.push_back(std::move(part));
    rounds_.erase(it);
    ++open_;
    return parts;
  }

  void DeclareDead(int rank) {
    const auto member = members_.find(rank);
    if (member == members_.end() || member->second.until != kForEver) return;
    // Its part in the open round, if it gave one, is still applied; what it
    // gave to later rounds is not, since it may not be there for all of them.
    const auto open_round = rounds_.find(open_);
    const bool gave =
        open_round != rounds_.end() && open_round->second.count(rank) != 0;
    member->second.until = gave ? open_ + 1 : open_;
    for (auto it = rounds_.upper_bound(open_); it != rounds_.end(); ++it) {
      it->second.erase(rank);
    }
  }

  // Counts `rank` again from the open round on: a new incarnation joined.
  void Admit(int rank) {
    const auto member = members_.find(rank);
    if (member == members_.end() || member->second.until == kForEver) return;
    const auto open_round = rounds_.find(open_);
    if (open_round != rounds_.end()) open_round->second.erase(rank);
    member->second = Member{open_, kForEver};
  }

  int64_t open() const { return open_; }  // the round that is not closed yet
  int live() const {
    int count = 0;
    for (const auto& [rank, member] : members_) {
      count += member.until == kForEver ? 1 : 0;
    }
    return count;
  }

  // The ranks without which the open round cannot close.
  std::vector<int> Missing() const {
    std::vector<int> missing;
    const auto it = rounds_.find(open_);
    for (const auto& [rank, member] : members_) {
      if (member.until != kForEver) continue;
      if (it == rounds_.end() || it->second.count(rank) == 0) {
        missing.push_back(rank);
      }
    }
    return missing;
  }

 private:
  static constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

  // The rounds that a rank counts in: [since, until).
  struct Member {
    int64_t since = 0;
    int64_t until = kForEver;
  };

  int64_t open_;
  std::map<int, Member> members_;
  std::map<int64_t, std::map<int, Part>> rounds_;  // by round, by rank
};

}  // namespace weft::ps

#endif  // WEFT_PS_ROUND_GATE_H_
