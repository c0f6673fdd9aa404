// RuleOptions: which update rule, and its hyper-parameters.

#ifndef WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_
#define WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_

#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::optimizer {

struct SgdOptions {
  double lr = 0.01;           // [0, inf)
  double momentum = 0.0;      // [0, 1)
  double dampening = 0.0;     // [0, 1]
  double weight_decay = 0.0;  // [0, inf), added to the gradient
  bool nesterov = false;      // needs momentum > 0 and dampening = 0
};

struct AdamOptions {
  double lr = 0.001;          // [0, inf)
  double beta1 = 0.9;         // [0, 1)
  double beta2 = 0.999;       // [0, 1)
  double epsilon = 1e-8;      // (0, inf)
  double weight_decay = 0.0;  // [0, inf), added to the gradient
};

struct AdamWOptions {
  double lr = 0.001;           // [0, inf)
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // (0, inf)
  double weight_decay = 0.01;  // [0, inf), shrinks the weights themselves
};

struct AdagradOptions {
  double lr = 0.01;                  // [0, inf)
  double lr_decay = 0.0;             // [0, inf)
  double weight_decay = 0.0;         // [0, inf), added to the gradient
  double initial_accumulator = 0.0;  // [0, inf)
  double epsilon = 1e-10;  // [0, inf); 0 needs initial_accumulator > 0
};

// The learning rate of a coordinate is lr / (beta + sqrt(sum of g^2)).
struct FtrlOptions {
  double lr = 0.1;                   // (0, inf), alpha of the paper
  double beta = 1.0;                 // [0, inf)
  double l1 = 0.0;                   // [0, inf)
  double l2 = 0.0;                   // [0, inf)
  double initial_accumulator = 0.0;  // [0, inf)
};

using RuleOptions = std::variant<SgdOptions, AdamOptions, AdamWOptions,
                                 AdagradOptions, FtrlOptions>;

// "sgd", "adam", "adamw", "adagrad", "ftrl".
absl::string_view RuleName(const RuleOptions& options);

double LearningRate(const RuleOptions& options);
void SetLearningRate(RuleOptions& options, double lr);

// kInvalidArgument names the option, its value and the allowed range.
absl::Status Validate(const RuleOptions& options);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_
