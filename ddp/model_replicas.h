// ModelReplicas: one model on all ranks of a group: whether it is the same
// model, its values given to all, and whether they have stayed the same.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DDP_MODEL_REPLICAS_H_
#define WEFT_DDP_MODEL_REPLICAS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/collectives/process_group.h"
#include "weft/nn/module.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

class ModelReplicas {
 public:
  // Knows nothing of the parameters and buffers `ignored`. Both must outlive
  // it. `timeout` is that of each operation; none: the group's.
  ModelReplicas(const nn::Module& module, collectives::ProcessGroup& group,
                std::vector<std::string> ignored = {},
                absl::optional<absl::Duration> timeout = absl::nullopt)
      : module_(module),
        group_(group),
        ignored_(std::move(ignored)),
        timeout_(timeout) {}

  bool IsIgnored(absl::string_view name) const;
  // All trained parameters but those that are ignored.
  std::vector<nn::NamedParameter> TrainedParameters() const;
  std::vector<nn::NamedParameter> FrozenLeaves() const;
  std::vector<nn::NamedBuffer> Buffers() const;

  // --- Called by all ranks. --------------------------------------------------

  // kInvalidArgument, the same on every rank: `lines` (as of CheckAgreement),
  // the buffers or frozen parameters differ, or this rank is told to ignore
  // what its model has not.
  absl::Status CheckOthersAgree(std::vector<std::string> lines) const;
  // Gives all ranks the parameters and buffers of `root`.
  absl::Status BroadcastFrom(int root) const;
  absl::Status BroadcastBuffersFrom(int root) const;
  // Whether all ranks have bitwise the same parameters: kDataLoss, on every
  // rank, names those that differ.
  absl::Status CheckInSync() const;

 private:
  absl::Status CheckIgnored() const;
  absl::Status BroadcastAll(const std::vector<Tensor>& tensors, int root) const;

  const nn::Module& module_;
  collectives::ProcessGroup& group_;
  const std::vector<std::string> ignored_;
  const absl::optional<absl::Duration> timeout_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_MODEL_REPLICAS_H_
