// CalledOperations: what each rank of a group has called last, as far as this
// rank knows, so that ranks that call different operations find out.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_CALLED_OPERATIONS_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_CALLED_OPERATIONS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

// Of each rank the last kKept announcements, in the order in which they came.
// Sequences are those on the wire.
//
// Thread-safety: one thread at a time.
class CalledOperations {
 public:
  static constexpr size_t kKept = 64;

  CalledOperations(int rank, int size) : rank_(rank), kept_(size) {}

  // This rank has called it, or refuses it. kFailedPrecondition if another has
  // called another operation under its number: both are named.
  absl::Status AddOwn(Announcement mine);
  // Rank `peer` has. As AddOwn; nothing changes if it is known.
  absl::Status Add(int peer, Announcement theirs);

  // Of this rank; null: not known (any more).
  const Announcement* FindOwn(uint64_t sequence) const {
    return Find(kept_[rank_], sequence);
  }
  const Announcement* Find(int peer, uint64_t sequence) const {
    return Find(kept_[peer], sequence);
  }
  // The last of this rank; null: none yet.
  const Announcement* newest_own() const {
    return kept_[rank_].empty() ? nullptr : &kept_[rank_].back();
  }

  // kAborted: a rank has refused its part of that operation.
  absl::Status CheckRefusals(uint64_t sequence) const;
  // "last called X", for messages.
  std::string Describe(int peer) const;
  // "rank 2 has not called it and last called X; rank 3 ..."; empty: all others
  // have called the operation of that number.
  std::string DescribeRanksBefore(uint64_t sequence) const;

 private:
  using Announcements = std::deque<Announcement>;

  static const Announcement* Find(const Announcements& kept, uint64_t sequence);
  static void Keep(Announcements& kept, Announcement announcement);
  absl::Status Compare(int peer, const Announcement& mine,
                       const Announcement& theirs) const;

  const int rank_;
  std::vector<Announcements> kept_;  // by rank, newest last
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_CALLED_OPERATIONS_H_
