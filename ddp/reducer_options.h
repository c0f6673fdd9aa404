// ReducerOptions, ReducerParameter: what a reducer is made for, and the checks
// of it.

#ifndef WEFT_DDP_REDUCER_OPTIONS_H_
#define WEFT_DDP_REDUCER_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/ddp/hooks/communication_hook.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/shape.h"

namespace weft::ddp {

struct ReducerParameter {
  std::string name;  // in messages
  Shape shape;
  DType dtype = DType::kF32;  // floating
  // The device of its gradient. It may be another one on each rank; but
  // parameters that share a device on this rank share a device on all.
  Device device = Device::Cpu();
};

// The divisor of the sum of all ranks' gradients.
enum class Divisor {
  kWorldSize,
  // Each rank's gradient is multiplied by its weight (its number of samples),
  // and the sum is divided by the sum of the weights.
  kTotalWeight,
};

struct ReducerOptions {
  Divisor divisor = Divisor::kWorldSize;
  // Bytes of the first bucket, small so that the first reduction begins early,
  // and of all others.
  int64_t first_bucket_bytes = int64_t{1} << 20;
  int64_t bucket_bytes = int64_t{25} << 20;
  // Plan the buckets again after the first step in which a rank has gradients.
  bool rebuilds_buckets = true;
  // Each rank's gradients are of the same parameters in each step. This saves
  // the small operation by which ranks exchange which gradients they have. A
  // step with other parameters fails, with the parameter's name. Not with
  // kTotalWeight, whose weights that operation carries.
  bool is_static_graph = false;
  // How a bucket is reduced; of the same name on all ranks. Null:
  // AllReduceHook.
  std::shared_ptr<CommunicationHook> hook;
  // Timeout of each reduction, from its launch; none: the group's. Finish waits
  // at most twice as long for what a hook has launched.
  absl::optional<absl::Duration> timeout;
};

// kInvalidArgument for what Reducer::Create refuses on this rank alone.
absl::Status CheckArguments(const std::vector<ReducerParameter>& parameters,
                            const ReducerOptions& options);

// kInvalidArgument for rows that are no gradient of `parameter`. REQUIRES: they
// are on the CPU.
absl::Status CheckRows(const ReducerParameter& parameter,
                       const SparseRows& rows);

// What must be equal on all ranks, a line for each thing.
std::vector<std::string> Describe(
    const std::vector<ReducerParameter>& parameters,
    const ReducerOptions& options);

}  // namespace weft::ddp

#endif  // WEFT_DDP_REDUCER_OPTIONS_H_
