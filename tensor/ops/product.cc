#include "weft/tensor/ops/product.h"

#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "weft/base/error.h"
#include "weft/tensor/ops/onednn.h"
#include "weft/tensor/vectorize.h"

namespace weft::internal {
namespace {

// Below this many multiplications our own loops beat a call of oneDNN.
constexpr int64_t kSmallProduct = 2048;

// Whether sgemm is the faster of oneDNN's two (2.6, AVX-512, one thread): it is
// where b lies by rows, by 4 to 20 %, for short sums, and for products so small
// that finding a primitive counts. But the rows of a transposed `a` that begin
// a multiple of 4 KiB apart share few places of the cache, which sgemm's copy
// of many of them misses.
bool IsForSgemm(const Product<float>& p) {
  constexpr int64_t kSmallForPrimitive = int64_t{1} << 15;
  constexpr int64_t kFloatsOf4KiB = 1024;
  constexpr int64_t kManyRows = 256;
  constexpr int64_t kShort = 64;
  if (p.m * p.n * p.k <= kSmallForPrimitive || p.k < kShort) return true;
  if (p.b.column != 1) return false;
  const bool misses =
      p.a.column != 1 && p.a.column % kFloatsOf4KiB == 0 && p.k > kManyRows;
  return !misses;
}

// What `out` holds before the products are added to it.
template <typename T>
void Start(const Product<T>& p) {
  if (p.accumulates) return;
  for (int64_t i = 0; i < p.m; ++i) {
    T* const row = p.out + i * p.out_row;
    if (p.bias != nullptr) {
      std::copy_n(p.bias, p.n, row);
    } else {
      std::fill_n(row, p.n, T(0));
    }
  }
}

// out += a * b. Four rows of b at a time, so that `out` is read and written a
// quarter as often.
template <typename T>
WEFT_VECTORIZE void MultiplyRows(const Product<T>& p) {
  const Matrix<T> a = p.a;
  const Matrix<T> b = p.b;
  const int64_t n = p.n;
  for (int64_t i = 0; i < p.m; ++i) {
    T* const out = p.out + i * p.out_row;
    const T* const x = a.first + i * a.row;
    int64_t q = 0;
    for (; q + 4 <= p.k; q += 4) {
      const T x0 = x[q * a.column];
      const T x1 = x[(q + 1) * a.column];
      const T x2 = x[(q + 2) * a.column];
      const T x3 = x[(q + 3) * a.column];
      const T* const y = b.first + q * b.row;
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
    for (; q < p.k; ++q) {
      const T value = x[q * a.column];
      const T* const y = b.first + q * b.row;
      for (int64_t j = 0; j < n; ++j) out[j] += value * y[j * b.column];
    }
  }
}

void CheckStatus(dnnl::status status) {
  if (status == dnnl::status::success) return;
  throw Error(absl::InternalError(absl::StrCat(
      "MatMul: oneDNN ended with status ", static_cast<int>(status))));
}

// A matrix as BLAS names it: by rows, or its transpose.
struct BlasMatrix {
  char transposed;
  int64_t stride;
};

BlasMatrix BlasOf(const Matrix<float>& matrix) {
  if (matrix.column == 1) return {'N', matrix.row};
  return {'T', matrix.column};
}

void MultiplyBySgemm(const Product<float>& p) {
  OneDnn::ForThisThread();
  const BlasMatrix a = BlasOf(p.a);
  const BlasMatrix b = BlasOf(p.b);
  const bool has_bias = p.bias != nullptr;
  if (has_bias) Start(p);
  const float kept = p.accumulates || has_bias ? 1.0f : 0.0f;
  CheckStatus(dnnl::sgemm(a.transposed, b.transposed, p.m, p.n, p.k, 1.0f,
                          p.a.first, a.stride, p.b.first, b.stride, kept, p.out,
                          p.out_row));
}

// A product of one size and layout, and the operands of its next run.
struct ProductEntry {
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> operands;
};

template <typename T>
dnnl::memory OperandOf(int64_t rows, int64_t columns, int64_t row,
                       int64_t column, const dnnl::engine& engine) {
  return dnnl::memory({{rows, columns},
                       std::is_same_v<T, float> ? dnnl::memory::data_type::f32
                                                : dnnl::memory::data_type::bf16,
                       dnnl::memory::dims{row, column}},
                      engine, nullptr);
}

template <typename T>
ProductEntry MakeEntry(const Product<T>& p, const dnnl::engine& engine) {
  ProductEntry entry;
  const dnnl::memory a = OperandOf<T>(p.m, p.k, p.a.row, p.a.column, engine);
  const dnnl::memory b = OperandOf<T>(p.k, p.n, p.b.row, p.b.column, engine);
  const dnnl::memory out = OperandOf<T>(p.m, p.n, p.out_row, 1, engine);
  entry.operands = {
      {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, out}};
  dnnl::primitive_attr attributes;
  if (p.accumulates) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  dnnl::matmul::desc wanted(a.get_desc(), b.get_desc(), out.get_desc());
  if (p.bias != nullptr) {
    const dnnl::memory bias = OperandOf<T>(1, p.n, p.n, 1, engine);
    entry.operands.emplace(DNNL_ARG_BIAS, bias);
    wanted = dnnl::matmul::desc(a.get_desc(), b.get_desc(), bias.get_desc(),
                                out.get_desc());
  }
  entry.primitive =
      dnnl::matmul(dnnl::matmul::primitive_desc(wanted, attributes, engine));
  return entry;
}

// f32 or bf16.
template <typename T>
void MultiplyByPrimitive(const Product<T>& p) {
  thread_local PrimitiveCache<ProductEntry> cache;
  OneDnn& onednn = OneDnn::ForThisThread();
  const PrimitiveKey key = {p.m,
                            p.n,
                            p.k,
                            p.a.row,
                            p.a.column,
                            p.b.row,
                            p.b.column,
                            p.out_row,
                            p.accumulates,
                            p.bias != nullptr,
                            IntraOpThreads()};
  try {
    ProductEntry& entry =
        cache.FindOrMake(key, [&] { return MakeEntry(p, onednn.engine); });
    const auto set = [&](int argument, const T* memory) {
      entry.operands[argument].set_data_handle(const_cast<T*>(memory));
    };
    set(DNNL_ARG_SRC, p.a.first);
    set(DNNL_ARG_WEIGHTS, p.b.first);
    set(DNNL_ARG_DST, p.out);
    if (p.bias != nullptr) set(DNNL_ARG_BIAS, p.bias);
    entry.primitive.execute(onednn.stream, entry.operands);
    onednn.stream.wait();
  } catch (const dnnl::error& error) {
    CheckStatus(static_cast<dnnl::status>(error.status));
  }
}

// A row or column of one element has no stride of its own: BLAS wants one that
// it can read.
template <typename T>
Matrix<T> Normalized(const Matrix<T>& x, int64_t rows, int64_t columns) {
  if (columns == 1 && x.row != 1) {
    return {x.first, std::max<int64_t>(x.row, 1), 1};
  }
  if (rows == 1 && x.column == 1) {
    return {x.first, std::max<int64_t>(columns, 1), 1};
  }
  return x;
}

template <typename T>
Product<T> Normalized(Product<T> p) {
  p.a = Normalized(p.a, p.m, p.k);
  p.b = Normalized(p.b, p.k, p.n);
  return p;
}

}  // namespace

bool IsReadable(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  return (column == 1 && row >= std::max<int64_t>(columns, 1)) ||
         (row == 1 && column >= std::max<int64_t>(rows, 1));
}

void Multiply(const Product<float>& product) {
  const Product<float> p = Normalized(product);
  const int64_t products = p.m * p.n * p.k;
  if (products <= kSmallProduct) {
    Start(p);
    MultiplyRows(p);
  } else if (IsForSgemm(p)) {
    MultiplyBySgemm(p);
  } else {
    MultiplyByPrimitive(p);
  }
}

void Multiply(const Product<double>& product) {
  const Product<double> p = Normalized(product);
  Start(p);
  MultiplyRows(p);
}

void Multiply(const Product<BFloat16>& product) {
  const Product<BFloat16> p = Normalized(product);
  if (p.k == 0) return Start(p);
  MultiplyByPrimitive(p);
}

bool MultipliesBFloat16() {
  // Each set of instructions is a mask that holds those that it includes.
  constexpr unsigned kWanted =
      static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool has_it =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kWanted) ==
      kWanted;
  return has_it;
}

}  // namespace weft::internal
