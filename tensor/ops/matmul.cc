#include "weft/tensor/ops/matmul.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "weft/base/error.h"
#include "weft/tensor/ops/onednn.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

// Below this many multiplications our own loops beat a call of oneDNN.
constexpr int64_t kSmallProduct = 2048;

// Below this, sgemm, which needs no primitive to be made or found; above, the
// matmul primitive, whose kernels are up to half as fast again.
constexpr int64_t kMediumProduct = int64_t{1} << 18;

// A matrix in memory: element (i, j) at i * row + j * column.
template <typename T>
struct Matrix {
  T* first;
  int64_t row;
  int64_t column;
};

// c [m, n], of row stride n, += a [m, k] * b [k, n]. Four rows of b at a time,
// so that c is read and written a quarter as often.
template <typename T>
WEFT_VECTORIZE void MultiplyRows(const Matrix<const T>& a,
                                 const Matrix<const T>& b, T* c, int64_t m,
                                 int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; ++i) {
    T* const out = c + i * n;
    const T* const x = a.first + i * a.row;
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      const T x0 = x[p * a.column];
      const T x1 = x[(p + 1) * a.column];
      const T x2 = x[(p + 2) * a.column];
      const T x3 = x[(p + 3) * a.column];
      const T* const y = b.first + p * b.row;
      if (b.column == 1) {
        for (int64_t j = 0; j < n; ++j) {
          out[j] += x0 * y[j] + x1 * y[j + b.row] + x2 * y[j + 2 * b.row] +
                    x3 * y[j + 3 * b.row];
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          const T* const z = y + j * b.column;
          out[j] +=
              x0 * z[0] + x1 * z[b.row] + x2 * z[2 * b.row] + x3 * z[3 * b.row];
        }
      }
    }
    for (; p < k; ++p) {
      const T value = x[p * a.column];
      const T* const y = b.first + p * b.row;
      for (int64_t j = 0; j < n; ++j) out[j] += value * y[j * b.column];
    }
  }
}

// Whether BLAS can read it, as it lies or transposed.
bool IsBlasMatrix(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  return (column == 1 && row >= std::max<int64_t>(columns, 1)) ||
         (row == 1 && column >= std::max<int64_t>(rows, 1));
}

// One product: out [m, n] contiguous (+)= a [m, k] * b [k, n].
struct Product {
  int64_t m;
  int64_t n;
  int64_t k;
};

void Multiply(const Product& size, const Matrix<const double>& a,
              const Matrix<const double>& b, double* out, bool accumulate) {
  if (!accumulate) std::fill_n(out, size.m * size.n, 0.0);
  MultiplyRows(a, b, out, size.m, size.n, size.k);
}

void CheckStatus(dnnl::status status) {
  if (status == dnnl::status::success) return;
  throw Error(absl::InternalError(absl::StrCat(
      "MatMul: oneDNN ended with status ", static_cast<int>(status))));
}

void MultiplyBySgemm(const Product& size, const Matrix<const float>& a,
                     const Matrix<const float>& b, float* out,
                     bool accumulate) {
  internal::OneDnn::ForThisThread();
  const bool a_transposed = a.column != 1;
  const bool b_transposed = b.column != 1;
  CheckStatus(dnnl::sgemm(
      a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', size.m, size.n,
      size.k, 1.0f, a.first, a_transposed ? a.column : a.row, b.first,
      b_transposed ? b.column : b.row, accumulate ? 1.0f : 0.0f, out, size.n));
}

// A product of one size and layout, and the operands of its next run.
struct ProductEntry {
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> operands;
};

dnnl::memory OperandOf(const Matrix<const float>& matrix, int64_t rows,
                       int64_t columns, const dnnl::engine& engine) {
  return dnnl::memory({{rows, columns},
                       dnnl::memory::data_type::f32,
                       dnnl::memory::dims{matrix.row, matrix.column}},
                      engine, nullptr);
}

