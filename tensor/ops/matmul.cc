#include "weft/tensor/ops/matmul.h"

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/product.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/overlap.h"

namespace weft {
namespace {

using internal::IsHalf;
using internal::OnDevice;
using internal::Wide;

// The last two dimensions as BLAS can read them; copied if they cannot be.
Tensor Readable(const Tensor& x) {
  const int d = x.dim();
  return internal::IsReadable(x.size(-2), x.size(-1), x.strides()[d - 2],
                              x.strides()[d - 1])
             ? x
             : x.Clone();
}

template <typename T>
internal::Matrix<T> MatrixOf(const Tensor& x) {
  const int d = x.dim();
  return {x.data<T>(), x.strides()[d - 2], x.strides()[d - 1]};
}

void CheckOperands(const Tensor& a, const Tensor& b, const char* where) {
  internal::CheckSameDevice(a, b, where);
  if (a.dtype() != b.dtype()) {
    ThrowInvalidArgument(where, ": lhs is ", a.Describe(), ", rhs is ",
                         b.Describe(), "; dtypes differ");
  }
  if (a.dim() < 2 || b.dim() < 2) {
    ThrowInvalidArgument(where, ": lhs is ", ShapeText(a.shape()), ", rhs is ",
                         ShapeText(b.shape()),
                         "; wanted two dimensions or more");
  }
  if (!IsFloating(a.dtype())) {  // Without elements too.
    ThrowInvalidArgument(where, ": lhs is ", a.Describe(), ", rhs is ",
                         b.Describe(),
                         "; wanted f32, f64, f16 or bf16; cast with To()");
  }
  if (a.size(-1) != b.size(-2)) {
    ThrowInvalidArgument(where, ": lhs is ", ShapeText(a.shape()), ", rhs is ",
                         ShapeText(b.shape()), "; inner sizes ", a.size(-1),
                         " and ", b.size(-2), " differ");
  }
}

bool IsOnCuda(const Tensor& x) {
  return x.device().kind() == Device::Kind::kCuda;
}

// Whether the operands, of a's dtype, are multiplied in f32. oneDNN multiplies
// bf16 as it is where the CPU can, cuBLASLt f16 and bf16; what they give has
// been rounded once, too.
bool IsWidened(const Tensor& a) {
  if (IsOnCuda(a)) return false;
  if (a.dtype() != DType::kBF16) return IsHalf(a);
  return !internal::MultipliesBFloat16();
}

// As a device can read it; on the others it is copied late, if at all.
Tensor Operand(const Tensor& x) { return IsOnCuda(x) ? Readable(x) : x; }

template <typename Visitor>
void VisitProduct(DType dtype, const char* where, Visitor visit) {
  if (dtype == DType::kBF16) return visit(ElementType<BFloat16>());
  VisitFloating(dtype, where, visit);
}

// out = a * b, plus what is in `out` or plus `bias`, if that is defined. `out`
// is contiguous. All are on the CPU.
void MultiplyMatrices(const Tensor& a, const Tensor& b, const Tensor& out,
                      bool accumulates, const char* where,
                      const Tensor& bias = {}) {
  if (out.numel() == 0) return;
  const Tensor lhs = Readable(a);
  const Tensor rhs = Readable(b);
  const Tensor addend = bias.defined() ? bias.Contiguous() : bias;
  VisitProduct(a.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    internal::Product<T> product;
    product.m = out.size(-2);
    product.n = out.size(-1);
    product.k = a.size(-1);
    product.a = MatrixOf<T>(lhs);
    product.b = MatrixOf<T>(rhs);
    product.out = out.data<T>();
    product.out_row = product.n;
    product.accumulates = accumulates;
    if (addend.defined()) product.bias = addend.data<T>();
    internal::Multiply(product);
  });
}

// Does the work of MatMulInto and MatMulAdd_.
void WriteProduct(const Tensor& out, const Tensor& a, const Tensor& b,
                  bool accumulates, const char* where) {
  CheckOperands(a, b, where);
  internal::CheckSameDevice(out, a, where);
  const bool fits = a.dim() == 2 && b.dim() == 2 && out.is_contiguous() &&
                    out.dtype() == a.dtype() &&
                    out.shape() == Shape{a.size(0), b.size(1)};
  if (!fits) {
    ThrowInvalidArgument(where, ": out is ", out.Describe(), ", lhs ",
                         a.Describe(), ", rhs ", b.Describe(),
                         "; wanted matrices, out contiguous [m, n]");
  }
  internal::CheckWritable(out, where);
  if (IsWidened(a)) {
    const Tensor product = Wide(out);
    WriteProduct(product, Wide(a), Wide(b), accumulates, where);
    return out.CopyFrom(product);
  }
  OnDevice(
      where,
      [accumulates, where](const Tensor& a, const Tensor& b,
                           const Tensor& out) {
        MultiplyMatrices(a, b, out, accumulates, where);
      },
      Operand(internal::Apart(a, out)), Operand(internal::Apart(b, out)), out);
  out.BumpVersion();
}

Shape LeadingDims(const Tensor& x) {
  return Shape(x.shape().begin(), x.shape().end() - 2);
}

Tensor WithLeadingDims(const Tensor& x, const Shape& lead) {
  Shape shape = lead;
  shape.push_back(x.size(-2));
  shape.push_back(x.size(-1));
  return x.Expand(shape);
}

// The matrices at `batch`, the row-major number in `lead`.
Tensor MatrixAt(const Tensor& x, const Shape& lead, int64_t batch) {
  Tensor matrix = x;
  int64_t outer = 1;
  for (const int64_t size : lead) outer *= size;
  for (const int64_t size : lead) {
    outer /= size;
    matrix = matrix.Select(0, batch / outer);
    batch %= outer;
  }
  return matrix;
}

// result = a x b, [..., m, n] with elements, on the CPU. The leading dimensions
// of `a` and `b` broadcast to those of `result`.
void MultiplyBatches(const Tensor& a, const Tensor& b, const Tensor& result) {
  constexpr const char* kWhere = "MatMul";
  if (result.dim() == 2) {
    return MultiplyMatrices(a, b, result, false, kWhere);
  }
  if (b.dim() == 2 && a.is_contiguous() && a.numel() > 0) {
    // One tall product.
    return MultiplyMatrices(a.View({-1, a.size(-1)}), b,
                            result.View({-1, b.size(-1)}), false, kWhere);
  }
  const Shape lead = LeadingDims(result);
  const Tensor lhs = WithLeadingDims(a, lead);
  const Tensor rhs = WithLeadingDims(b, lead);
  const int64_t batches = NumElements(lead, kWhere);
  for (int64_t i = 0; i < batches; ++i) {
    MultiplyMatrices(MatrixAt(lhs, lead, i), MatrixAt(rhs, lead, i),
                     MatrixAt(result, lead, i), false, kWhere);
  }
}

void CheckLinear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  internal::CheckSameDevice(x, weight, "Linear");
  const bool fits = x.dim() >= 1 && weight.dim() == 2 &&
                    x.size(-1) == weight.size(1) &&
                    x.dtype() == weight.dtype() && IsFloating(x.dtype());
  if (!fits) {
    ThrowInvalidArgument("Linear: x is ", x.Describe(), ", weight is ",
                         weight.Describe(),
                         "; wanted x [..., in] and weight [out, in] of one of "
                         "f32, f64, f16 and bf16");
  }
  if (!bias.defined()) return;
  internal::CheckSameDevice(x, bias, "Linear");
  if (bias.shape() != Shape{weight.size(0)} || bias.dtype() != x.dtype()) {
    ThrowInvalidArgument("Linear: bias is ", bias.Describe(), "; wanted ",
                         Name(x.dtype()), "[", weight.size(0), "]");
  }
}

}  // namespace

