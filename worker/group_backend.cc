#include "weft/worker/group_backend.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "weft/rendezvous/boot_id.h"

namespace weft::worker {
namespace {

constexpr char kHost[] = "host";
constexpr char kNccl[] = "nccl";
constexpr char kSameDevice[] = "same_device";
constexpr char kAuto[] = "auto";
constexpr char kCpu[] = "cpu";  // in place of a GPU
// A card of a barrier is small.
constexpr size_t kMostReasonBytes = 400;

// Why this rank cannot use NCCL, or OK and which GPU it has.
absl::StatusOr<std::string> OwnGpu(const GroupBackend& backend) {
  const Device device = backend.device;
  if (device.is_cpu()) {
    return absl::FailedPreconditionError(
        "its tensors lie on the CPU, not on a CUDA device (--device)");
  }
  if (backend.nccl == nullptr) {
    if (device.kind() != Device::Kind::kCuda) {
      return absl::FailedPreconditionError(
          absl::StrCat(Name(device), " is no CUDA device (--device)"));
    }
    const absl::Status found = collectives::LoadNccl().status();
    if (!found.ok()) return found;
  }
  const auto properties =
      device.context()->runtime().GetProperties(device.id());
  if (!properties.ok()) return properties.status();
  // A simulated one is of its context alone.
  if (!properties->pci_bus_id.empty()) return properties->pci_bus_id;
  return absl::StrCat(Name(device), "@",
                      absl::Hex(reinterpret_cast<uintptr_t>(device.context())));
}

// Why NCCL cannot be; empty if it can.
std::string WhyNotNccl(const std::vector<BackendOffer>& offers,
                       const std::vector<std::string>& names,
                       bool is_insecure) {
  std::map<std::pair<std::string, std::string>, size_t> gpus;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (!offers[i].why_not.empty()) {
      return absl::StrCat(names[i], ": ", offers[i].why_not);
    }
    const auto [known, is_new] =
        gpus.try_emplace({offers[i].host, offers[i].gpu}, i);
    if (!is_new) {
      return absl::StrCat(names[known->second], " and ", names[i],
                          " share the GPU ", offers[i].gpu,
                          ", and NCCL wants one for each rank");
    }
  }
  for (size_t i = 1; i < offers.size(); ++i) {
    if (offers[i].host == offers[0].host || is_insecure) continue;
    return absl::StrCat(names[0], " and ", names[i],
                        " are on two hosts, between which NCCL neither "
                        "encrypts nor authenticates, and the job is not "
                        "--insecure");
  }
  return "";
}

// Why the ranks are not threads that share a device; empty if they are.
std::string WhyNotSameDevice(const std::vector<BackendOffer>& offers,
                             const std::vector<std::string>& names) {
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].shared.empty()) {
      return absl::StrCat(names[i],
                          " has no device that it shares with other "
                          "ranks of its process (GroupBackend::shared)");
    }
    if (offers[i].shared == offers[0].shared) continue;
    return absl::StrCat(names[0], " and ", names[i],
                        " do not share a device as threads of one process; "
                        "ranks of several processes cannot yet");
  }
  return "";
}

}  // namespace

absl::Status CheckBackendName(absl::string_view name) {
  if (name == kHost || name == kNccl || name == kSameDevice || name == kAuto) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "backend \"", name, "\": wanted host, nccl, same_device or auto"));
}

BackendOffer OfferOf(const GroupBackend& backend, absl::string_view host) {
  BackendOffer offer;
  offer.wanted = backend.name;
  if (offer.wanted == kHost) return offer;
  if (backend.shared != nullptr) offer.shared = backend.shared->token();
  if (offer.wanted == kSameDevice) return offer;
  offer.host = host.empty() ? rendezvous::BootId() : std::string(host);
  if (backend.device.is_cpu()) offer.gpu = kCpu;
  const absl::StatusOr<std::string> gpu = OwnGpu(backend);
  if (gpu.ok()) {
    offer.gpu = *gpu;
  } else {
    offer.why_not =
        std::string(gpu.status().message().substr(0, kMostReasonBytes));
  }
  return offer;
}

std::string Encode(const BackendOffer& offer) {
  const auto word = [](const std::string& text) {
    return text.empty() ? std::string("-")
                        : absl::StrReplaceAll(text, {{" ", "_"}, {"\n", "_"}});
  };
  return absl::StrCat(offer.wanted, " ", word(offer.host), " ", word(offer.gpu),
                      " ", word(offer.shared), " ",
                      absl::StrReplaceAll(offer.why_not, {{"\n", " "}}));
}

absl::StatusOr<BackendOffer> DecodeOffer(absl::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 4));
  if (parts.size() != 5 || !CheckBackendName(parts[0]).ok()) {
    return absl::InvalidArgumentError("what it has brought is no backend");
  }
  return BackendOffer{parts[0], parts[1], parts[2], parts[4],
                      parts[3] == "-" ? "" : parts[3]};
}

absl::StatusOr<BackendChoice> ChooseBackend(
    const std::vector<BackendOffer>& offers,
    const std::vector<std::string>& names, bool is_insecure) {
  const std::string& wanted = offers[0].wanted;
  for (size_t i = 1; i < offers.size(); ++i) {
    if (offers[i].wanted == wanted) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(names[0], " wants the backend ", wanted, " and ", names[i],
                     " ", offers[i].wanted, ": give all the same (--backend)"));
  }
  if (wanted == kHost) return BackendChoice{kHost, ""};
  const std::string why_not_same = WhyNotSameDevice(offers, names);
  if (wanted == kSameDevice && !why_not_same.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("backend same_device: ", why_not_same,
                     "; or take the backend host, or auto"));
  }
  if (wanted != kNccl && why_not_same.empty()) {
    return BackendChoice{
        kSameDevice, absl::StrCat(offers.size(), " ranks share one device")};
  }
  const std::string why_not = WhyNotNccl(offers, names, is_insecure);
  if (why_not.empty()) {
    return BackendChoice{kNccl,
                         absl::StrCat("each of ", offers.size(),
                                      " ranks has a CUDA device of its own")};
  }
  const bool none_has_any =
      std::all_of(offers.begin(), offers.end(),
                  [](const BackendOffer& one) { return one.gpu == kCpu; });
  if (wanted == kAuto && none_has_any) return BackendChoice{kHost, ""};
  if (wanted == kAuto) {
    return BackendChoice{kHost, absl::StrCat("not nccl: ", why_not)};
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "backend nccl: ", why_not, "; or take the backend host, or auto"));
}

}  // namespace weft::worker
