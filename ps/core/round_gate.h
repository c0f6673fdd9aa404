// RoundGate: when a synchronous table may apply a round.
//
// The data is dealt into shards, whose number a job chooses once. Each round
// has one part of each shard, and closes when the parts of all shards that
// count are there; they are then applied in the order of the shards. So the
// same parts give the same bits whatever the order in which they came, and
// neither the sum nor the divisor of a mean depends on who gave them.
//
// A rank owns the shards that it gives parts of. A shard without an owner
// belongs to the first rank that gives a part of it; a shard that has one
// changes its owner when the owner is declared dead, or when another rank takes
// it over. The former owner's part of the open round stays: what the new owner
// gives for that round is then a repetition, and is dropped. What the former
// owner gave to later rounds is dropped, since no server can know that all
// servers have it.
//
// Orphans::kRetire: the rounds go on without the shards of a dead rank until it
// is admitted again. Orphans::kWait: they wait for another owner.
//
// Quorum: a round closes once so many shards have given their part, or all that
// count if they are fewer. A part that comes later is late: it is dropped, or
// folded, that is, counts in the open round beside that round's own part of its
// shard, unless it is more than kMostLate rounds late. Either way a part counts
// once or not at all, whatever is sent again; of the last kRemembered rounds
// the gate knows which.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_ROUND_GATE_H_
#define WEFT_PS_CORE_ROUND_GATE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace weft::ps {

enum class Orphans { kRetire, kWait };

// When a round closes, and what becomes of parts that come after that.
struct Quorum {
  int parts = 0;  // 0: those of all shards
  bool folds = false;
};

template <typename Part>
class RoundGate {
 public:
  // A shard may be at most this many rounds ahead of the open one, which bounds
  // the parts that are kept.
  static constexpr int64_t kLookahead = 4;
  // How many rounds late a part may be and still be folded; and of how many
  // closed rounds it is known which parts they had.
  static constexpr int64_t kMostLate = 4;
  static constexpr int64_t kRemembered = 64;

  enum class Answer {
    kKept,       // the part belongs to an open round and is kept
    kDuplicate,  // the owner had given this part to this open round before
    kInherited,  // a former owner had; its part stays, this one is dropped
    kApplied,    // the round is closed, and had a part of this shard; or it
                 // was folded
    kMissed,     // the round was closed without this shard, which was retired
    kFolded,     // the quorum had closed the round: it counts in the open one
    kDropped,    // the same, and it does not count
    kTooFar,     // more than kLookahead rounds ahead
    kNotOwner,   // the shard has another owner, and this one takes not over
    kUnknown,    // no such shard, or a rank that was declared dead
  };

  // The first part of shard s is expected from rank s; another rank may give
  // it.
  explicit RoundGate(int shards, Orphans orphans = Orphans::kRetire,
                     int64_t open = 0, Quorum quorum = {})
      : orphans_(orphans), quorum_(quorum), open_(open), shards_(shards) {
    for (int shard = 0; shard < shards; ++shard) shards_[shard].owner = shard;
  }

  // `take_over`: the shard becomes `rank`'s, whoever owns it.
  Answer Give(int shard, int rank, int64_t round, Part part,
              bool take_over = false) {
    if (!IsShard(shard) || round < 0) return Answer::kUnknown;
    Shard& s = shards_[shard];
    if (round < open_) {
      const bool counted = round >= s.since && round < s.until;
      if (!counted) return Answer::kMissed;
      if (quorum_.parts == 0) return Answer::kApplied;
      return GiveLate(shard, rank, round, std::move(part), take_over);
    }
    if (dead_.count(rank) != 0 || s.until != kForEver) return Answer::kUnknown;
    if (round - open_ > kLookahead) return Answer::kTooFar;
    if (!Own(shard, rank, take_over)) return Answer::kNotOwner;
    const auto [it, is_new] =
        rounds_[round].emplace(shard, Given{std::move(part), false});
    if (is_new) return Answer::kKept;
    return it->second.is_inherited ? Answer::kInherited : Answer::kDuplicate;
  }

  // The part of `shard` in a round that is not closed yet; null if none.
  const Part* Find(int shard, int64_t round) const {
    const auto parts = rounds_.find(round);
    if (parts == rounds_.end()) return nullptr;
    const auto part = parts->second.find(shard);
    return part == parts->second.end() ? nullptr : &part->second.part;
  }

  // Whether such a part would be folded, were it given now.
  bool WouldFold(int shard, int64_t round) const {
    return IsShard(shard) && quorum_.folds && round >= 0 && round < open_ &&
           open_ - round <= kMostLate && !Counted(shard, round);
  }

  // The parts of the open round in the order of the shards if it may close,
  // which it then does; else nothing. The folded parts of a shard come before
  // its newer ones, in the order of their rounds. Call it until it gives
  // nothing.
  std::vector<Part> Close() {
    std::vector<Part> parts;
    if (!MayClose()) return parts;
    auto& given = rounds_[open_];
    auto folded = folded_.begin();
    for (int shard = 0; shard < shards(); ++shard) {
      for (; folded != folded_.end() && folded->first.first == shard;
           ++folded) {
        parts.push_back(std::move(folded->second));
      }
      const auto own = given.find(shard);
      if (own != given.end()) parts.push_back(std::move(own->second.part));
      Shard& s = shards_[shard];
      s.history = s.history << 1 | (own != given.end() ? 1 : 0);
    }
    folded_.clear();
    rounds_.erase(open_);
    ++open_;
    return parts;
  }

