#include "weft/ddp/hooks/all_reduce.h"

namespace weft::ddp {

Future<void> AllReduceHook::Reduce(collectives::ProcessGroup& group,
                                   const GradientBucket& bucket) {
  return group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call);
}

}  // namespace weft::ddp
