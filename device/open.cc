#include "weft/device/open.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/device/cuda/runtime.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device {
namespace {

constexpr char kAuto[] = "auto";
constexpr int64_t kSimulatedBytes = int64_t{1} << 30;
constexpr int kMostSimulated = 64;

absl::StatusOr<std::unique_ptr<Runtime>> CreateSimulated(int devices) {
  if (devices > kMostSimulated) {
    return absl::InvalidArgumentError(
        absl::StrCat("simulated:", devices - 1,
                     ": wanted at most simulated:", kMostSimulated - 1));
  }
  SimulatedRuntime::Options options;
  options.devices = devices;
  options.memory_bytes = kSimulatedBytes;
  return SimulatedRuntime::Create(options);
}

absl::StatusOr<OpenedDevice> OpenIn(std::unique_ptr<Runtime> runtime,
                                    absl::string_view text, Device wanted,
                                    int local_rank) {
  OpenedDevice opened;
  WEFT_ASSIGN_OR_RETURN(opened.context,
                        Context::Create(std::move(runtime), {}));
  const int count = opened.context->device_count();
  const bool is_numbered = absl::StrContains(text, ':');
  opened.index = is_numbered ? wanted.index : local_rank % count;
  if (opened.index < count) return opened;
  return absl::InvalidArgumentError(absl::StrCat(
      "device ", text, ": this process sees ", count, ", of which the last is ",
      Name(opened.context->device(count - 1))));
}

absl::StatusOr<OpenedDevice> OpenCuda(absl::string_view text, Device wanted,
                                      int local_rank) {
  WEFT_ASSIGN_OR_RETURN(auto runtime, CreateCudaRuntime());
  return OpenIn(std::move(runtime), text, wanted, local_rank);
}

}  // namespace

absl::Status CheckDeviceText(absl::string_view text) {
  if (text == kAuto) return absl::OkStatus();
  if (ParseDevice(text).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", text,
                   "\": wanted cpu, cuda, cuda:N, simulated, simulated:N or "
                   "auto"));
}

absl::StatusOr<OpenedDevice> OpenDevice(absl::string_view text,
                                        int local_rank) {
  WEFT_RETURN_IF_ERROR(CheckDeviceText(text));
  if (local_rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", text, ": the local rank is ", local_rank,
                     "; wanted 0 or more"));
  }
  if (text == kAuto) {
    auto cuda = OpenCuda("cuda", Device::Cuda(0), local_rank);
    const bool is_absent = absl::IsUnimplemented(cuda.status()) ||
                           absl::IsUnavailable(cuda.status());
    return is_absent ? OpenedDevice() : std::move(cuda);
  }
  WEFT_ASSIGN_OR_RETURN(const Device wanted, ParseDevice(text));
  switch (wanted.kind) {
    case Device::Kind::kCpu:
      return OpenedDevice();
    case Device::Kind::kCuda:
      return OpenCuda(text, wanted, local_rank);
    case Device::Kind::kSimulated:
      break;
  }
  WEFT_ASSIGN_OR_RETURN(auto runtime, CreateSimulated(wanted.index + 1));
  return OpenIn(std::move(runtime), text, wanted, local_rank);
}

}  // namespace weft::device