ProductEntry MakeEntry(const Product& size, const Matrix<const float>& a,
                       const Matrix<const float>& b, bool accumulate,
                       const dnnl::engine& engine) {
  ProductEntry entry;
  const dnnl::memory lhs = OperandOf(a, size.m, size.k, engine);
  const dnnl::memory rhs = OperandOf(b, size.k, size.n, engine);
  const dnnl::memory out =
      OperandOf({nullptr, size.n, 1}, size.m, size.n, engine);
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  entry.primitive = dnnl::matmul(dnnl::matmul::primitive_desc(
      dnnl::matmul::desc(lhs.get_desc(), rhs.get_desc(), out.get_desc()),
      attributes, engine));
  entry.operands = {
      {DNNL_ARG_SRC, lhs}, {DNNL_ARG_WEIGHTS, rhs}, {DNNL_ARG_DST, out}};
  return entry;
}

void MultiplyByPrimitive(const Product& size, const Matrix<const float>& a,
                         const Matrix<const float>& b, float* out,
                         bool accumulate) {
  thread_local internal::PrimitiveCache<ProductEntry> cache;
  internal::OneDnn& onednn = internal::OneDnn::ForThisThread();
  const internal::PrimitiveKey key = {
      size.m,   size.n,     size.k,
      a.row,    a.column,   b.row,
      b.column, accumulate, internal::IntraOpThreads()};
  try {
    ProductEntry& entry = cache.FindOrMake(
        key, [&] { return MakeEntry(size, a, b, accumulate, onednn.engine); });
    const auto set = [&](int argument, const float* memory) {
      entry.operands[argument].set_data_handle(const_cast<float*>(memory));
    };
    set(DNNL_ARG_SRC, a.first);
    set(DNNL_ARG_WEIGHTS, b.first);
    set(DNNL_ARG_DST, out);
    entry.primitive.execute(onednn.stream, entry.operands);
    onednn.stream.wait();
  } catch (const dnnl::error& error) {
    CheckStatus(static_cast<dnnl::status>(error.status));
  }
}

void Multiply(const Product& size, const Matrix<const float>& a,
              const Matrix<const float>& b, float* out, bool accumulate) {
  const int64_t products = size.m * size.n * size.k;
  if (products <= kSmallProduct) {
    if (!accumulate) std::fill_n(out, size.m * size.n, 0.0f);
    MultiplyRows(a, b, out, size.m, size.n, size.k);
  } else if (products <= kMediumProduct) {
    MultiplyBySgemm(size, a, b, out, accumulate);
  } else {
    MultiplyByPrimitive(size, a, b, out, accumulate);
  }
}

// The last two dimensions as BLAS can read them; copied if they cannot be.
Tensor Readable(const Tensor& x) {
  const int d = x.dim();
  return IsBlasMatrix(x.size(-2), x.size(-1), x.strides()[d - 2],
                      x.strides()[d - 1])
             ? x
             : x.Clone();
}

template <typename T>
Matrix<const T> MatrixOf(const Tensor& x) {
  const int d = x.dim();
  // A row or column of one element has no stride of its own.
  const int64_t row = x.strides()[d - 2];
  const int64_t column = x.strides()[d - 1];
  const int64_t rows = x.size(-2);
  const int64_t columns = x.size(-1);
  if (columns == 1 && row != 1) {
    return {x.data<T>(), std::max<int64_t>(row, 1), 1};
  }
  if (rows == 1 && column == 1) {
    return {x.data<T>(), std::max<int64_t>(columns, 1), 1};
  }
  return {x.data<T>(), row, column};
}

