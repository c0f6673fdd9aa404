#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/losses.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<PairBackward<BceOfLogits>>(const Call&, void*);
template const char* LaunchOp<PairLoss<BceOfLogits>>(const Call&, void*);
template const char* LaunchOp<PairBackward<Huber>>(const Call&, void*);
template const char* LaunchOp<PairLoss<Huber>>(const Call&, void*);
template const char* LaunchOp<PairBackward<KlDivergence>>(const Call&, void*);
template const char* LaunchOp<PairLoss<KlDivergence>>(const Call&, void*);
template const char* LaunchOp<PairBackward<SquaredError>>(const Call&, void*);
template const char* LaunchOp<PairLoss<SquaredError>>(const Call&, void*);
template const char* LaunchOp<NllLoss>(const Call&, void*);
template const char* LaunchOp<NllLossBackward>(const Call&, void*);

}  // namespace weft::internal::cuda
