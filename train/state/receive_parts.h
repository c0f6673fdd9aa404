// ReceiveParts: many parts of a state from several ranks of a group.

#ifndef WEFT_TRAIN_STATE_RECEIVE_PARTS_H_
#define WEFT_TRAIN_STATE_RECEIVE_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::train {

struct IncomingPart {
  int part = 0;
  int from = 0;
  uint64_t tag = 0;
  Tensor tensor;  // into which it is received
};

// Receives `parts`, each of whose senders sends them in this order, and calls
// `on_arrival` with those that have come while the next ones are on their way.
// Of each sender it asks for one at a time: a message that comes before it is
// asked for, as several of one sender may in whatever order they are asked,
// lands in other memory first. Once it returns nothing is written any more.
// Errors of ProcessGroup::Receive, each with a deadline of its own.
absl::Status ReceiveParts(
    collectives::ProcessGroup& group, const std::vector<IncomingPart>& parts,
    absl::FunctionRef<void(const std::vector<IncomingPart>& some)> on_arrival);

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_RECEIVE_PARTS_H_
