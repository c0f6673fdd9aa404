#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/norm.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<BatchNorm>(const Call&, void*);
template const char* LaunchOp<BatchNormBackward>(const Call&, void*);
template const char* LaunchOp<BatchNormMoments>(const Call&, void*);
template const char* LaunchOp<RowNorm>(const Call&, void*);
template const char* LaunchOp<RowNormBackward>(const Call&, void*);

}  // namespace weft::internal::cuda
