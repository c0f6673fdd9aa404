// Losses, under the names that models use. See weft/autograd/ops/loss.h.

#ifndef WEFT_NN_LOSS_H_
#define WEFT_NN_LOSS_H_

#include "weft/autograd/ops/loss.h"

namespace weft::nn {

using weft::BceWithLogits;
using weft::CrossEntropy;
using weft::MseLoss;
using weft::NllLoss;
using weft::Reduction;

}  // namespace weft::nn

#endif  // WEFT_NN_LOSS_H_
