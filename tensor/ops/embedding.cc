#include "weft/tensor/ops/embedding.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/overlap.h"

namespace weft {
namespace {

using internal::CheckSameDevice;
using internal::IsHalf;
using internal::OnDevice;
using internal::Operation;
using internal::Wide;

void CheckRows(const SparseRows& sparse, const char* where) {
  const bool fits = sparse.indices.dim() == 1 && sparse.values.dim() == 2 &&
                    sparse.indices.dtype() == DType::kI64 &&
                    sparse.indices.numel() == sparse.values.shape()[0];
  if (!fits) {
    ThrowInvalidArgument(where, ": indices are ", sparse.indices.Describe(),
                         ", values are ", sparse.values.Describe(),
                         "; wanted i64[n] and [n, dim]");
  }
  CheckSameDevice(sparse.indices, sparse.values, where);
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

// The bags of EmbeddingBag, of contiguous tensors on the CPU.
struct Bags {
  const Tensor& indices;
  const Tensor& offsets;
  const Tensor* scales;  // Or null.

  int64_t count() const { return offsets.numel(); }
  int64_t begin(int64_t bag) const { return offsets.data<int64_t>()[bag]; }
  int64_t end(int64_t bag) const {
    return bag + 1 < count() ? begin(bag + 1) : indices.numel();
  }
  // What the row of place `i` in `bag` is multiplied by.
  template <typename T>
  T Scale(int64_t i, int64_t bag, BagMode mode) const {
    if (scales != nullptr) return scales->data<T>()[i];
    return mode == BagMode::kMean ? T(1) / static_cast<T>(end(bag) - begin(bag))
                                  : T(1);
  }
};

// The tensors of bags, contiguous. Their values a device sees as it runs.
struct BagTensors {
  Tensor indices;
  Tensor offsets;
  Tensor scales;  // Or undefined.
};

BagTensors CheckedBags(const Tensor& indices, const Tensor& offsets,
                       BagMode mode, const Tensor& scales, const char* where) {
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
  CheckSameDevice(indices, offsets, where);
  if (scales.defined()) CheckSameDevice(indices, scales, where);
  if (offsets.numel() == 0 && indices.numel() > 0) {
    ThrowInvalidArgument(where, ": ", indices.numel(), " indices in no bag");
  }
  return {indices.Contiguous(), offsets.Contiguous(),
          scales.defined() ? scales.Contiguous() : Tensor()};
}

void CheckBagValues(const Bags& bags, int64_t rows, absl::string_view where) {
  CheckIndices(bags.indices.span<int64_t>(), rows, where);
  const int64_t n = bags.indices.numel();
  int64_t previous = 0;
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    const int64_t begin = bags.begin(bag);
    if (begin < previous || begin > n || (bag == 0 && begin != 0)) {
      ThrowInvalidArgument(where, ": offset ", begin, " of bag ", bag,
                           " is not between ", previous, " and ",
                           bag == 0 ? 0 : n);
    }
    previous = begin;
  }
}

// Calls function(x, bags, y) where they lie, y being written. A device gets x,
// indices, offsets, scales if there are any, and y.
template <typename Fn>
void OnBags(const Operation& operation, const Tensor& x, const BagTensors& bags,
            const Tensor& y, Fn function) {
  if (bags.scales.defined()) {
    return OnDevice(
        operation,
        [function](const Tensor& x, const Tensor& indices,
                   const Tensor& offsets, const Tensor& scales,
                   const Tensor& y) {
          function(x, Bags{indices, offsets, &scales}, y);
        },
        x, bags.indices, bags.offsets, bags.scales, y);
  }
  OnDevice(
      operation,
      [function](const Tensor& x, const Tensor& indices, const Tensor& offsets,
                 const Tensor& y) {
        function(x, Bags{indices, offsets, nullptr}, y);
      },
      x, bags.indices, bags.offsets, y);
}

void CheckTable(const Tensor& weight, absl::string_view where) {
  if (weight.dim() != 2) {
    ThrowInvalidArgument(where, ": weight is ", weight.Describe(),
                         "; wanted [rows, dim]");
  }
}

void CheckBagGrad(const Tensor& grad, const BagTensors& bags,
                  const char* where) {
  if (grad.dim() != 2 || grad.shape()[0] != bags.offsets.numel()) {
    ThrowInvalidArgument(where, ": grad is ", grad.Describe(), "; wanted [",
                         bags.offsets.numel(), ", dim]");
  }
  CheckSameDevice(grad, bags.indices, where);
}

void CheckScales(const Tensor& scales, DType dtype, absl::string_view where) {
  if (scales.defined() && scales.dtype() != dtype) {
    ThrowInvalidArgument(where, ": scales are ", scales.Describe(), "; wanted ",
                         Name(dtype));
  }
}

// out += scale * in.
template <typename T>
void AddScaled(T* out, T scale, const T* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += scale * in[i];
}

double IsMean(BagMode mode) { return mode == BagMode::kMean ? 1 : 0; }

// y[bag] += the rows of table [rows, dim] that are in it, scaled.
template <typename T>
void SumBags(const Tensor& table, const Bags& bags, BagMode mode,
             const Tensor& y) {
  const int64_t dim = table.shape()[1];
  const int64_t* const index = bags.indices.data<int64_t>();
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    T* const out = y.data<T>() + bag * dim;
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      AddScaled(out, bags.Scale<T>(i, bag, mode),
                table.data<T>() + index[i] * dim, dim);
    }
  }
}

