#include "weft/tensor/ops/einsum.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::IsHalf;
using internal::Wide;

bool Has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// The letters of each operand and of the result.
struct Equation {
  std::string a;
  std::string b;
  std::string out;
};

[[noreturn]] void ThrowMalformed(absl::string_view equation,
                                 absl::string_view wanted) {
  ThrowInvalidArgument("Einsum: equation \"", equation, "\"; wanted ", wanted);
}

void CheckLetters(absl::string_view equation, const std::string& letters) {
  for (size_t i = 0; i < letters.size(); ++i) {
    const char c = letters[i];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter || letters.find(c, i + 1) != std::string::npos) {
      ThrowMalformed(equation,
                     "letters, each once in an operand and in the result");
    }
  }
}

Equation Parse(absl::string_view text, int operands) {
  std::string compact;
  for (const char c : text) {
    if (c != ' ') compact.push_back(c);
  }
  const size_t arrow = compact.find("->");
  const size_t comma = compact.find(',');
  const bool has_comma = comma != std::string::npos;
  if (arrow == std::string::npos || has_comma != (operands == 2) ||
      (has_comma && comma > arrow)) {
    ThrowMalformed(text, operands == 2 ? "\"ab,bc->ac\", for two operands"
                                       : "\"ab->ba\", for one operand");
  }
  Equation equation;
  equation.a = compact.substr(0, has_comma ? comma : arrow);
  if (has_comma) equation.b = compact.substr(comma + 1, arrow - comma - 1);
  equation.out = compact.substr(arrow + 2);
  for (const std::string& letters : {equation.a, equation.b, equation.out}) {
    CheckLetters(text, letters);
  }
  for (const char c : equation.out) {
    if (!Has(equation.a, c) && !Has(equation.b, c)) {
      ThrowMalformed(text, absl::StrCat("an operand with the result's letter '",
                                        std::string(1, c), "'"));
    }
  }
  return equation;
}

void CheckDims(absl::string_view equation, const Tensor& x,
               const std::string& letters) {
  if (x.dim() != static_cast<int>(letters.size())) {
    ThrowInvalidArgument("Einsum: equation \"", equation, "\" names ",
                         letters.size(), " dimensions of ", x.Describe());
  }
}

// A tensor and the letters of its dimensions.
struct Named {
  Tensor value;
  std::string letters;

  int64_t size(char letter) const {
    return value.shape()[letters.find(letter)];
  }
};

// Summed over the letters that `kept` has not.
Named SumOthers(const Named& x, const std::string& kept) {
  Shape dims;
  Named result = {x.value, ""};
  for (size_t d = 0; d < x.letters.size(); ++d) {
    if (Has(kept, x.letters[d])) {
      result.letters.push_back(x.letters[d]);
    } else {
      dims.push_back(static_cast<int64_t>(d));
    }
  }
  if (!dims.empty()) result.value = Sum(x.value, dims);
  return result;
}

// REQUIRES: `letters` are those of x in another order.
Tensor InOrder(const Named& x, const std::string& letters) {
  Shape dims;
  for (const char c : letters) {
    dims.push_back(static_cast<int64_t>(x.letters.find(c)));
  }
  return x.value.Permute(dims);
}

// The sizes of `letters` in x, and their product.
Shape SizesOf(const Named& x, const std::string& letters) {
  Shape sizes;
  for (const char c : letters) sizes.push_back(x.size(c));
  return sizes;
}
int64_t ProductOf(const Shape& sizes) { return NumElements(sizes, "Einsum"); }

// Which letters are in both operands and the result, and so on.
struct Roles {
  std::string batch;
  std::string summed;  // In both operands only.
  std::string of_a;
  std::string of_b;
};

Roles RolesOf(const Named& a, const Named& b, const std::string& out) {
  Roles roles;
  for (const char c : a.letters) {
    const bool is_shared = Has(b.letters, c);
    (!is_shared    ? roles.of_a
     : Has(out, c) ? roles.batch
                   : roles.summed)
        .push_back(c);
  }
  for (const char c : b.letters) {
    if (!Has(a.letters, c)) roles.of_b.push_back(c);
  }
  return roles;
}

void CheckSizes(absl::string_view equation, const Named& a, const Named& b) {
  internal::CheckSameDevice(a.value, b.value, "Einsum");
  for (const char c : a.letters) {
    if (Has(b.letters, c) && a.size(c) != b.size(c)) {
      ThrowInvalidArgument("Einsum: equation \"", equation, "\": lhs is ",
                           a.value.Describe(), ", rhs is ", b.value.Describe(),
                           "; sizes ", a.size(c), " and ", b.size(c), " of '",
                           std::string(1, c), "' differ");
    }
  }
}

// Checks a gradient to the result against what it is to become, of `shape` and
// the letters `mine`; `grad` has the letters of the result.
void CheckGradient(absl::string_view equation, const Named& grad,
                   const std::string& mine, const Shape& shape) {
  CheckDims(equation, grad.value, grad.letters);
  bool fits = shape.size() == mine.size();
  for (size_t d = 0; fits && d < mine.size(); ++d) {
    fits = !Has(grad.letters, mine[d]) || grad.size(mine[d]) == shape[d];
  }
  if (!fits) {
    ThrowInvalidArgument("Einsum: equation \"", equation,
                         "\": the gradient to the result is ",
                         grad.value.Describe(), ", the operand's shape ",
                         ShapeText(shape), "; they do not fit");
  }
}

