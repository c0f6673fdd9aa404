#include "weft/tensor/cuda/copy.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

const char* LaunchFill(const Call& call, void* stream) {
  OnStream executor(stream);
  return Fill(call, executor);
}

const char* LaunchCopy(const Call& call, void* stream) {
  OnStream executor(stream);
  return Copy(call, executor);
}

const char* LaunchWhere(const Call& call, void* stream) {
  OnStream executor(stream);
  return Where(call, executor);
}

}  // namespace weft::internal::cuda
