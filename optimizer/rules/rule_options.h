// RuleOptions: which update rule, and its hyper-parameters.

#ifndef WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_
#define WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_

#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  bool amsgrad = false;       // divides by the largest v so far
};

struct AdamWOptions {
  double lr = 0.001;           // [0, inf)
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // (0, inf)
  double weight_decay = 0.01;  // [0, inf), shrinks the weights themselves
  bool amsgrad = false;        // divides by the largest v so far
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

struct RmspropOptions {
  double lr = 0.01;           // [0, inf)
  double alpha = 0.99;        // [0, 1)
  double epsilon = 1e-8;      // (0, inf)
  double weight_decay = 0.0;  // [0, inf), added to the gradient
  double momentum = 0.0;      // [0, 1)
  bool centered = false;      // divides by the deviation, not the root mean
};

struct AdadeltaOptions {
  double lr = 1.0;            // [0, inf)
  double rho = 0.9;           // [0, 1)
  double epsilon = 1e-6;      // (0, inf)
  double weight_decay = 0.0;  // [0, inf), added to the gradient
};

struct LionOptions {
  double lr = 1e-4;           // [0, inf)
  double beta1 = 0.9;         // [0, 1)
  double beta2 = 0.99;        // [0, 1)
  double weight_decay = 0.0;  // [0, inf), shrinks the weights themselves
};

struct LambOptions {
  double lr = 0.001;           // [0, inf)
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-6;       // (0, inf)
  double weight_decay = 0.01;  // [0, inf), added to the step that is scaled
};

struct RowwiseAdagradOptions {
  double lr = 0.01;           // [0, inf)
  double epsilon = 1e-8;      // [0, inf); 0 needs initial_accumulator > 0
  double weight_decay = 0.0;  // [0, inf), added to the gradient
  double initial_accumulator = 0.0;  // [0, inf)
};

using RuleOptions =
    std::variant<SgdOptions, AdamOptions, AdamWOptions, AdagradOptions,
                 FtrlOptions, RmspropOptions, AdadeltaOptions, LionOptions,
                 LambOptions, RowwiseAdagradOptions>;

// Limits of the gradient, for any rule, before it sees it: first each element,
// then the norm of what the rule sees as one row (Scope in update_rule.h).
struct ClipOptions {
  double value = 0.0;  // [0, inf); an element's largest magnitude, 0: any
  double norm = 0.0;   // [0, inf); a row's largest Euclidean norm, 0: any
};

// "sgd", "adam", "adamw", "adagrad", "ftrl", "rmsprop", "adadelta", "lion",
// "lamb", "rowwise_adagrad".
absl::string_view RuleName(const RuleOptions& options);

// The rule of that name with its defaults. kInvalidArgument lists the names.
absl::StatusOr<RuleOptions> RuleNamed(absl::string_view name);

// A field of a rule's options, by the name that it has in its message.
struct RuleField {
  // Allowed values; infinite values and NaN never are.
  struct Range {
    double low = 0.0;
    double high = 0.0;
    bool low_allowed = false;
    bool high_allowed = false;
  };
  const char* name;
  std::variant<double*, bool*> value;  // in the options
  Range range = {};                    // of a double
};

// They point into `options`.
std::vector<RuleField> FieldsOf(RuleOptions& options);

double LearningRate(const RuleOptions& options);
void SetLearningRate(RuleOptions& options, double lr);

// kInvalidArgument names the option, its value and the allowed range.
absl::Status Validate(const RuleOptions& options);
absl::Status Validate(const ClipOptions& clip);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RULE_OPTIONS_H_
