#include "weft/tensor/ops/embedding.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/overlap.h"

namespace weft {
namespace {

void CheckRows(const SparseRows& sparse, absl::string_view where) {
  const bool fits = sparse.indices.dim() == 1 && sparse.values.dim() == 2 &&
                    sparse.indices.dtype() == DType::kI64 &&
                    sparse.indices.numel() == sparse.values.shape()[0];
  if (!fits) {
    ThrowInvalidArgument(where, ": indices are ", sparse.indices.Describe(),
                         ", values are ", sparse.values.Describe(),
                         "; wanted i64[n] and [n, dim]");
  }
}

void CheckIndices(absl::Span<const int64_t> indices, int64_t rows,
                  absl::string_view where) {
  for (const int64_t i : indices) {
    if (i < 0 || i >= rows) {
      ThrowInvalidArgument(where, ": index ", i, " is outside of [0, ", rows,
                           ")");
    }
  }
}

// The bags of EmbeddingBag, checked.
struct Bags {
  Tensor indices;  // Contiguous.
  Tensor offsets;  // Contiguous.
  Tensor scales;   // Contiguous, or undefined.

  int64_t count() const { return offsets.numel(); }
  int64_t begin(int64_t bag) const { return offsets.data<int64_t>()[bag]; }
  int64_t end(int64_t bag) const {
    return bag + 1 < count() ? begin(bag + 1) : indices.numel();
  }
  // What the row of place `i` in `bag` is multiplied by.
  template <typename T>
  T Scale(int64_t i, int64_t bag, BagMode mode) const {
    if (scales.defined()) return scales.data<T>()[i];
    return mode == BagMode::kMean ? T(1) / static_cast<T>(end(bag) - begin(bag))
                                  : T(1);
  }
};

Bags CheckedBags(const Tensor& indices, const Tensor& offsets, BagMode mode,
                 const Tensor& scales, int64_t rows, absl::string_view where) {
  if (indices.dim() != 1 || indices.dtype() != DType::kI64 ||
      offsets.dim() != 1 || offsets.dtype() != DType::kI64) {
    ThrowInvalidArgument(where, ": indices are ", indices.Describe(),
                         ", offsets are ", offsets.Describe(),
                         "; wanted i64[n] and i64[bags]");
  }
  if (scales.defined() &&
      (scales.shape() != indices.shape() || mode != BagMode::kSum)) {
    ThrowInvalidArgument(where, ": scales are ", scales.Describe(),
                         "; wanted one for each index, and only with kSum");
  }
  Bags bags = {indices.Contiguous(), offsets.Contiguous(),
               scales.defined() ? scales.Contiguous() : Tensor()};
  CheckIndices(bags.indices.span<int64_t>(), rows, where);
  int64_t previous = 0;
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    const int64_t begin = bags.begin(bag);
    if (begin < previous || begin > indices.numel() ||
        (bag == 0 && begin != 0)) {
      ThrowInvalidArgument(where, ": offset ", begin, " of bag ", bag,
                           " is not between ", previous, " and ",
                           bag == 0 ? 0 : indices.numel());
    }
    previous = begin;
  }
  if (bags.count() == 0 && indices.numel() > 0) {
    ThrowInvalidArgument(where, ": ", indices.numel(), " indices in no bag");
  }
  return bags;
}

void CheckTable(const Tensor& weight, absl::string_view where) {
  if (weight.dim() != 2) {
    ThrowInvalidArgument(where, ": weight is ", weight.Describe(),
                         "; wanted [rows, dim]");
  }
}

void CheckBagGrad(const Tensor& grad, const Bags& bags,
                  absl::string_view where) {
  if (grad.dim() != 2 || grad.shape()[0] != bags.count()) {
    ThrowInvalidArgument(where, ": grad is ", grad.Describe(), "; wanted [",
                         bags.count(), ", dim]");
  }
}

template <typename T>
void CheckScales(const Tensor& scales, absl::string_view where) {
  if (scales.defined() && scales.dtype() != DTypeOf<T>) {
    ThrowInvalidArgument(where, ": scales are ", scales.Describe(), "; wanted ",
                         Name(DTypeOf<T>));
  }
}

// out += scale * in.
template <typename T>
void AddScaled(T* out, T scale, const T* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += scale * in[i];
}

}  // namespace

SparseRows Coalesce(const SparseRows& sparse) {
  CheckRows(sparse, "Coalesce");
  const Tensor indices = sparse.indices.Contiguous();
  const Tensor values = sparse.values.Contiguous();
  const absl::Span<const int64_t> index = indices.span<int64_t>();
  CheckIndices(index, sparse.rows, "Coalesce");
  const int64_t dim = values.shape()[1];

  // Stable, so that sums are made in one order and repeat bit by bit.
  std::vector<int64_t> order(index.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return index[a] < index[b]; });
  std::vector<int64_t> distinct;
  for (const int64_t i : order) {
    if (distinct.empty() || distinct.back() != index[i]) {
      distinct.push_back(index[i]);
    }
  }
  const int64_t n = static_cast<int64_t>(distinct.size());
  SparseRows result = {Tensor::FromVector<int64_t>(distinct),
                       Tensor::Zeros({n, dim}, values.dtype()), sparse.rows};
  VisitFloating(values.dtype(), "Coalesce", [&](auto type) {
    using T = typename decltype(type)::Type;
    int64_t row = -1;
    int64_t previous = -1;
    for (const int64_t i : order) {
      if (index[i] != previous) ++row;
      previous = index[i];
      AddScaled(result.values.data<T>() + row * dim, T(1),
                values.data<T>() + i * dim, dim);
    }
  });
  return result;
}

