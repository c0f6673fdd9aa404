// GroupBackend: which backend moves the tensors of a group, host, nccl or
// same_device, as all its ranks agree before it is made.

#ifndef WEFT_WORKER_GROUP_BACKEND_H_
#define WEFT_WORKER_GROUP_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"
#include "weft/collectives/backends/same_device/shared_device.h"
#include "weft/device/context.h"
#include "weft/tensor/device.h"

namespace weft::worker {

// What moves the tensors of a group.
struct GroupBackend {
  // host   memory of the host and streams between hosts, for tensors of any
  //        device
  // nccl   NCCL, from device to device (collectives/backends/nccl)
  // same_device
  //        on the device that all ranks share, as threads of one process or as
  //        processes of one host (collectives/backends/same_device)
  // auto   nccl where each rank has a CUDA device of its own and the library is
  //        found, all on one host or in a job with --insecure; same_device
  //        where all have the same `shared`, or are processes on one device;
  //        else host. The log says what it took and why.
  // The same on all ranks.
  std::string name = "host";
  // Whose tensors this rank gives to the group, but with host; and its context.
  Device device = {};
  std::shared_ptr<device::Context> devices = nullptr;
  // Where ranks that are threads of this process share the device: the same for
  // each. Processes need none.
  std::shared_ptr<collectives::SharedDevice> shared = nullptr;
  // Null: those of libnccl.so.2. For tests, which have no CUDA device.
  std::shared_ptr<const collectives::NcclFunctions> nccl = nullptr;
};

// kInvalidArgument for another name than host, nccl, same_device and auto.
absl::Status CheckBackendName(absl::string_view name);

// What a rank brings to the choice.
struct BackendOffer {
  std::string wanted;   // GroupBackend::name
  std::string host;     // where it runs
  std::string gpu;      // which of that host's; cpu: none
  std::string why_not;  // it cannot use NCCL; empty: it can
  std::string shared;   // SharedDevice::token; empty: it has none
  // By which processes share its device: which it is (DevicePlaceOf), and which
  // process this is. Empty: they cannot.
  std::string place = {};
  std::string process = {};
};
// This rank's offer. `host`: what Options::host_id says; empty: the machine's
// id.
BackendOffer OfferOf(const GroupBackend& backend, absl::string_view host);
// The offer as it is sent: a few words and the reason, without line ends.
std::string Encode(const BackendOffer& offer);
// kInvalidArgument: `text` is no offer.
absl::StatusOr<BackendOffer> DecodeOffer(absl::string_view text);

struct BackendChoice {
  std::string name;  // host, nccl or same_device
  std::string why;   // for the log; empty where there was no choice
};
// Chooses by the offers of all ranks; the choice is the same on each. `names`:
// the names of the ranks. `is_insecure`: traffic between hosts may be open.
// kInvalidArgument: not all want the same; kFailedPrecondition: nccl or
// same_device is wanted and cannot be used; the message names the rank and the
// reason.
absl::StatusOr<BackendChoice> ChooseBackend(
    const std::vector<BackendOffer>& offers,
    const std::vector<std::string>& names, bool is_insecure);

}  // namespace weft::worker

#endif  // WEFT_WORKER_GROUP_BACKEND_H_
