// CommunicationHook: how the reducer reduces one bucket of gradients.
//
// The default is an all-reduce of the bucket as it is (all_reduce.h); others
// send less (f16_compression.h, bf16_compression.h). A hook of your own may do
// whatever leaves the same bits in the bucket on all ranks.

#ifndef WEFT_DDP_HOOKS_COMMUNICATION_HOOK_H_
#define WEFT_DDP_HOOKS_COMMUNICATION_HOOK_H_

#include <string>
#include <vector>

#include "weft/base/future.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/reduction.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

// A bucket that is ready on this rank.
struct GradientBucket {
  int index = 0;  // from 0; the same on all ranks
  bool is_last = false;
  // [elements] of one floating dtype: the gradients and the gaps between them,
  // in the group's own memory, or on a device. To be replaced by the reduction.
  Tensor buffer;
  std::vector<int> parameters;    // their numbers in the reducer
  std::vector<Tensor> gradients;  // views into `buffer`, of their shapes
  // What all ranks' buffers become: the average, or the sum of each rank's
  // times its own factor (which the reducer divides by the sum of the factors).
  collectives::Reduction reduction;
  // Deadline and label of the bucket's operation. A hook with several
  // operations uses them for each.
  collectives::CallOptions call;
};

// Thread-safety: one reducer uses it, on one thread; what it runs when its
// operations end runs on a thread of the group's, with the stream current for
// the bucket's device that was current in Reduce.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Tells hooks apart: all ranks of a reducer must have one of the same name.
  // Options that must be equal are part of it.
  virtual std::string name() const = 0;

  // Starts the reduction; the Future is ready once `bucket.buffer` holds it,
  // the same bits on all ranks. It must become so within twice the timeout of
  // `bucket.call`, else the step fails. Called on all ranks for the same
  // buckets in the same order; it calls the same operations of `group` in the
  // same order on each. Must not wait for them.
  virtual Future<void> Reduce(collectives::ProcessGroup& group,
                              const GradientBucket& bucket) = 0;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_HOOKS_COMMUNICATION_HOOK_H_
