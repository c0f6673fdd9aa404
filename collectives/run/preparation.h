// Preparation: checks the arguments of a call and makes the Operation.

#ifndef WEFT_COLLECTIVES_RUN_PREPARATION_H_
#define WEFT_COLLECTIVES_RUN_PREPARATION_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/operation.h"
#include "weft/collectives/run/device_call.h"
#include "weft/tensor/device_staging.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// An Operation together with the tensors whose memory it uses.
//
// The Add functions are called in the order of the Operation's blocks. Each
// returns kInvalidArgument for a tensor that is undefined, or on another device
// or of another dtype than those before. They may throw as Tensor's functions
// do. The blocks of tensors on a device are addresses of that device until
// Place.
//
// Thread-safety: one thread at a time.
class Preparation {
 public:
  Preparation(Verb verb, int size, CallSite site) : size_(size) {
    operation_.verb = verb;
    operation_.site = site;
  }

  Operation& operation() { return operation_; }
  const Operation& operation() const { return operation_; }

  absl::Status AddInput(const Tensor& tensor);
  absl::Status AddOutput(const Tensor& tensor);
  // Read, then written: output and input, or only output, as the verb wants.
  absl::Status AddInPlace(const Tensor& tensor, bool as_input = true);
  // One for each rank.
  absl::Status AddInputs(const std::vector<Tensor>& tensors);
  absl::Status AddOutputs(const std::vector<Tensor>& tensors);
  // size() equal parts of one.
  absl::Status AddInputParts(const Tensor& tensor);
  absl::Status AddOutputParts(const Tensor& tensor);

  absl::Status SetRoot(int root);
  absl::Status SetReduction(const Reduction& reduction);
  // Whether block `a` of the inputs has as many elements as `b` of the outputs.
  absl::Status CheckSameCount(size_t a, size_t b) const;
  // Checks that outputs overlap nothing but an input at the same address.
  absl::Status CheckOverlap() const;

  // After the operation `to` gets the elements of `from`, which is written.
  void WriteBack(const Tensor& from, const Tensor& to) {
    write_back_.emplace_back(from, to);
  }

  // Once all is added: of tensors on a device, where `backend` takes them
  // there, has it wait for the caller's stream; else has the inputs copied to
  // host memory, which then are the blocks. The errors of StagedCall::Begin and
  // DeviceCall::Begin.
  absl::Status Place(const Backend& backend,
                     const std::shared_ptr<DeviceStaging>& staging);
  // Null where no tensor passes through the host.
  const std::shared_ptr<StagedCall>& staged() const { return staged_; }
  // The caller's, which sees the results; none where the tensors are on the
  // CPU.
  device::Stream caller() const;
  // Whether the tensors are on a device that has failed.
  bool has_failed_device() const;

  // After the operation: writes back what was copied, counts the writes. The
  // errors of StagedCall::End; may throw as CopyFrom does.
  absl::Status Finish();

 private:
  enum class Access { kRead, kWrite, kReadWrite };

  // OK if it is on the device of those before.
  absl::Status CheckDevice(const Tensor& tensor) const;
  // A contiguous tensor to use for `tensor`.
  absl::Status Hold(const Tensor& tensor, Access access, Tensor* held);
  absl::Status CheckListSize(size_t found, absl::string_view what) const;
  absl::Status AppendParts(const Tensor& held, Blocks* blocks) const;
  absl::Status Stage(const std::shared_ptr<DeviceStaging>& staging);

  const int size_;
  Operation operation_;
  bool has_dtype_ = false;
  Device device_;  // of held_, or of the tensor that was refused
  absl::InlinedVector<Tensor, 2> held_;
  absl::InlinedVector<Tensor, 2> written_;
  std::vector<StagedTensor> to_stage_;  // held_, where they are on a device
  std::shared_ptr<StagedCall> staged_;
  std::shared_ptr<DeviceCall> on_device_;
  std::vector<std::pair<Tensor, Tensor>> write_back_;  // from, to
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_PREPARATION_H_
