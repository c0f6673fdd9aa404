// GradScaler: keeps gradients of f16 within its range, by a loss that is
// multiplied by a large number.
//
//   AutocastScope low(DType::kF16);  // around the forward pass
//   scaler->Scale(loss).Backward();
//   WEFT_ASSIGN_OR_RETURN(const bool taken, scaler->Step(*optimizer));
//   WEFT_RETURN_IF_ERROR(scaler->Update());
//   optimizer->ZeroGrad();
//
// A step whose gradients are not all finite is not taken, and the scale falls;
// after `growth_interval` steps in a row that were, it rises. So the first
// steps, and now and then one, are skipped: that is how the scale is found.
//
// Unscale comes between Backward and Step where gradients are looked at or
// changed, as by ClipGradNorm.
//
// With DistributedDataParallel, VirtualShards and any other reduction of
// gradients: those of Step are reduced, and a gradient that is not finite on
// one rank makes the sum so on each. All ranks have the same bits, so all skip
// or none, and their scales stay equal, without another message.
//
// Parameters in f16 (nn::Module::To) have gradients in f16, too, which would
// lose when unscaled what scaling has saved: Unscale refuses them, as PyTorch
// does. Keep such parameters in f32, under an AutocastScope, or take bf16,
// which needs no scaler.
//
// Source: Micikevicius et al., "Mixed precision training", ICLR 2018, 3.2; the
// schedule is PyTorch's torch.amp.GradScaler.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_OPTIMIZER_GRAD_SCALER_H_
#define WEFT_OPTIMIZER_GRAD_SCALER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/tensor.h"

namespace weft::optimizer {

class GradScaler {
 public:
  struct Options {
    double initial_scale = 65536;
    double growth = 2;
    double backoff = 0.5;
    int64_t growth_interval = 2000;  // steps
  };

  // kInvalidArgument unless initial_scale is positive and finite, growth is
  // above 1, backoff in (0, 1) and growth_interval at least 1.
  static absl::StatusOr<std::unique_ptr<GradScaler>> Create(
      const Options& options);

  // loss * scale(); in f32 if the loss is f16 or bf16.
  Variable Scale(const Variable& loss) const;

  // Divides the gradients of the optimizer's parameters by scale(), in place,
  // and looks, once for all of them, whether each is finite: on a device this
  // waits for them. kFailedPrecondition if it was done since the last Update;
  // kInvalidArgument names a parameter of f16. Then nothing is changed.
  absl::Status Unscale(Optimizer& optimizer);

  // Unscales what is not unscaled, and calls optimizer.Step() if all gradients
  // are finite. Returns whether they were. kFailedPrecondition if it was done
  // since the last Update, and the errors of Unscale and Optimizer::Step.
  absl::StatusOr<bool> Step(Optimizer& optimizer);

  // Sets the scale for the next step. Call it once for each, after the Step of
  // all optimizers. kFailedPrecondition if no gradients were unscaled since the
  // last.
  absl::Status Update();

  double scale() const { return scale_; }
  // Steps in a row that were taken at this scale.
  int64_t steps_at_scale() const { return steps_at_scale_; }

  // "scale" f64 [] and "steps_at_scale" i64 [], to be kept in a checkpoint.
  absl::btree_map<std::string, Tensor> StateDict() const;
  // kInvalidArgument, with nothing changed, names what is missing, unknown, or
  // out of range.
  absl::Status LoadStateDict(const absl::btree_map<std::string, Tensor>& state);

 private:
  struct Unscaled {
    bool is_finite = true;
    bool is_stepped = false;
  };

  explicit GradScaler(const Options& options)
      : options_(options), scale_(options.initial_scale) {}

  const Options options_;
  double scale_;
  int64_t steps_at_scale_ = 0;
  // Since the last Update.
  absl::flat_hash_map<const Optimizer*, Unscaled> unscaled_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_GRAD_SCALER_H_
