// CurrentCudaDevice: which device of CUDA is current on this thread, in a
// scope.

#ifndef WEFT_DEVICE_CUDA_CURRENT_DEVICE_H_
#define WEFT_DEVICE_CUDA_CURRENT_DEVICE_H_

#include <cuda_runtime_api.h>

namespace weft::device {

// Makes a device current, and what was current again at its end: other
// libraries on this thread have their own. Both are a load where it is the
// same.
class CurrentCudaDevice {
 public:
  explicit CurrentCudaDevice(int index) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != index) {
      error_ = cudaSetDevice(index);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~CurrentCudaDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentCudaDevice(const CurrentCudaDevice&) = delete;
  CurrentCudaDevice& operator=(const CurrentCudaDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_CUDA_CURRENT_DEVICE_H_