void CheckOperands(const Tensor& a, const Tensor& b, const char* where) {
  if (a.dtype() != b.dtype()) {
    ThrowInvalidArgument(where, ": lhs is ", a.Describe(), ", rhs is ",
                         b.Describe(), "; dtypes differ");
  }
  if (a.dim() < 2 || b.dim() < 2) {
    ThrowInvalidArgument(where, ": lhs is ", ShapeText(a.shape()), ", rhs is ",
                         ShapeText(b.shape()),
                         "; wanted two dimensions or more");
  }
  if (a.size(-1) != b.size(-2)) {
    ThrowInvalidArgument(where, ": lhs is ", ShapeText(a.shape()), ", rhs is ",
                         ShapeText(b.shape()), "; inner sizes ", a.size(-1),
                         " and ", b.size(-2), " differ");
  }
}

void MultiplyMatrices(const Tensor& a, const Tensor& b, const Tensor& out,
                      bool accumulate, const char* where) {
  if (out.numel() == 0) return;
  const Product size = {out.size(-2), out.size(-1), a.size(-1)};
  const Tensor lhs = Readable(a);
  const Tensor rhs = Readable(b);
  VisitFloating(a.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    T* const c = out.data<T>();
    if (size.k == 0) {
      if (!accumulate) std::fill_n(c, size.m * size.n, T{0});
      return;
    }
    Multiply(size, MatrixOf<T>(lhs), MatrixOf<T>(rhs), c, accumulate);
  });
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

void CheckLinear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool fits = x.dim() >= 1 && weight.dim() == 2 &&
                    x.size(-1) == weight.size(1) && x.dtype() == weight.dtype();
  if (!fits) {
    ThrowInvalidArgument("Linear: x is ", x.Describe(), ", weight is ",
                         weight.Describe(),
                         "; wanted x [..., in] and weight [out, in]");
  }
  if (!bias.defined()) return;
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
  Shape shape = lead;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  Tensor result = Tensor::Empty(shape, a.dtype());
  if (lead.empty()) {
    MultiplyMatrices(a, b, result, false, "MatMul");
    return result;
  }
  if (b.dim() == 2 && a.is_contiguous() && a.numel() > 0 &&
      result.numel() > 0) {  // One tall product.
    MultiplyMatrices(a.View({-1, a.size(-1)}), b, result.View({-1, b.size(-1)}),
                     false, "MatMul");
    return result;
  }
  const Tensor lhs = WithLeadingDims(a, lead);
  const Tensor rhs = WithLeadingDims(b, lead);
  const int64_t batches = NumElements(lead, "MatMul");
  for (int64_t i = 0; i < batches; ++i) {
    MultiplyMatrices(MatrixAt(lhs, lead, i), MatrixAt(rhs, lead, i),
                     MatrixAt(result, lead, i), false, "MatMul");
  }
  return result;
}

void MatMulAdd_(const Tensor& out, const Tensor& a, const Tensor& b) {
  CheckOperands(a, b, "MatMulAdd_");
  const bool fits = a.dim() == 2 && b.dim() == 2 && out.is_contiguous() &&
                    out.dtype() == a.dtype() &&
                    out.shape() == Shape{a.size(0), b.size(1)};
  if (!fits) {
    ThrowInvalidArgument("MatMulAdd_: out is ", out.Describe(), ", lhs ",
                         a.Describe(), ", rhs ", b.Describe(),
                         "; wanted matrices, out contiguous [m, n]");
  }
  internal::CheckWritable(out, "MatMulAdd_");
  MultiplyMatrices(internal::Apart(a, out), internal::Apart(b, out), out, true,
                   "MatMulAdd_");
  out.BumpVersion();
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  CheckLinear(x, weight, bias);
  Shape shape = x.shape();
  shape.back() = weight.size(0);
  Tensor result = Tensor::Empty(shape, x.dtype());
  if (result.numel() == 0) return result;
  if (bias.defined()) result.CopyFrom(bias);
  MultiplyMatrices(x.Reshape({result.numel() / shape.back(), x.size(-1)}),
                   weight.Transpose(0, 1), result.View({-1, shape.back()}),
                   bias.defined(), "Linear");
  return result;
}

}  // namespace weft