  // `rank` owns nothing any more and gives nothing.
  void DeclareDead(int rank) {
    if (!dead_.insert(rank).second) return;
    for (int shard = 0; shard < shards(); ++shard) {
      if (shards_[shard].owner != rank) continue;
      Disown(shard);
      if (orphans_ == Orphans::kRetire) Retire(shard, rank);
    }
  }

  // `rank` may give parts again: a new incarnation joined. Shards that were
  // retired at its death count again from the open round on.
  void Admit(int rank) {
    if (dead_.erase(rank) == 0) return;
    for (int shard = 0; shard < shards(); ++shard) {
      Shard& s = shards_[shard];
      if (s.until == kForEver || s.retired_with != rank) continue;
      const auto open_round = rounds_.find(open_);
      if (open_round != rounds_.end()) open_round->second.erase(shard);
      s = Shard{};
      s.owner = rank;
      s.since = open_;
    }
  }

  int64_t open() const { return open_; }  // the round that is not closed yet
  int shards() const { return static_cast<int>(shards_.size()); }
  // The shards that the open round waits for or has a part of.
  int counted() const {
    int count = 0;
    for (const Shard& shard : shards_) count += shard.until == kForEver ? 1 : 0;
    return count;
  }

  // The rank that owns `shard`, or of which the first part is expected;
  // negative: nobody, its owner died.
  int OwnerOf(int shard) const { return shards_[shard].owner; }

  // Whether that rank has given a part of `shard`, and is not only expected to.
  bool IsOwned(int shard) const { return shards_[shard].is_owned; }
  // Whether the open round has a part.
  bool HasParts() const {
    const auto it = rounds_.find(open_);
    return it != rounds_.end() && !it->second.empty();
  }

  // How many more parts the open round needs to close.
  int Needed() const {
    const auto it = rounds_.find(open_);
    const int given =
        it == rounds_.end() ? 0 : static_cast<int>(it->second.size());
    int count = 0;
    for (const Shard& shard : shards_) count += shard.until > open_ ? 1 : 0;
    const int wanted =
        quorum_.parts == 0 ? count : std::min(quorum_.parts, count);
    return std::max(wanted - given, 0);
  }

  // The shards of which the open round has no part: all of them must give one,
  // or with a quorum Needed() of them.
  std::vector<int> Missing() const {
    std::vector<int> missing;
    const auto it = rounds_.find(open_);
    for (int shard = 0; shard < shards(); ++shard) {
      if (shards_[shard].until != kForEver) continue;
      if (it == rounds_.end() || it->second.count(shard) == 0) {
        missing.push_back(shard);
      }
    }
    return missing;
  }

 private:
  static constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
  static constexpr int kNobody = -1;

  struct Shard {
    int owner = kNobody;
    bool is_owned = false;  // whether `owner` has given a part
    int retired_with = kNobody;
    int64_t since = 0;  // the rounds that it counts in: [since, until)
    int64_t until = kForEver;
    uint64_t history = 0;  // bit i: round open_ - 1 - i had its part
  };
  struct Given {
    Part part;
    bool is_inherited;  // of an owner that is none any more
  };

  bool IsShard(int shard) const { return shard >= 0 && shard < shards(); }

  bool MayClose() const {
    if (counted() == 0) return false;
    return quorum_.parts == 0 ? Missing().empty() : Needed() == 0;
  }

  // Whether the part of a closed round is known to have counted.
  bool Counted(int shard, int64_t round) const {
    const int64_t back = open_ - 1 - round;
    return back < kRemembered && (shards_[shard].history >> back & 1) != 0;
  }

  Answer GiveLate(int shard, int rank, int64_t round, Part part,
                  bool take_over) {
    if (Counted(shard, round)) return Answer::kApplied;
    if (dead_.count(rank) != 0 || shards_[shard].until != kForEver) {
      return Answer::kUnknown;
    }
    if (!Own(shard, rank, take_over)) return Answer::kNotOwner;
    if (!WouldFold(shard, round)) return Answer::kDropped;
    folded_.emplace(std::make_pair(shard, round), std::move(part));
    shards_[shard].history |= uint64_t{1} << (open_ - 1 - round);
    return Answer::kFolded;
  }

  // Makes `rank` the owner of `shard` if it may be. Returns whether it is.
  bool Own(int shard, int rank, bool take_over) {
    Shard& s = shards_[shard];
    if (s.is_owned && s.owner == rank) return true;
    if (s.is_owned && !take_over) return false;
    if (s.is_owned) Disown(shard);
    s.owner = rank;
    s.is_owned = true;
    return true;
  }

  void Disown(int shard) {
    shards_[shard].owner = kNobody;
    shards_[shard].is_owned = false;
    for (auto it = rounds_.upper_bound(open_); it != rounds_.end(); ++it) {
      it->second.erase(shard);
    }
    const auto open_round = rounds_.find(open_);
    if (open_round == rounds_.end()) return;
    const auto given = open_round->second.find(shard);
    if (given != open_round->second.end()) given->second.is_inherited = true;
  }

  // A part in the open round still goes in.
  void Retire(int shard, int rank) {
    shards_[shard].until = Find(shard, open_) != nullptr ? open_ + 1 : open_;
    shards_[shard].retired_with = rank;
  }

  Orphans orphans_;
  Quorum quorum_;
  int64_t open_;
  std::vector<Shard> shards_;
  std::set<int> dead_;                              // ranks
  std::map<int64_t, std::map<int, Given>> rounds_;  // by round, by shard
  // By shard and its round: in the open round beside that one's own.
  std::map<std::pair<int, int64_t>, Part> folded_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_ROUND_GATE_H_
