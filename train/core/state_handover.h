// StateHandover: which rank sends which part of the state of a training to the
// ranks that lack it.
//
// One object for each rank of a group, of which some hold the state (they have
// taken the same steps) and others lack all of it or some parts. It goes in
// rounds: all tell which parts they lack, each computes the same transfers, and
// those who lack parts compare what has come with the hashes of the source. A
// part that is wrong is not asked again of who has sent it, but of the source,
// then of any other. A round is over for all at the same time: a rank that is
// lost breaks the group, and those that are left make another StateHandover, in
// which who lacks parts tells only those that have not come.
//
// What holds, whichever ranks die and whatever they send:
//   H1  All ranks of a group compute the same transfers.
//   H2  Only who holds the state sends, only what is lacked, to who lacks it,
//       and each part once in a round.
//   H3  Nobody is asked twice for a part that it has sent wrong.
//   H4  A round asks for every part that is lacked, but for one of which nobody
//       is left who has not sent it wrong (Unobtainable).
//   H5  What one rank sends in a round is at most the mean of those that may be
//       asked and one part more, where no part has been wrong yet.
//   H6  Who lacks parts has all of them after at most as many rounds as there
//       are ranks that send wrong parts, and two more, while its group lasts.
// state_handover_simulation_test checks them with up to 32 ranks.
//
// Pure: no lock, clock, thread or network. Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_CORE_STATE_HANDOVER_H_
#define WEFT_TRAIN_CORE_STATE_HANDOVER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::train {

class StateHandover {
 public:
  struct Transfer {
    int from = 0;
    int to = 0;
    int part = 0;

    friend bool operator==(const Transfer& a, const Transfer& b) {
      return a.from == b.from && a.to == b.to && a.part == b.part;
    }
  };

  // holds[r]: whether rank r has the state. `source` is one of them, with whose
  // hashes all parts are compared. bytes[p]: of part p.
  StateHandover(std::vector<bool> holds, int source,
                std::vector<int64_t> bytes);

  // What the next round moves, in the order of `to`, then of `part`. lacks[r]:
  // the parts that rank r lacks, in rising order; none: it lacks none. A part
  // that has been sent in the round before, and is lacked still, was wrong.
  // Empty: the hand-over is over.
  std::vector<Transfer> NextRound(const std::vector<std::vector<int>>& lacks);

  // After NextRound: a part that `rank` lacks, and that each who holds it has
  // sent wrong; none: there is no such part.
  std::optional<int> Unobtainable(int rank) const;
  // The ranks that have sent `part` wrong to `rank`, in rising order.
  std::vector<int> SentWrong(int rank, int part) const;

 private:
  // The rank that is to send `part` to `to`; -1: none is left.
  int ChooseSender(int to, int part, const std::vector<int64_t>& load) const;

  const std::vector<bool> holds_;
  const int source_;
  const std::vector<int64_t> bytes_;
  std::vector<Transfer> round_;                // the last one
  std::set<std::tuple<int, int, int>> wrong_;  // to, part, from
  std::vector<std::optional<int>> unobtainable_;
};

// "0-3,7": rising numbers as ranges; "" for none.
std::string FormatParts(const std::vector<int>& parts);
// kInvalidArgument: it is no text of FormatParts, or names a part that is not
// one of `parts`.
absl::StatusOr<std::vector<int>> ParseParts(absl::string_view text, int parts);

}  // namespace weft::train

#endif  // WEFT_TRAIN_CORE_STATE_HANDOVER_H_
