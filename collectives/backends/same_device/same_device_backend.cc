#include "weft/collectives/backends/same_device/same_device_backend.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_backend.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/same_device/reduce_call.h"
#include "weft/collectives/backends/same_device/same_device_communicator.h"
#include "weft/collectives/backends/same_device/same_device_work.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"

void WeftCollectivesHasSameDevice() {}

namespace weft::collectives {
namespace {

// What each rank tells the others when the group is made: SharedDevice::token.
using Token = std::array<char, 32>;

class SameDeviceMover final : public DeviceMover {
 public:
  explicit SameDeviceMover(SameDeviceOptions options)
      : options_(std::move(options)) {}

  absl::string_view name() const override { return "same_device"; }
  absl::string_view title() const override { return "the shared device"; }
  const std::shared_ptr<device::Context>& context() const override {
    return options_.device->context();
  }
  int device() const override { return options_.device->index(); }
  int64_t host_bytes() const override { return options_.host_bytes; }
  absl::Duration longest_end() const override { return options_.longest_end; }
  bool moves_host_tensors() const override {
    return options_.moves_host_tensors;
  }
  bool Moves(const Operation& operation) const override {
    return IsOfSameDevice(operation.verb);
  }
  // The ranks meet in a room of the group's name, and tell each other over the
  // group of the host which device they share.
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Connect(
      Backend& host, uint64_t& next, device::Stream stream,
      const DeviceWait& wait) override;
  absl::StatusOr<CommunicatorId> MakeId() override {
    return options_.device->MakeId();
  }
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Begin(
      const Begun& options) override;
  std::shared_ptr<DeviceMover> OfSubgroup(const SubgroupSpec& spec,
                                          int rank) const override;

 private:
  std::unique_ptr<DeviceCommunicator> MakeCommunicator(
      std::shared_ptr<SameDeviceRoom> room, device::Stream stream,
      int rank) const {
    return std::make_unique<SameDeviceCommunicator>(context(), std::move(room),
                                                    stream, rank);
  }

  const SameDeviceOptions options_;
};

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> SameDeviceMover::Begin(
    const Begun& options) {
  const absl::string_view name(options.id.bytes, sizeof options.id.bytes);
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<SameDeviceRoom> room,
      options_.device->Enter(name, options.rank, options.size));
  return MakeCommunicator(std::move(room), options.stream, options.rank);
}

// The token of each rank.
absl::StatusOr<std::vector<Token>> TellAll(Backend& host, uint64_t number,
                                           Instant deadline, Token own) {
  std::vector<Token> tokens(host.size());
  const auto block_of = [](Token& token) {
    return Block{reinterpret_cast<std::byte*>(token.data()),
                 static_cast<int64_t>(sizeof(Token))};
  };
  Operation step;
  step.verb = Verb::kAllGather;
  step.dtype = DType::kU8;
  step.sequence = number;
  step.deadline = deadline;
  step.detail = "same_device";
  step.inputs = {block_of(own)};
  for (Token& token : tokens) step.outputs.push_back(block_of(token));
  WEFT_RETURN_IF_ERROR(host.Run(step));
  return tokens;
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> SameDeviceMover::Connect(
    Backend& host, uint64_t& next, device::Stream stream,
    const DeviceWait& wait) {
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<SameDeviceRoom> room,
      options_.device->Enter(options_.name, host.rank(), host.size()));
  Token own = {};
  absl::c_copy(options_.device->token(), own.begin());
  const absl::StatusOr<std::vector<Token>> tokens =
      TellAll(host, next++, wait.deadline, own);
  // A rank that has heard all may break the group before this one has: it is
  // there, to be left by Shrink.
  if (!tokens.ok() && !room->is_complete()) return tokens.status();
  for (int r = 1; tokens.ok() && r < host.size(); ++r) {
    if ((*tokens)[r] == (*tokens)[0]) continue;
    return absl::UnimplementedError(absl::StrCat(
        "rank ", r, " has another SharedDevice than rank 0: it is in another ",
        "process, or was not given the same. Ranks of several processes on one "
        "GPU take the host backend"));
  }
  return MakeCommunicator(std::move(room), stream, host.rank());
}

std::shared_ptr<DeviceMover> SameDeviceMover::OfSubgroup(
    const SubgroupSpec& spec, int /*rank*/) const {
  SameDeviceOptions options = options_;
  // Two groups that a Split makes may have one name.
  options.name = absl::StrCat(SubgroupName(options_.name, spec.name), " of ",
                              absl::StrJoin(spec.members, ","));
  return std::make_shared<SameDeviceMover>(std::move(options));
}

absl::Status Check(const SameDeviceOptions& options, const Backend* host) {
  constexpr char kCall[] = "ConnectSameDevice";
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        kCall, ": no shared device is given (SameDeviceOptions::device)"));
  }
  if (host == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        kCall, ": wants a group of the host of the same ranks, found none"));
  }
  if (host->size() > internal::kMostSharers) {
    return absl::UnimplementedError(
        absl::StrCat(kCall, ": wants at most ", internal::kMostSharers,
                     " ranks on one device, found ", host->size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectSameDevice(
    SameDeviceOptions options, std::unique_ptr<Backend> host) {
  if (const absl::Status checked = Check(options, host.get()); !checked.ok()) {
    if (host != nullptr) host->Abort(checked);
    return checked;
  }
  const Instant deadline =
      host->driver().clock().Now() + options.connect_timeout;
  const std::string call =
      absl::StrCat("ConnectSameDevice, rank ", host->rank(), " of ",
                   host->size(), " of group ", options.name);
  const auto check = options.check_wait;
  return ConnectDeviceBackend(
      call, std::make_shared<SameDeviceMover>(std::move(options)),
      std::move(host), deadline, check);
}

}  // namespace weft::collectives