Tensor MatMul(const Tensor& a, const Tensor& b) {
  CheckOperands(a, b, "MatMul");
  Shape lead;
  if (!TryBroadcast(LeadingDims(a), LeadingDims(b), &lead)) {
    ThrowInvalidArgument("MatMul: lhs is ", ShapeText(a.shape()), ", rhs is ",
                         ShapeText(b.shape()), "; leading sizes ",
                         ShapeText(LeadingDims(a)), " and ",
                         ShapeText(LeadingDims(b)), " do not broadcast");
  }
  if (IsWidened(a)) return MatMul(Wide(a), Wide(b)).To(a.dtype());
  Shape shape = lead;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  Tensor result = Tensor::Empty(shape, a.dtype(), a.device());
  if (result.numel() == 0) return result;  // However many batches.
  OnDevice("MatMul", MultiplyBatches, Operand(a), Operand(b), result);
  return result;
}

void MatMulInto(const Tensor& out, const Tensor& a, const Tensor& b) {
  WriteProduct(out, a, b, false, "MatMulInto");
}

void MatMulAdd_(const Tensor& out, const Tensor& a, const Tensor& b) {
  WriteProduct(out, a, b, true, "MatMulAdd_");
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  CheckLinear(x, weight, bias);
  if (IsWidened(x)) {
    return Linear(Wide(x), Wide(weight), Wide(bias)).To(x.dtype());
  }
  Shape shape = x.shape();
  shape.back() = weight.size(0);
  Tensor result = Tensor::Empty(shape, x.dtype(), x.device());
  if (result.numel() == 0) return result;
  const Tensor rows =
      Operand(x.Reshape({result.numel() / shape.back(), x.size(-1)}));
  const Tensor y = result.View({-1, shape.back()});
  const auto multiply = [](const Tensor& x, const Tensor& weight,
                           const Tensor& bias, const Tensor& y) {
    MultiplyMatrices(x, weight.Transpose(0, 1), y, false, "Linear", bias);
  };
  if (bias.defined()) {
    OnDevice("Linear", multiply, rows, Operand(weight), bias, y);
  } else {
    OnDevice(
        "Linear",
        [multiply](const Tensor& x, const Tensor& weight, const Tensor& y) {
          multiply(x, weight, {}, y);
        },
        rows, Operand(weight), y);
  }
  return result;
}

}  // namespace weft
