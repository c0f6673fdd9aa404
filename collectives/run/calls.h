// Calls: of each operation of a ProcessGroup what it is asked, with its
// arguments checked.

#ifndef WEFT_COLLECTIVES_RUN_CALLS_H_
#define WEFT_COLLECTIVES_RUN_CALLS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/call_site.h"
#include "weft/collectives/operation.h"
#include "weft/collectives/reduction.h"
#include "weft/collectives/run/generation.h"
#include "weft/collectives/run/preparation.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// A Call of `verb`: what `fill` returns or throws is why it is refused. Tensors
// on a device are on their way to the host when this returns, where the backend
// does not take them there.
template <typename Fill>
Call Prepare(Generation& group, Verb verb, CallSite site, Fill fill) {
  Call call = {Preparation(verb, group.backend().size(), site), {}, {}};
  absl::Status status = CatchToStatus([&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(fill(call.preparation));
    WEFT_RETURN_IF_ERROR(call.preparation.CheckOverlap());
    return call.preparation.Place(group.backend(), group.staging());
  });
  (call.preparation.has_failed_device() ? call.failure : call.refusal) =
      std::move(status);
  return call;
}

// The operations of all ranks, as process_group.h has them.
Call AllReduceCall(Generation& group, const Tensor& tensor,
                   const Reduction& reduction, CallSite site);
Call AllReduceIntoCall(Generation& group, const Tensor& input,
                       const Tensor& output, const Reduction& reduction,
                       CallSite site);
Call AllReduceCoalescedCall(Generation& group,
                            const std::vector<Tensor>& tensors,
                            const Reduction& reduction, CallSite site);
Call BroadcastCall(Generation& group, const Tensor& tensor, int root,
                   CallSite site);
Call ReduceCall(Generation& group, const Tensor& tensor, int root,
                const Reduction& reduction, CallSite site);
Call AllGatherCall(Generation& group, const Tensor& input, const Tensor& output,
                   CallSite site);
Call AllGatherListCall(Generation& group, const Tensor& input,
                       const std::vector<Tensor>& outputs, CallSite site);
Call GatherCall(Generation& group, const Tensor& input,
                const std::vector<Tensor>& outputs, int root, CallSite site);
Call ScatterCall(Generation& group, const std::vector<Tensor>& inputs,
                 const Tensor& output, int root, CallSite site);
Call ReduceScatterCall(Generation& group, const Tensor& input,
                       const Tensor& output, const Reduction& reduction,
                       CallSite site);
Call ReduceScatterListCall(Generation& group, const std::vector<Tensor>& inputs,
                           const Tensor& output, const Reduction& reduction,
                           CallSite site);
Call AllToAllCall(Generation& group, const Tensor& input, const Tensor& output,
                  CallSite site);
Call AllToAllListCall(Generation& group, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, CallSite site);
Call BarrierCall(Generation& group, CallSite site);

// The same of two. `from` below 0 is no rank.
Generation::Movement SendOf(Generation& group, const Tensor& tensor, int to,
                            uint64_t tag, CallSite site);
Generation::Movement ReceiveOf(Generation& group, const Tensor& tensor,
                               int from, uint64_t tag, CallSite site);
Generation::Movement ReceiveAnyOf(Generation& group, const Tensor& tensor,
                                  uint64_t tag, CallSite site);

// What each rank says in a Split, [size, kNumWishes].
enum Wish { kColor, kKey, kArena, kNumWishes };
Tensor NoWishes(const Generation& group);
const int64_t* WishOf(const Tensor& wishes, int rank);

// Gather the wishes of all ranks in `wishes`, which NoWishes has made.
Call SplitCall(Generation& group, int color, int key,
               const SubgroupOptions& options, const Tensor& wishes,
               CallSite site);
Call SubgroupCall(Generation& group, const std::vector<int>& ranks,
                  const SubgroupOptions& options, const Tensor& wishes,
                  CallSite site);

// OK if `ranks` are different ones of `size`.
absl::Status CheckRanks(std::vector<int> ranks, int size);
// The place of `rank` among `ranks`, or their number if it is none of them.
int PlaceOf(int rank, const std::vector<int>& ranks);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_CALLS_H_
