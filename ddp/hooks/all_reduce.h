// AllReduceHook: reduces a bucket as it is. The reducer's default.

#ifndef WEFT_DDP_HOOKS_ALL_REDUCE_H_
#define WEFT_DDP_HOOKS_ALL_REDUCE_H_

#include <string>

#include "weft/ddp/hooks/communication_hook.h"

namespace weft::ddp {

class AllReduceHook final : public CommunicationHook {
 public:
  std::string name() const override { return "all-reduce"; }
  Future<void> Reduce(collectives::ProcessGroup& group,
                      const GradientBucket& bucket) override;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_HOOKS_ALL_REDUCE_H_