// y[i] += grad [bags, dim] of the bag that holds place i, scaled.
template <typename T>
void SpreadBags(const Tensor& grad, const Bags& bags, BagMode mode,
                const Tensor& y) {
  const int64_t dim = grad.shape()[1];
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      AddScaled(y.data<T>() + i * dim, bags.Scale<T>(i, bag, mode),
                grad.data<T>() + bag * dim, dim);
    }
  }
}

// y[i] = the product of place i's row and its bag's gradient.
template <typename T>
void DotBags(const Tensor& grad, const Tensor& table, const Bags& bags,
             const Tensor& y) {
  const int64_t dim = table.shape()[1];
  const int64_t* const index = bags.indices.data<int64_t>();
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    const T* const g = grad.data<T>() + bag * dim;
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const T* const row = table.data<T>() + index[i] * dim;
      y.data<T>()[i] = std::inner_product(g, g + dim, row, T(0));
    }
  }
}

// For a table of f16 or bf16: UsedRows gives the rows at `indices` in f32, so
// that the whole table need not be converted; PlacesOf gives the place of each
// among them.
Tensor UsedRows(const Tensor& weight, const Tensor& indices) {
  return Wide(IndexSelect(weight, 0, indices));
}
Tensor PlacesOf(const Tensor& indices) {
  return Tensor::Arange(indices.numel()).To(indices.device());
}

}  // namespace

SparseRows Coalesce(const SparseRows& sparse) {
  CheckRows(sparse, "Coalesce");
  if (IsHalf(sparse.values)) {
    const SparseRows sums =
        Coalesce({sparse.indices, Wide(sparse.values), sparse.rows});
    return {sums.indices, sums.values.To(sparse.values.dtype()), sums.rows};
  }
  const Device device = sparse.values.device();
  if (!device.is_cpu()) {
    const SparseRows found =
        Coalesce({sparse.indices.To(Device::Cpu()),
                  sparse.values.To(Device::Cpu()), sparse.rows});
    return {found.indices.To(device), found.values.To(device), found.rows};
  }
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
                                sparse.values.dtype(), sparse.values.device());
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
  CheckSameDevice(y, sparse.values, "AddRows_");
  if (IsHalf(y)) {
    return internal::UpdateInF32(y, "AddRows_", [&](const Tensor& wide) {
      AddRows_(wide, alpha, {sparse.indices, Wide(sparse.values), sparse.rows});
    });
  }
  VisitFloating(y.dtype(), "AddRows_", [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        {"AddRows_", {alpha}},
        [alpha](const Tensor& y, const Tensor& indices, const Tensor& values) {
          CheckIndices(indices.span<int64_t>(), y.shape()[0], "AddRows_");
          const int64_t dim = y.shape()[1];
          const T* in = values.data<T>();
          for (const int64_t i : indices.span<int64_t>()) {
            AddScaled(y.data<T>() + i * dim, static_cast<T>(alpha), in, dim);
            in += dim;
          }
        },
        y, sparse.indices.Contiguous(),
        internal::Apart(sparse.values, y).Contiguous());
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
  CheckSameDevice(grad, indices, "EmbeddingBackward");
  return {indices.Reshape({indices.numel()}),
          grad.Reshape({indices.numel(), grad.shape().back()}), rows};
}

