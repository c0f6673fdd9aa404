// Checks that what a training computes is still finite.

#ifndef WEFT_TRAIN_FINITE_H_
#define WEFT_TRAIN_FINITE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "weft/nn/module.h"

namespace weft::train {

// kOutOfRange, with ExitCode kDiverged, if `loss` is NaN or infinite: names
// `self`, the step, the loss and the first parameter that is not finite.
absl::Status CheckLoss(double loss, int64_t step, const std::string& self,
                       const nn::Module& model);

// kOutOfRange, with ExitCode kDiverged, names the first parameter or buffer, of
// f32 or f64, that has NaN or infinity.
absl::Status CheckFinite(const nn::Module& model);
absl::Status CheckFinite(const nn::StateDict& state);  // of a model

}  // namespace weft::train

#endif  // WEFT_TRAIN_FINITE_H_
