#include "weft/collectives/backends/nccl/nccl_functions.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

constexpr int kLeastVersion = 21800;

constexpr char kInstall[] =
    "install NVIDIA's package libnccl2 of version 2.18 or later for the CUDA "
    "version of the driver, or name the folder that has it (beside the CUDA "
    "toolkit, or nvidia/nccl/lib of Python's packages) in LD_LIBRARY_PATH";

absl::string_view Name(nccl::Result result) {
  switch (result) {
    case nccl::Result::kSuccess:
      return "success";
    case nccl::Result::kUnhandledCudaError:
      return "unhandled CUDA error";
    case nccl::Result::kSystemError:
      return "system error";
    case nccl::Result::kInternalError:
      return "internal error";
    case nccl::Result::kInvalidArgument:
      return "invalid argument";
    case nccl::Result::kInvalidUsage:
      return "invalid usage";
    case nccl::Result::kRemoteError:
      return "remote error";
    case nccl::Result::kInProgress:
      return "in progress";
  }
  return "unknown result";
}

absl::StatusCode CodeOf(nccl::Result result) {
  switch (result) {
    case nccl::Result::kSystemError:
    case nccl::Result::kRemoteError:
      return absl::StatusCode::kUnavailable;
    case nccl::Result::kInvalidArgument:
    case nccl::Result::kInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

template <typename Return, typename... Args>
void Take(void* address, std::function<Return(Args...)>& function) {
  function = reinterpret_cast<Return (*)(Args...)>(address);
}

}  // namespace

absl::StatusOr<NcclFunctions> LoadNccl(const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("NCCL was not found: ", dlerror(), "; ", kInstall));
  }
  NcclFunctions functions;
  std::string missing;
  ForEachNcclFunction(functions, [&](const char* name, auto& function) {
    void* const address = dlsym(library, name);
    if (address == nullptr) {
      absl::StrAppend(&missing, " ", name);
      return;
    }
    Take(address, function);
  });
  if (!missing.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(file, " has no", missing, "; ", kInstall));
  }
  int version = 0;
  WEFT_RETURN_IF_ERROR(NcclStatus(functions, functions.GetVersion(&version),
                                  "ncclGetVersion", nullptr));
  if (version < kLeastVersion) {
    return absl::UnimplementedError(
        absl::StrCat(file, " is of version code ", version,
                     ", wanted at least ", kLeastVersion, "; ", kInstall));
  }
  return functions;
}

absl::Status NcclStatus(const NcclFunctions& functions, nccl::Result result,
                        absl::string_view name, nccl::Comm comm) {
  if (result == nccl::Result::kSuccess) return absl::OkStatus();
  const char* const last = functions.GetLastError(comm);
  return absl::Status(
      CodeOf(result),
      absl::StrCat(name, ": ", Name(result), " (", static_cast<int>(result),
                   ")", last == nullptr || *last == '\0' ? "" : ": ",
                   last == nullptr ? "" : last));
}

}  // namespace weft::collectives
