#include "weft/tensor/cuda/libraries/library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace weft::internal::cuda {

absl::StatusOr<Library> Library::Open(const char* name, const char* user,
                                      const char* owner) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return Library(name, handle);
  return absl::UnimplementedError(absl::StrCat(
      user, " on CUDA need ", name, " of ", owner, ", which was not found: ",
      dlerror(), "; name its folder in LD_LIBRARY_PATH"));
}

absl::StatusOr<void*> Library::FindAddress(const char* function_name) const {
  void* const address = dlsym(handle_, function_name);
  if (address != nullptr) return address;
  return absl::UnimplementedError(absl::StrCat(name_, " has no ", function_name,
                                               "; it is of another version"));
}

}  // namespace weft::internal::cuda
