// The models that ddp_bench and train_bench train; bench/peers/torch_models.py
// has the same.

#ifndef WEFT_BENCH_DDP_MODELS_H_
#define WEFT_BENCH_DDP_MODELS_H_

#include <memory>
#include <string>

#include "weft/autograd/variable.h"
#include "weft/nn/module.h"
#include "weft/tensor/device.h"

namespace weft::bench {

// A model and one batch for it.
class TrainedModel : public nn::Module {
 public:
  // The loss of the batch.
  virtual Variable Loss() = 0;
  // Moves the batch, as To() does the parameters.
  virtual void MoveBatch(Device device) = 0;
};

// "mlp": 784-1024-1024-10, batch 64, 1.86 M parameters. "cnn": two convolutions
// and two linear layers on 28x28, batch 64, 1.20 M. "lm": six blocks of width
// 256, 128 words of 1024, batch 8, 5.30 M. REQUIRES: one of these.
std::unique_ptr<TrainedModel> MakeModel(const std::string& name);

}  // namespace weft::bench

#endif  // WEFT_BENCH_DDP_MODELS_H_
