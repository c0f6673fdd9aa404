// CalledOperations: what the ranks of a group have called, as far as it is
// known, so that ranks that call different operations find out.

#ifndef WEFT_COLLECTIVES_CORE_CALLED_OPERATIONS_H_
#define WEFT_COLLECTIVES_CORE_CALLED_OPERATIONS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

// An operation is kept, and compared with each announcement of its number,
// until all ranks have gone on to a later one: however far a rank is behind,
// what it calls is compared. So is a refusal.
//
// Thread-safety: one thread at a time.
class CalledOperations {
 public:
  // No rank keeps it for itself: all announce what they call in one place.
  static constexpr int kAll = -1;
  // Bytes of operations that another rank has announced and `self` has not
  // called. An honest rank cannot be that far ahead: what it may have under way
  // is bounded.
  static constexpr int64_t kMostAheadBytes = 32 << 20;
  // The number of operations that `self` has called and another rank has not,
  // as far as is known; beyond that the oldest are forgotten. Only a rank that
  // hides what it calls is that far behind.
  static constexpr size_t kMostBehind = 1 << 18;

  // `self`: the rank that keeps it, or kAll.
  explicit CalledOperations(int size, int self = kAll);

  // `rank` has called it, or refuses it. What one rank calls comes in rising
  // order of its numbers; the same may come again.
  //   kFailedPrecondition  another rank has called another operation under that
  //                        number: both are named
  //   kResourceExhausted   kMostAheadBytes: it is not kept
  absl::Status Add(int rank, Announcement announcement);
  // Nothing more comes from `rank`.
  void End(int rank);

  // What `rank` called, or refused, last; null: nothing yet.
  const Announcement* Last(int rank) const;
  // kAborted: a rank has refused its part of that operation.
  absl::Status CheckRefusals(uint64_t sequence) const;
  // "last called X", for messages.
  std::string Describe(int rank) const;
  // "rank 2 has not called it and last called X; rank 3 ..."; empty: all but
  // perhaps `asking` have called the operation of that number. With `names` of
  // all ranks: "rank 2 (trainer2) has not ...".
  std::string DescribeRanksBefore(
      uint64_t sequence, int asking,
      const std::vector<std::string>& names = {}) const;

  size_t kept() const { return calls_.size(); }
  // See GroupCore::Snapshot.
  std::string Snapshot() const;

 private:
  static constexpr int kNobody = -1;

  struct Call {
    uint64_t sequence = 0;
    uint64_t fingerprint = 0;
    int caller = kNobody;  // the first
    std::string text;
    int refuser = kNobody;  // the first
    std::string why;
    int ahead = kNobody;  // the rank on whose account it is kept, if it counts
  };
  struct Rank {
    Announcement last;
    bool has_called = false;
    bool has_ended = false;
    int64_t ahead_bytes = 0;
  };

  // Where it is, or belongs, in calls_.
  size_t PlaceOf(uint64_t sequence) const;
  bool IsAt(size_t place, uint64_t sequence) const {
    return place < calls_.size() && calls_[place].sequence == sequence;
  }
  // Keeps it with what is known of the operation, and compares.
  absl::Status Keep(Call& call, int rank, const Announcement& announcement);
  static int64_t BytesOf(const Call& call);
  // Takes it off the account of the rank that was ahead.
  void Settle(Call& call);
  void ForgetPassed();

  const int self_;
  std::vector<Rank> ranks_;
  std::deque<Call> calls_;         // in rising order
  uint64_t forgotten_before_ = 0;  // numbers below are kept no more
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CORE_CALLED_OPERATIONS_H_
