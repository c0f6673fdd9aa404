#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/update.h"

namespace weft::internal::cuda {

const char* LaunchSgd(const Call& call, void* stream) {
  OnStream executor(stream);
  return Sgd(call, executor);
}

const char* LaunchAdam(const Call& call, void* stream) {
  OnStream executor(stream);
  return Adam<false>(call, executor);
}

const char* LaunchAdamW(const Call& call, void* stream) {
  OnStream executor(stream);
  return Adam<true>(call, executor);
}

}  // namespace weft::internal::cuda
