#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/update.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<Update<Adadelta>>(const Call&, void*);
template const char* LaunchOp<Update<Adagrad>>(const Call&, void*);
template const char* LaunchOp<Update<Adam>>(const Call&, void*);
template const char* LaunchOp<Update<AdamW>>(const Call&, void*);
template const char* LaunchOp<Update<Ftrl>>(const Call&, void*);
template const char* LaunchOp<Update<Lamb>>(const Call&, void*);
template const char* LaunchOp<Update<Lion>>(const Call&, void*);
template const char* LaunchOp<Update<Rmsprop>>(const Call&, void*);
template const char* LaunchOp<Update<RowwiseAdagrad>>(const Call&, void*);
template const char* LaunchOp<Update<Sgd>>(const Call&, void*);

}  // namespace weft::internal::cuda
