// Op: a differentiable operation as the registry knows it.
//
// Each operation is registered once, where it is defined, and an operation that
// is not registered cannot record itself. By being registered it is tested:
// op_test.cc compares each case with finite differences in f64, and with
// PyTorch's values in f32 (tests/golden), and fails for a case that has none.

#ifndef WEFT_AUTOGRAD_OP_H_
#define WEFT_AUTOGRAD_OP_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/shape.h"

namespace weft {

// What a test feeds an operation: uniform values in [low, high).
struct SampleInput {
  // kReal is differentiated, kTarget only real; kIndex is i64.
  enum class Kind { kReal, kTarget, kIndex, kBool };

  Shape shape;
  double low = -1.5;
  double high = 1.5;
  Kind kind = Kind::kReal;
};

struct OpCase {
  std::string name;
  std::vector<SampleInput> inputs;
  std::function<Variable(absl::Span<const Variable> inputs)> forward;
};

// Make one per operation, at namespace scope: the list is filled before main
// and constant afterwards.
//
// Thread-safety: thread-safe.
class Op {
 public:
  Op(const char* name, std::vector<OpCase> cases);
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  absl::string_view name() const { return name_; }
  const std::vector<OpCase>& cases() const { return cases_; }

  // All of this program, in no order.
  static absl::Span<const Op* const> Registered();

 private:
  const absl::string_view name_;
  const std::vector<OpCase> cases_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OP_H_