Tensor EmbeddingBag(const Tensor& weight, const Tensor& indices,
                    const Tensor& offsets, BagMode mode, const Tensor& scales) {
  static constexpr const char* kWhere = "EmbeddingBag";
  CheckTable(weight, kWhere);
  const BagTensors bags = CheckedBags(indices, offsets, mode, scales, kWhere);
  CheckSameDevice(weight, indices, kWhere);
  if (IsHalf(weight)) {
    CheckScales(scales, weight.dtype(), kWhere);
    return EmbeddingBag(UsedRows(weight, indices), PlacesOf(indices), offsets,
                        mode, Wide(scales))
        .To(weight.dtype());
  }
  Tensor result = Tensor::Zeros({offsets.numel(), weight.shape()[1]},
                                weight.dtype(), weight.device());
  VisitFloating(weight.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    CheckScales(bags.scales, DTypeOf<T>, kWhere);
    OnBags({kWhere, {IsMean(mode)}}, weight.Contiguous(), bags, result,
           [mode](const Tensor& table, const Bags& bags, const Tensor& y) {
             CheckBagValues(bags, table.shape()[0], kWhere);
             SumBags<T>(table, bags, mode, y);
           });
  });
  return result;
}

SparseRows EmbeddingBagBackward(const Tensor& grad, const Tensor& indices,
                                const Tensor& offsets, BagMode mode,
                                int64_t rows, const Tensor& scales) {
  static constexpr const char* kWhere = "EmbeddingBagBackward";
  const BagTensors bags = CheckedBags(indices, offsets, mode, scales, kWhere);
  CheckBagGrad(grad, bags, kWhere);
  if (IsHalf(grad)) {
    CheckScales(scales, grad.dtype(), kWhere);
    SparseRows wide = EmbeddingBagBackward(Wide(grad), indices, offsets, mode,
                                           rows, Wide(scales));
    return {wide.indices, wide.values.To(grad.dtype()), rows};
  }
  const Tensor values = Tensor::Zeros({indices.numel(), grad.shape()[1]},
                                      grad.dtype(), grad.device());
  VisitFloating(grad.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    CheckScales(bags.scales, DTypeOf<T>, kWhere);
    OnBags({kWhere, {IsMean(mode), static_cast<double>(rows)}},
           grad.Contiguous(), bags, values,
           [mode, rows](const Tensor& grad, const Bags& bags, const Tensor& y) {
             CheckBagValues(bags, rows, kWhere);
             SpreadBags<T>(grad, bags, mode, y);
           });
  });
  return {bags.indices, values, rows};
}

Tensor EmbeddingBagBackwardScales(const Tensor& grad, const Tensor& weight,
                                  const Tensor& indices,
                                  const Tensor& offsets) {
  static constexpr const char* kWhere = "EmbeddingBagBackwardScales";
  CheckTable(weight, kWhere);
  const BagTensors bags =
      CheckedBags(indices, offsets, BagMode::kSum, {}, kWhere);
  CheckBagGrad(grad, bags, kWhere);
  CheckSameDevice(grad, weight, kWhere);
  const int64_t dim = weight.shape()[1];
  if (grad.shape()[1] != dim || grad.dtype() != weight.dtype()) {
    ThrowInvalidArgument(kWhere, ": grad is ", grad.Describe(), ", weight is ",
                         weight.Describe());
  }
  if (IsHalf(grad)) {
    return EmbeddingBagBackwardScales(Wide(grad), UsedRows(weight, indices),
                                      PlacesOf(indices), offsets)
        .To(grad.dtype());
  }
  const Tensor result =
      Tensor::Zeros({indices.numel()}, grad.dtype(), grad.device());
  VisitFloating(grad.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        kWhere,
        [](const Tensor& grad, const Tensor& table, const Tensor& indices,
           const Tensor& offsets, const Tensor& y) {
          const Bags bags = {indices, offsets, nullptr};
          CheckBagValues(bags, table.shape()[0], kWhere);
          DotBags<T>(grad, table, bags, y);
        },
        grad.Contiguous(), weight.Contiguous(), bags.indices, bags.offsets,
        result);
  });
  return result;
}

}  // namespace weft
