// StateHandover: which rank sends which part of the state of a training to the
// ranks that lack it.
//
// One object for each rank of a group, of which some hold the state (they have
// taken the same steps) and others lack all of it or some parts. It goes in
// rounds, and tells the hashes of the parts stretch by stretch: with each round
// the source tells those of the next stretch, and the others which parts they
// lack of those that they know the hashes of. Each computes the same transfers,
// which are compared with the hashes as they come, while the source hashes the
// next stretch. A part that is wrong is not asked again of who has sent it, but
// of the source, then of any other. A round is over for all at the same time: a
// rank that is lost breaks the group, and those that are left make another
// StateHandover, in which who lacks parts tells only those that have not come.
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
//   H6  Who lacks parts has all of them, and all know it, after at most as many
//       rounds as there are stretches and ranks that send wrong parts, and two
//       more, while its group lasts.
// state_handover_simulation_test checks them with up to 32 ranks.
//
// Pure: no lock, clock, thread or network. Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_CORE_STATE_HANDOVER_H_
#define WEFT_TRAIN_CORE_STATE_HANDOVER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

  // Parts [begin, end).
  struct Stretch {
    int begin = 0;
    int end = 0;
  };

  // holds[r]: whether rank r has the state. `source` is one of them, with whose
  // hashes all parts are compared. bytes[p]: of part p. A stretch is as few
  // parts as have `stretch_bytes`.
  StateHandover(std::vector<bool> holds, int source, std::vector<int64_t> bytes,
                int64_t stretch_bytes);

  // Whose hashes the source tells with the next round; empty: all are told.
  Stretch stretch() const { return {told_, next_}; }

  // What the next round moves, in the order of `to`, then of `part`. lacks[r]:
  // in rising order the parts that rank r lacks of the stretches that were told
  // in rounds before. A part that has been sent, and is lacked still, was
  // wrong.
  std::vector<Transfer> NextRound(const std::vector<std::vector<int>>& lacks);
  // After NextRound: all has been told and has come; who lacks parts still
  // cannot get them.
  bool is_over() const { return is_over_; }

  // After NextRound: a part that `rank` lacks, and that each who holds it has
  // sent wrong; none: there is no such part.
  std::optional<int> Unobtainable(int rank) const;
  // The ranks that have sent `part` wrong to `rank`, in rising order.
  std::vector<int> SentWrong(int rank, int part) const;

 private:
  // The rank that is to send `part` to `to`; -1: none is left.
  int ChooseSender(int to, int part, const std::vector<int64_t>& load) const;
  void GoToNextStretch();

  const std::vector<bool> holds_;
  const int source_;
  const std::vector<int64_t> bytes_;
  const int64_t stretch_bytes_;
  int told_ = 0;  // parts whose hashes are told
  int next_ = 0;  // the end of the stretch that is told next
  bool is_over_ = false;
  std::map<std::pair<int, int>, int> sent_;    // to, part: from, the last one
  std::set<std::tuple<int, int, int>> wrong_;  // to, part, from
  std::vector<std::optional<int>> unobtainable_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_CORE_STATE_HANDOVER_H_
