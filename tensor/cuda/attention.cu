#include "weft/tensor/cuda/attention.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<AttentionWeights>(const Call&, void*);
template const char* LaunchOp<AttentionWeightsBackward>(const Call&, void*);

}  // namespace weft::internal::cuda