Tensor ToDense(const SparseRows& sparse) {
  CheckRows(sparse, "ToDense");
  Tensor result = Tensor::Zeros({sparse.rows, sparse.values.shape()[1]},
                                sparse.values.dtype());
  AddRows_(result, 1, sparse);
  return result;
}

void AddRows_(const Tensor& y, double alpha, const SparseRows& sparse) {
  CheckRows(sparse, "AddRows_");
  const bool fits = y.dim() == 2 && y.shape()[0] == sparse.rows &&
                    y.shape()[1] == sparse.values.shape()[1] &&
                    y.dtype() == sparse.values.dtype() && y.is_contiguous();
  if (!fits) {
    ThrowInvalidArgument("AddRows_: y is ", y.Describe(), ", values are ",
                         sparse.values.Describe(), " of ", sparse.rows,
                         " rows; wanted y [rows, dim], contiguous");
  }
  const Tensor indices = sparse.indices.Contiguous();
  const Tensor values = internal::Apart(sparse.values, y).Contiguous();
  CheckIndices(indices.span<int64_t>(), sparse.rows, "AddRows_");
  const int64_t dim = y.shape()[1];
  VisitFloating(y.dtype(), "AddRows_", [&](auto type) {
    using T = typename decltype(type)::Type;
    const T* in = values.data<T>();
    for (const int64_t i : indices.span<int64_t>()) {
      AddScaled(y.data<T>() + i * dim, static_cast<T>(alpha), in, dim);
      in += dim;
    }
  });
  y.BumpVersion();
}

Tensor Embedding(const Tensor& weight, const Tensor& indices) {
  CheckTable(weight, "Embedding");
  Shape shape = indices.shape();
  shape.push_back(weight.shape()[1]);
  return IndexSelect(weight, 0, indices.Reshape({indices.numel()})).View(shape);
}

SparseRows EmbeddingBackward(const Tensor& grad, const Tensor& indices,
                             int64_t rows) {
  Shape wanted = indices.shape();
  if (grad.dim() > 0) wanted.push_back(grad.shape().back());
  if (grad.shape() != wanted || grad.dim() == 0) {
    ThrowInvalidArgument("EmbeddingBackward: grad is ", grad.Describe(),
                         ", indices are ", indices.Describe(),
                         "; wanted [..., dim] and [...]");
  }
  return {indices.Reshape({indices.numel()}),
          grad.Reshape({indices.numel(), grad.shape().back()}), rows};
}

Tensor EmbeddingBag(const Tensor& weight, const Tensor& indices,
                    const Tensor& offsets, BagMode mode, const Tensor& scales) {
  constexpr absl::string_view kWhere = "EmbeddingBag";
  CheckTable(weight, kWhere);
  const Bags bags =
      CheckedBags(indices, offsets, mode, scales, weight.shape()[0], kWhere);
  const Tensor table = weight.Contiguous();
  const int64_t dim = weight.shape()[1];
  Tensor result = Tensor::Zeros({bags.count(), dim}, weight.dtype());
  VisitFloating(weight.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    CheckScales<T>(bags.scales, kWhere);
    const int64_t* const index = bags.indices.data<int64_t>();
    for (int64_t bag = 0; bag < bags.count(); ++bag) {
      T* const out = result.data<T>() + bag * dim;
      for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
        AddScaled(out, bags.Scale<T>(i, bag, mode),
                  table.data<T>() + index[i] * dim, dim);
      }
    }
  });
  return result;
}

SparseRows EmbeddingBagBackward(const Tensor& grad, const Tensor& indices,
                                const Tensor& offsets, BagMode mode,
                                int64_t rows, const Tensor& scales) {
  constexpr absl::string_view kWhere = "EmbeddingBagBackward";
  const Bags bags = CheckedBags(indices, offsets, mode, scales, rows, kWhere);
  CheckBagGrad(grad, bags, kWhere);
  const Tensor source = grad.Contiguous();
  const int64_t dim = grad.shape()[1];
  const Tensor values =
      Tensor::Zeros({bags.indices.numel(), dim}, grad.dtype());
  VisitFloating(grad.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    CheckScales<T>(bags.scales, kWhere);
    for (int64_t bag = 0; bag < bags.count(); ++bag) {
      for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
        AddScaled(values.data<T>() + i * dim, bags.Scale<T>(i, bag, mode),
                  source.data<T>() + bag * dim, dim);
      }
    }
  });
  return {bags.indices, values, rows};
}

Tensor EmbeddingBagBackwardScales(const Tensor& grad, const Tensor& weight,
                                  const Tensor& indices,
                                  const Tensor& offsets) {
  constexpr absl::string_view kWhere = "EmbeddingBagBackwardScales";
  CheckTable(weight, kWhere);
  const Bags bags = CheckedBags(indices, offsets, BagMode::kSum, {},
                                weight.shape()[0], kWhere);
  CheckBagGrad(grad, bags, kWhere);
  const int64_t dim = weight.shape()[1];
  if (grad.shape()[1] != dim || grad.dtype() != weight.dtype()) {
    ThrowInvalidArgument(kWhere, ": grad is ", grad.Describe(), ", weight is ",
                         weight.Describe());
  }
  const Tensor source = grad.Contiguous();
  const Tensor table = weight.Contiguous();
  const Tensor result = Tensor::Zeros({bags.indices.numel()}, grad.dtype());
  VisitFloating(grad.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    const int64_t* const index = bags.indices.data<int64_t>();
    for (int64_t bag = 0; bag < bags.count(); ++bag) {
      const T* const g = source.data<T>() + bag * dim;
      for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
        const T* const row = table.data<T>() + index[i] * dim;
        result.data<T>()[i] = std::inner_product(g, g + dim, row, T(0));
      }
    }
  });
  return result;
}

}  // namespace weft
