// FirstCopy: what ranks that train give to newcomers while they go on training:
// the state as of some step. When the newcomers are taken in, the others stop
// only for what has changed since (core/state_handover.h).
//
// It is the first operation of each group that is made, and each of its ranks
// calls Run once: on the thread that has made the group, while others train.
// The parts of the state are shared out over the ranks that train, each of
// which copies its own when the group is begun. What does not arrive, and what
// is wrong, is found by its hash and sent later: nothing here is an error.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_STATE_FIRST_COPY_H_
#define WEFT_TRAIN_STATE_FIRST_COPY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"
#include "weft/train/state_parts.h"

namespace weft::train {

class FirstCopy {
 public:
  // What a rank tells the others of its group.
  struct Told {
    enum Kind : int64_t { kNothing, kGives, kTakes };
    int64_t kind = kNothing;
    int64_t share = 0,
            shares = 1;       // of kGives: it has parts share + n * shares
    int64_t steps = 0;        // of kGives: the state is as of
    int64_t fingerprint = 0;  // of model, optimizer and settings
    int64_t parts = 0;
  };
  struct Transfer {
    int from = 0;
    int to = 0;
    int part = 0;
  };

  // Neither gives nor takes.
  FirstCopy() = default;
  // Copies its share of `parts` as they are now.
  static FirstCopy OfGiver(const StateParts& parts, int share, int shares,
                           int64_t steps, uint64_t fingerprint);
  // Run receives into `parts`, which must outlive it.
  static FirstCopy OfTaker(const StateParts& parts, uint64_t fingerprint);

  // Returns whether parts of others may have come. Calls `before_taking` before
  // it receives the first one, if any.
  bool Run(
      collectives::ProcessGroup& group,
      absl::FunctionRef<void()> before_taking = [] {});

  // Who sends what, the same on all ranks: a taker gets all that those have who
  // give the same state as the first of them, of the same model. Pure; what
  // others have told may be anything.
  static std::vector<Transfer> Plan(const std::vector<Told>& told);

 private:
  Told own_;
  std::map<int, Tensor> given_;  // by part
  const StateParts* taken_ = nullptr;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_FIRST_COPY_H_
