// Preparation: checks the arguments of a call and makes the Operation.

#ifndef WEFT_COLLECTIVES_PREPARATION_H_
#define WEFT_COLLECTIVES_PREPARATION_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/collectives/operation.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// An Operation together with the tensors whose memory it uses.
//
// The Add functions are called in the order of the Operation's blocks. Each
// returns kInvalidArgument for a tensor that is undefined, on another device
// than the CPU, or of another dtype than those before. They may throw as
// Tensor's functions do.
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
  // That outputs overlap nothing but an input at the same address.
  absl::Status CheckOverlap() const;

  // After the operation: writes back what was copied, counts the writes.
  void Finish();

 private:
  enum class Access { kRead, kWrite, kReadWrite };

  // A contiguous tensor to use for `tensor`.
  absl::Status Hold(const Tensor& tensor, Access access, Tensor* held);
  absl::Status CheckListSize(size_t found, absl::string_view what) const;
  absl::Status AppendParts(const Tensor& held, Blocks* blocks) const;

  const int size_;
  Operation operation_;
  bool has_dtype_ = false;
  absl::InlinedVector<Tensor, 2> held_;
  absl::InlinedVector<Tensor, 2> written_;
  std::vector<std::pair<Tensor, Tensor>> write_back_;  // from, to
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PREPARATION_H_
