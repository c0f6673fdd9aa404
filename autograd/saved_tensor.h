// SavedTensor: a tensor kept for the backward pass, with proof that it is still
// the same.
//
// For a leaf it keeps the leaf's value and version, not the tensor: the leaf
// may be moved to other memory (Leaf::MoveTo) and the former be freed. One that
// is made within Checkpoint (checkpoint.h) keeps no elements: Get() computes
// them again.

#ifndef WEFT_AUTOGRAD_SAVED_TENSOR_H_
#define WEFT_AUTOGRAD_SAVED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/storage.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace internal {

class CheckpointFrame;
class CheckpointRun;

// A tensor, or the value of a leaf, and the version that it had.
class KeptTensor {
 public:
  KeptTensor() = default;
  explicit KeptTensor(const Tensor& tensor) : tensor_(tensor) {
    if (tensor.defined()) held_ = tensor.storage()->Hold(&version_);
  }
  explicit KeptTensor(const IntrusivePtr<LeafValue>& leaf)
      : leaf_(leaf),
        moves_(leaf->moves),
        held_(leaf->tensor.storage()->Hold(&version_)) {}

  // As SavedTensor::Get.
  Tensor Get() const { return is_same() ? now() : BeforeUpdate(); }

  // Whether nobody has written to it since.
  bool is_same() const {
    if (leaf_) return leaf_->IsSame(moves_, version_);
    return !tensor_.defined() || tensor_.version() == version_;
  }
  uint64_t version() const { return version_; }
  const LeafValue* leaf() const { return leaf_.get(); }

 private:
  const Tensor& now() const { return leaf_ ? leaf_->tensor : tensor_; }
  Tensor BeforeUpdate() const;

  Tensor tensor_;                 // undefined if leaf_
  IntrusivePtr<LeafValue> leaf_;  // null: tensor_
  uint64_t moves_ = 0;
  uint64_t version_ = 0;
  IntrusivePtr<HeldVersion> held_;  // null: its versions are not kept
};

// The place of a tensor that is computed again.
class CheckpointSlot : public RefCounted<CheckpointSlot> {
 public:
  CheckpointSlot(std::shared_ptr<CheckpointFrame> frame, size_t index)
      : frame_(std::move(frame)), index_(index) {}
  ~CheckpointSlot();

  Tensor Get() const;

 private:
  const std::shared_ptr<CheckpointFrame> frame_;
  const size_t index_;
};

// The innermost run of a checkpointed function on this thread.
inline thread_local CheckpointRun* current_checkpoint_run = nullptr;

// An operation uses `inputs` in it: whose leaves must be the same when the
// function runs again.
void UseInCheckpoint(absl::Span<const Variable* const> inputs);

}  // namespace internal

// Thread-safety: as Tensor. Copies share what is kept.
class SavedTensor {
 public:
  // `tensor` may be undefined.
  explicit SavedTensor(const Tensor& tensor) {
    if (internal::current_checkpoint_run == nullptr || !tensor.defined()) {
      kept_ = internal::KeptTensor(tensor);
    } else {
      SaveInCheckpoint(tensor);
    }
  }
  // The value of `variable`, which may be undefined.
  explicit SavedTensor(const Variable& variable) {
    if (variable.leaf() == nullptr) {
      *this = SavedTensor(variable.value());
      return;
    }
    kept_ = internal::KeptTensor(variable.leaf()->shared_value());
  }

  // The elements as they were, also if an optimizer has updated them since
  // (Tensor::BeginUpdate). Throws Error kFailedPrecondition if they were
  // written to in another way, or updated and moved, and what Checkpoint says.
  Tensor Get() const { return slot_ ? slot_->Get() : kept_.Get(); }

 private:
  void SaveInCheckpoint(const Tensor& tensor);

  internal::KeptTensor kept_;  // undefined if slot_
  IntrusivePtr<internal::CheckpointSlot> slot_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_SAVED_TENSOR_H_
