#include "weft/worker/group_backend.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "weft/collectives/backends/same_device/device_place.h"
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
std::string WhyNotThreads(const std::vector<BackendOffer>& offers,
                          const std::vector<std::string>& names) {
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].shared.empty()) {
      return absl::StrCat(names[i],
                          " has no device that it shares with other "
                          "ranks of its process (GroupBackend::shared)");
    }
    if (offers[i].shared == offers[0].shared) continue;
    return absl::StrCat(names[0], " and ", names[i],
                        " do not share a device as threads of one process");
  }
  return "";
}

// Why the ranks are not processes on one device; empty if they are.
std::string WhyNotProcesses(const std::vector<BackendOffer>& offers,
                            const std::vector<std::string>& names) {
  std::map<std::string, size_t> processes;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].place.empty()) {
      return absl::StrCat(names[i],
                          " has no device whose memory other processes can "
                          "open (--device)");
    }
    if (offers[i].place != offers[0].place) {
      return absl::StrCat(names[0], " is on the device ", offers[0].place,
                          " and ", names[i], " on ", offers[i].place);
    }
    const auto [known, is_new] = processes.try_emplace(offers[i].process, i);
    if (!is_new) {
      return absl::StrCat(names[known->second], " and ", names[i],
                          " are of one process");
    }
  }
  return "";
}

// Why the ranks do not share a device; empty if they do.
std::string WhyNotSameDevice(const std::vector<BackendOffer>& offers,
                             const std::vector<std::string>& names) {
  std::string why_not_threads = WhyNotThreads(offers, names);
  if (why_not_threads.empty()) return "";
  const std::string why_not_processes = WhyNotProcesses(offers, names);
  if (why_not_processes.empty()) return "";
  return absl::StrCat(why_not_threads, "; and ", why_not_processes);
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
  offer.host = host.empty() ? rendezvous::BootId() : std::string(host);
  if (!backend.device.is_cpu()) {
    // Ranks of other hosts, as a user calls them, share nothing.
    const absl::StatusOr<std::string> place = collectives::DevicePlaceOf(
        backend.device.context()->runtime(), backend.device.id());
    if (place.ok()) offer.place = absl::StrCat(*place, "/", offer.host);
    offer.process = absl::StrCat(getpid());
  }
  if (offer.wanted == kSameDevice) return offer;
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
                      " ", word(offer.shared), " ", word(offer.place), " ",
                      word(offer.process), " ",
                      absl::StrReplaceAll(offer.why_not, {{"\n", " "}}));
}

absl::StatusOr<BackendOffer> DecodeOffer(absl::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 6));
  if (parts.size() != 7 || !CheckBackendName(parts[0]).ok()) {
    return absl::InvalidArgumentError("what it has brought is no backend");
  }
  const auto word = [&](int i) { return parts[i] == "-" ? "" : parts[i]; };
  return BackendOffer{parts[0], parts[1], parts[2], parts[6],
                      word(3),  word(4),  word(5)};
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
  // One rank alone shares nothing.
  const bool is_alone = offers.size() == 1 && offers[0].shared.empty();
  if (wanted == kSameDevice ||
      (wanted == kAuto && why_not_same.empty() && !is_alone)) {
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
