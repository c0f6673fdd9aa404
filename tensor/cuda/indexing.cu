#include "weft/tensor/cuda/bags.h"
#include "weft/tensor/cuda/indexing.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<AddRows>(const Call&, void*);
template const char* LaunchOp<EmbeddingBag>(const Call&, void*);
template const char* LaunchOp<EmbeddingBagBackward>(const Call&, void*);
template const char* LaunchOp<EmbeddingBagBackwardScales>(const Call&, void*);
template const char* LaunchOp<Gather>(const Call&, void*);
template const char* LaunchOp<IndexAdd>(const Call&, void*);
template const char* LaunchOp<IndexSelect>(const Call&, void*);
template const char* LaunchOp<OneHot>(const Call&, void*);
template const char* LaunchOp<ScatterAdd>(const Call&, void*);
template const char* LaunchOp<Tril>(const Call&, void*);
template const char* LaunchOp<Triu>(const Call&, void*);

}  // namespace weft::internal::cuda
