#include "weft/rpc/codec/device_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {
namespace {

constexpr absl::string_view kUrl = "weft.rpc.v1/of_devices";

absl::Status Wrong(absl::string_view what) {
  return OfDevices(absl::InvalidArgumentError(what));
}

absl::Status WrongOption(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("DeviceOptions: ", what));
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceTensors>> DeviceTensors::Create(
    std::string self, DeviceOptions options) {
  std::shared_ptr<DeviceTensors> made(
      new DeviceTensors(std::move(self), std::move(options)));
  WEFT_RETURN_IF_ERROR(made->Check());
  for (const Device& own : made->options_.devices) {
    made->keeps_.push_back(own.context()->shared_from_this());
  }
  return made;
}

absl::Status DeviceTensors::Check() const {
  const std::vector<Device>& own = options_.devices;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].is_cpu()) {
      return WrongOption("devices: wanted no cpu, which needs no mention");
    }
    for (size_t j = 0; j < i; ++j) {
      if (own[i].id() != own[j].id()) continue;
      return WrongOption(
          absl::StrCat("devices: ", Name(own[i]),
                       own[i] == own[j] ? " twice" : " of two contexts"));
    }
  }
  for (const auto& [worker, map] : options_.device_maps) {
    const std::string where = absl::StrCat("device_maps[\"", worker, "\"]: ");
    for (size_t i = 0; i < map.size(); ++i) {
      if (std::find(own.begin(), own.end(), map[i].from) == own.end()) {
        return WrongOption(
            absl::StrCat(where, "maps ", Name(map[i].from),
                         ", which is not among devices: ", OwnDevices()));
      }
      for (size_t j = 0; j < i; ++j) {
        if (map[i].from == map[j].from) {
          return WrongOption(
              absl::StrCat(where, "maps ", Name(map[i].from), " twice"));
        }
        if (map[i].to == map[j].to && !map[i].to.is_cpu()) {
          return WrongOption(absl::StrCat(where, "maps ", Name(map[j].from),
                                          " and ", Name(map[i].from), " to ",
                                          Name(map[i].to),
                                          ": results from there could not come "
                                          "back"));
        }
      }
    }
  }
  return absl::OkStatus();
}

std::string DeviceTensors::OwnDevices() const {
  if (options_.devices.empty()) return "none";
  return absl::StrJoin(options_.devices, ", ",
                       [](std::string* out, const Device& device) {
                         absl::StrAppend(out, Name(device));
                       });
}

const DeviceMap* DeviceTensors::MapFor(const CodecContext& context) const {
  const auto it = options_.device_maps.find(std::string(context.peer_name));
  return it == options_.device_maps.end() ? nullptr : &it->second;
}

absl::StatusOr<device::Device> DeviceTensors::LandsOn(
    const Tensor& tensor, const CodecContext& context) const {
  const Device from = tensor.device();
  const std::vector<Device>& own = options_.devices;
  if (std::find(own.begin(), own.end(), from) == own.end()) {
    return Wrong(
        absl::StrCat(tensor.Describe(), " lies on a device that ", self_,
                     " has not for calls; it has ", OwnDevices(),
                     ": set DeviceOptions::devices of Agent::SetDevices at ",
                     self_, ", or send To(Device::Cpu())"));
  }
  if (context.message == CodecContext::Message::kReply) return from.id();
  const DeviceMap* const map = MapFor(context);
  if (map == nullptr && context.peer_name == self_) return from.id();
  for (const DeviceMapping& mapping : map == nullptr ? DeviceMap() : *map) {
    if (mapping.from == from) return mapping.to;
  }
  return Wrong(absl::StrCat(tensor.Describe(), " has no place at ",
                            context.peer_name, ": ", Name(from), " of ", self_,
                            " is mapped to no device there: set "
                            "DeviceOptions::device_maps[\"",
                            context.peer_name, "\"] of Agent::SetDevices at ",
                            self_, ", or send To(Device::Cpu())"));
}

absl::StatusOr<Device> DeviceTensors::ArrivesOn(
    device::Device named, const CodecContext& context) const {
  const DeviceMap* const map = context.message == CodecContext::Message::kReply
                                   ? MapFor(context)
                                   : nullptr;
  const bool is_own_name = context.message == CodecContext::Message::kRequest ||
                           (map == nullptr && context.peer_name == self_);
  if (is_own_name) {
    for (const Device& own : options_.devices) {
      if (own.id() == named) return own;
    }
    return Wrong(absl::StrCat(
        context.peer_name, " maps it to ", Name(named),
        ", which is no device of ", self_, " for calls; it has ", OwnDevices(),
        ": set DeviceOptions::devices of Agent::SetDevices at ", self_,
        ", or device_maps[\"", self_, "\"] at ", context.peer_name));
  }
  for (const DeviceMapping& mapping : map == nullptr ? DeviceMap() : *map) {
    if (mapping.to == named) return mapping.from;
  }
  return Wrong(absl::StrCat(
      "it comes from ", Name(named), " of ", context.peer_name,
      ", to which no device of ", self_,
      " is mapped: set DeviceOptions::device_maps[\"", context.peer_name,
      "\"] of Agent::SetDevices at ", self_, ", or return To(Device::Cpu())"));
}

absl::StatusOr<std::unique_ptr<StagedCall>> DeviceTensors::Read(
    const Tensor& tensor) {
  auto staged = StagedCall::Begin(staging_, {{tensor, true, false}});
  if (!staged.ok()) return OfDevices(staged.status());
  const absl::Status held = (*staged)->HoldCaller();
  if (!held.ok()) return OfDevices(held);
  return staged;
}

absl::StatusOr<std::unique_ptr<StagedCall>> DeviceTensors::Write(
    const Tensor& tensor) {
  auto staged = StagedCall::Begin(staging_, {{tensor, false, true}});
  if (!staged.ok()) return OfDevices(staged.status());
  return staged;
}

std::unique_ptr<const DeviceStreams> DeviceTensors::CurrentStreams() {
  auto current = std::make_unique<DeviceStreams>();
  current->devices = shared_from_this();
  for (const Device& own : options_.devices) {
    const auto stream = own.context()->CurrentStream(own.index());
    if (stream.ok()) current->streams.push_back(*stream);
  }
  return current;
}

absl::Status AwaitCopies(const std::vector<StagedCall*>& copies,
                         absl::Duration timeout) {
  // A wait that nothing ends would keep its thread.
  constexpr absl::Duration kLongest = absl::Minutes(10);
  const absl::Time deadline = absl::Now() + std::min(timeout, kLongest);
  for (StagedCall* const copy : copies) {
    const absl::Status done = copy->AwaitInputs(
        std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (!done.ok()) return OfDevices(done);
  }
  return absl::OkStatus();
}

absl::Status OfDevices(const absl::Status& status) {
  absl::Status marked = status;
  if (!marked.ok()) marked.SetPayload(kUrl, absl::Cord("1"));
  return marked;
}

bool IsOfDevices(const absl::Status& status) {
  return status.GetPayload(kUrl).has_value();
}

}  // namespace weft::rpc
