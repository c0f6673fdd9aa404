// Library: a library of CUDA that is loaded when it is first needed.

#ifndef WEFT_TENSOR_CUDA_LIBRARIES_LIBRARY_H_
#define WEFT_TENSOR_CUDA_LIBRARIES_LIBRARY_H_

#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::internal::cuda {

// Thread-safety: a value. The library stays loaded.
class Library {
 public:
  // `name` is a constant such as "libcublasLt.so.13", `user` what needs it,
  // `owner` what it is a part of. kUnimplemented if it is not found.
  static absl::StatusOr<Library> Open(const char* name, const char* user,
                                      const char* owner);

  // kUnimplemented if the library has no such function.
  template <typename Function>
  absl::Status Find(const char* function_name, Function* function) const {
    static_assert(std::is_pointer_v<Function>);
    const absl::StatusOr<void*> found = FindAddress(function_name);
    if (!found.ok()) return found.status();
    *function = reinterpret_cast<Function>(*found);
    return absl::OkStatus();
  }

 private:
  Library(const char* name, void* handle) : name_(name), handle_(handle) {}
  absl::StatusOr<void*> FindAddress(const char* function_name) const;

  const char* name_;
  void* handle_;
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LIBRARIES_LIBRARY_H_
