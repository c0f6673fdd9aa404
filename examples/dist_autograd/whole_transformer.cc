// whole_transformer: the model of split_transformer in one process, trained by
// an ordinary loop on the same text in the same order:
//
//   whole_transformer
//
// Prints {"first_loss":..., "last_loss":...}.

#include <cstdio>

#include "weft/examples/dist_autograd/transformer.h"
#include "weft/weft.h"

namespace {

using namespace transformer;

class Whole : public Ends {
 public:
  Whole() {
    AddModule("first", first_);
    AddModule("second", second_);
  }
  weft::Variable LossOf(const weft::Tensor& text, const weft::Tensor& next) {
    return Loss(second_.Forward(first_.Forward(Embed(text))), next);
  }

 private:
  Block first_{2}, second_{3};
};

absl::Status Train() {
  Whole model;
  WEFT_ASSIGN_OR_RETURN(const auto optimizer,
                        weft::optimizer::Optimizer::Create(
                            {{kOptimizer, model.NamedParameters()}}));
  double first_loss = 0, last_loss = 0;
  for (int64_t number = 0; number < kTexts; number += kParts) {
    last_loss = 0;
    for (int64_t m = number; m < number + kParts; ++m) {
      const weft::Variable loss = model.LossOf(TextOf(m, 0), TextOf(m, 1));
      loss.Backward();
      last_loss += loss.value().item<float>();
    }
    WEFT_RETURN_IF_ERROR(optimizer->Step());
    optimizer->ZeroGrad();
    if (number == 0) first_loss = last_loss;
  }
  std::printf("{\"first_loss\":%.4f,\"last_loss\":%.4f}\n", first_loss,
              last_loss);
  return absl::OkStatus();
}

}  // namespace

int main() {
  weft::ExitIfError(weft::CatchToStatus([] { return Train(); }));
}
