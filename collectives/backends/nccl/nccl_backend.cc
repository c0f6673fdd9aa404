#include "weft/collectives/backends/nccl/nccl_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_backend.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/nccl/nccl_communicator.h"
#include "weft/collectives/backends/nccl/nccl_launch.h"
#include "weft/collectives/backends/nccl/nccl_meeting.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"

void WeftCollectivesHasNccl() {}

namespace weft::collectives {
namespace {

class NcclMover final : public DeviceMover {
 public:
  explicit NcclMover(NcclOptions options) : options_(std::move(options)) {}

  absl::string_view name() const override { return "nccl"; }
  absl::string_view title() const override { return "NCCL"; }
  const std::shared_ptr<device::Context>& context() const override {
    return options_.context;
  }
  int device() const override { return options_.device; }
  int64_t host_bytes() const override { return options_.host_bytes; }
  bool moves_host_tensors() const override {
    return options_.moves_host_tensors;
  }
  bool Moves(const Operation& operation) const override {
    return IsOfNccl(operation);
  }
  // The ranks meet in the store.
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Connect(
      Backend& host, uint64_t& next, device::Stream stream,
      const DeviceWait& wait) override;
  absl::StatusOr<CommunicatorId> MakeId() override {
    CommunicatorId id;
    const NcclFunctions& f = *options_.functions;
    WEFT_RETURN_IF_ERROR(
        NcclStatus(f, f.GetUniqueId(&id), "ncclGetUniqueId", nullptr));
    return id;
  }
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Begin(
      const Begun& options) override {
    return NcclCommunicator::Begin(OptionsOf(options));
  }
  std::shared_ptr<DeviceMover> OfSubgroup(const SubgroupSpec& spec,
                                          int rank) const override;

 private:
  NcclCommunicator::Options OptionsOf(const Begun& begun) const {
    return {options_.functions, options_.context, begun.stream,
            begun.id,           begun.rank,       begun.size};
  }

  const NcclOptions options_;
};

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> NcclMover::Connect(
    Backend& host, uint64_t& /*next*/, device::Stream stream,
    const DeviceWait& wait) {
  Begun made;
  WEFT_ASSIGN_OR_RETURN(made.id, MeetForNccl(options_, *options_.functions,
                                             wait.deadline, wait.check));
  made.stream = stream;
  made.rank = host.rank();
  made.size = host.size();
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> communicator =
      NcclCommunicator::Create(OptionsOf(made), wait);
  EndNcclMeeting(options_);
  return communicator;
}

std::shared_ptr<DeviceMover> NcclMover::OfSubgroup(const SubgroupSpec& spec,
                                                   int rank) const {
  NcclOptions options = options_;
  options.name = SubgroupName(options_.name, spec.name);
  options.size = static_cast<int>(spec.members.size());
  options.rank = spec.PlaceOf(rank);
  return std::make_shared<NcclMover>(std::move(options));
}

absl::Status CheckOptions(const NcclOptions& options, const Backend* host) {
  WEFT_RETURN_IF_ERROR(CheckEndpoint(options, "ConnectNccl"));
  if (host == nullptr || host->rank() != options.rank ||
      host->size() != options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ConnectNccl: wants a group of the host of the same ranks, rank ",
        options.rank, " of ", options.size, ", found ",
        host == nullptr
            ? "none"
            : absl::StrCat("rank ", host->rank(), " of ", host->size())));
  }
  if (options.context == nullptr) {
    return absl::InvalidArgumentError(
        "ConnectNccl: no devices are given (NcclOptions::context)");
  }
  const int count = options.context->device_count();
  if (options.device < 0 || options.device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConnectNccl: wants a device from 0 to ", count - 1,
                     ", found ", options.device));
  }
  return absl::OkStatus();
}

// Finds the library where no functions are given.
absl::Status FindFunctions(NcclOptions& options) {
  if (options.functions != nullptr) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(NcclFunctions functions, LoadNccl());
  options.functions =
      std::make_shared<const NcclFunctions>(std::move(functions));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectNccl(
    NcclOptions options, std::unique_ptr<Backend> host) {
  absl::Status checked = CheckOptions(options, host.get());
  if (checked.ok()) checked = FindFunctions(options);
  if (!checked.ok()) {
    if (host != nullptr) host->Abort(checked);
    return checked;
  }
  const Instant deadline =
      host->driver().clock().Now() + options.connect_timeout;
  const std::string call =
      absl::StrCat("ConnectNccl, rank ", options.rank, " of ", options.size,
                   " of group ", options.name);
  const auto check = options.check_wait;
  return ConnectDeviceBackend(call,
                              std::make_shared<NcclMover>(std::move(options)),
                              std::move(host), deadline, check);
}

}  // namespace weft::collectives
