// FirstCopy: what ranks that train give to newcomers while they go on training:
// the state as of some steps. When the newcomers are taken in, the others stop
// only for what has changed since (core/state_handover.h).
//
// It is the first operation of each group that is made, and each of its ranks
// calls Run once: on the thread that has made the group, while others train.
// The parts of the state are shared out over the ranks that train, each of
// which copies its own meanwhile (GivenShare). What does not arrive, and what
// is wrong, is found by its hash and sent later: nothing here is an error. No
// rank is through before all are: who trains waits for nobody once it goes over
// to the group.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_STATE_FIRST_COPY_H_
#define WEFT_TRAIN_STATE_FIRST_COPY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"
#include "weft/train/state/given_share.h"
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
    int64_t steps = 0;        // of kGives: after which it began to copy
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
  // Run waits until `given` is whole; where it was stopped, this rank gives
  // nothing.
  static FirstCopy OfGiver(std::shared_ptr<GivenShare> given, int64_t steps,
                           uint64_t fingerprint);
  // Run receives into `parts`, which must outlive it.
  static FirstCopy OfTaker(const StateParts& parts, uint64_t fingerprint);

  // Calls `before_taking` before it receives the first part of others, if any,
  // and `after_taking` once they are in place, or as many as have come. The
  // other ranks wait for that.
  void Run(
      collectives::ProcessGroup& group,
      absl::FunctionRef<void()> before_taking = [] {},
      absl::FunctionRef<void()> after_taking = [] {});

  // Who sends what, the same on all ranks: a taker gets all that those have who
  // began with the first of them, with the same model. Pure; what
  // others have told may be anything.
  static std::vector<Transfer> Plan(const std::vector<Told>& told);

 private:
  void Move(collectives::ProcessGroup& group,
            const std::vector<Transfer>& transfers,
            absl::FunctionRef<void()> before_taking,
            absl::FunctionRef<void()> after_taking);

  Told own_;
  std::shared_ptr<GivenShare> share_;
  std::map<int, Tensor> given_;  // by part
  const StateParts* taken_ = nullptr;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_FIRST_COPY_H_