// [batch, of_a, summed] x [batch, summed, of_b].
Tensor Contract(Named a, Named b, const std::string& out) {
  a = SumOthers(a, out + b.letters);
  b = SumOthers(b, out + a.letters);
  const Roles roles = RolesOf(a, b, out);
  const Shape batch = SizesOf(a, roles.batch);
  const Shape rows = SizesOf(a, roles.of_a);
  const Shape columns = SizesOf(b, roles.of_b);
  const int64_t inner = ProductOf(SizesOf(a, roles.summed));
  const Tensor lhs = InOrder(a, roles.batch + roles.of_a + roles.summed)
                         .Reshape({ProductOf(batch), ProductOf(rows), inner});
  const Tensor rhs =
      InOrder(b, roles.batch + roles.summed + roles.of_b)
          .Reshape({ProductOf(batch), inner, ProductOf(columns)});
  Shape shape = batch;
  shape.insert(shape.end(), rows.begin(), rows.end());
  shape.insert(shape.end(), columns.begin(), columns.end());
  const Named product = {MatMul(lhs, rhs).View(shape),
                         roles.batch + roles.of_a + roles.of_b};
  return InOrder(product, out).Contiguous();
}

// `grad`, whose letters are some of `letters`, as those of a tensor of `shape`:
// what was summed over is stretched.
Tensor Stretched(const Named& grad, const std::string& letters,
                 const Shape& shape) {
  std::string present;
  for (const char c : letters) {
    if (Has(grad.letters, c)) present.push_back(c);
  }
  Tensor result = InOrder(grad, present);
  for (size_t d = 0; d < letters.size(); ++d) {
    if (!Has(present, letters[d])) {
      result = result.Unsqueeze(static_cast<int64_t>(d));
    }
  }
  return result.Expand(shape);
}

// The gradient of the operand with letters `mine`; the other is `other`.
Tensor GradientOf(absl::string_view equation, const std::string& mine,
                  const Named& grad, const Named& other, const Shape& shape) {
  CheckGradient(equation, grad, mine, shape);
  CheckDims(equation, other.value, other.letters);
  CheckSizes(equation, grad, other);
  for (size_t d = 0; d < mine.size(); ++d) {
    if (Has(other.letters, mine[d]) && other.size(mine[d]) != shape[d]) {
      ThrowInvalidArgument("Einsum: equation \"", equation,
                           "\": the other operand is ", other.value.Describe(),
                           ", this one's shape ", ShapeText(shape),
                           "; they do not fit");
    }
  }
  std::string reached;
  for (const char c : mine) {
    if (Has(grad.letters, c) || Has(other.letters, c)) reached.push_back(c);
  }
  return Stretched({Contract(grad, other, reached), reached}, mine, shape);
}

bool AreHalf(const Tensor& a, const Tensor& b) {
  return IsHalf(a) && a.dtype() == b.dtype();
}

}  // namespace

Tensor Einsum(absl::string_view equation, const Tensor& a) {
  if (IsHalf(a)) return Einsum(equation, Wide(a)).To(a.dtype());
  const Equation parsed = Parse(equation, 1);
  CheckDims(equation, a, parsed.a);
  return InOrder(SumOthers({a, parsed.a}, parsed.out), parsed.out).Contiguous();
}

Tensor Einsum(absl::string_view equation, const Tensor& a, const Tensor& b) {
  if (AreHalf(a, b)) return Einsum(equation, Wide(a), Wide(b)).To(a.dtype());
  const Equation parsed = Parse(equation, 2);
  CheckDims(equation, a, parsed.a);
  CheckDims(equation, b, parsed.b);
  CheckSizes(equation, {a, parsed.a}, {b, parsed.b});
  return Contract({a, parsed.a}, {b, parsed.b}, parsed.out);
}

Tensor EinsumBackward(absl::string_view equation, const Tensor& grad,
                      const Shape& shape) {
  if (IsHalf(grad)) {
    return EinsumBackward(equation, Wide(grad), shape).To(grad.dtype());
  }
  const Equation parsed = Parse(equation, 1);
  CheckGradient(equation, {grad, parsed.out}, parsed.a, shape);
  return Stretched({grad, parsed.out}, parsed.a, shape);
}

Tensor EinsumBackwardA(absl::string_view equation, const Tensor& grad,
                       const Tensor& b, const Shape& shape) {
  if (AreHalf(grad, b)) {
    return EinsumBackwardA(equation, Wide(grad), Wide(b), shape)
        .To(grad.dtype());
  }
  const Equation parsed = Parse(equation, 2);
  return GradientOf(equation, parsed.a, {grad, parsed.out}, {b, parsed.b},
                    shape);
}

Tensor EinsumBackwardB(absl::string_view equation, const Tensor& grad,
                       const Tensor& a, const Shape& shape) {
  if (AreHalf(grad, a)) {
    return EinsumBackwardB(equation, Wide(grad), Wide(a), shape)
        .To(grad.dtype());
  }
  const Equation parsed = Parse(equation, 2);
  return GradientOf(equation, parsed.b, {grad, parsed.out}, {a, parsed.a},
                    shape);
}

}  // namespace weft
