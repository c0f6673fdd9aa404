// CompressionHook: reduces a bucket in another, shorter dtype.

#ifndef WEFT_DDP_HOOKS_COMPRESSION_H_
#define WEFT_DDP_HOOKS_COMPRESSION_H_

#include <map>

#include "weft/ddp/hooks/communication_hook.h"
#include "weft/tensor/dtype.h"

namespace weft::ddp {

// Casts the bucket to `dtype`, reduces that and casts the result back. The
// group adds up in f32, so that each element is rounded twice, however many
// ranks there are. A bucket whose elements are no longer than those of `dtype`
// is reduced as it is.
class CompressionHook : public CommunicationHook {
 public:
  explicit CompressionHook(DType dtype) : dtype_(dtype) {}
  Future<void> Reduce(collectives::ProcessGroup& group,
                      const GradientBucket& bucket) override;

 private:
  const DType dtype_;
  // By bucket: what is sent, in the group's memory where there is room.
  std::map<int, Tensor> compressed_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_HOOKS_COMPRESSION_H_
