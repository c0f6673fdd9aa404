#include "weft/autograd/ops/index.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/index.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;

SampleInput Indices(Shape shape, int64_t end) {
  return {std::move(shape), 0, static_cast<double>(end),
          SampleInput::Kind::kIndex};
}

const Op kIndexSelect("IndexSelect",
                      {{"", {{{5, 3}}, Indices({4}, 5)}, [](Inputs in) {
                          return IndexSelect(in[0], 0, in[1].value());
                        }}});

const Op kGather("Gather", {{"", {{{3, 5}}, Indices({3, 2}, 5)}, [](Inputs in) {
                               return Gather(in[0], 1, in[1].value());
                             }}});

const Op kScatterAdd(
    "ScatterAdd",
    {{"", {{{3, 5}}, Indices({3, 4}, 5), {{3, 4}}}, [](Inputs in) {
        return ScatterAdd(in[0], 1, in[1].value(), in[2]);
      }}});
const Op kIndexAdd("IndexAdd",
                   {{"", {{{5, 3}}, Indices({4}, 5), {{4, 3}}}, [](Inputs in) {
                       return IndexAdd(in[0], 0, in[1].value(), in[2]);
                     }}});

OpCase EmbeddingCase(const char* name, TableGradient gradient) {
  return {name, {{{6, 3}}, Indices({2, 4}, 6)}, [=](Inputs in) {
            return Embedding(in[0], in[1].value(), gradient);
          }};
}
const Op kEmbedding("Embedding",
                    {EmbeddingCase("dense", TableGradient::kDense),
                     EmbeddingCase("sparse", TableGradient::kSparse)});

OpCase BagCase(const char* name, BagMode mode, TableGradient gradient) {
  return {name, {{{6, 3}}, Indices({7}, 6)}, [=](Inputs in) {
            const Tensor offsets = Tensor::FromVector<int64_t>({0, 2, 2, 5})
                                       .To(in[0].value().device());
            return EmbeddingBag(in[0], in[1].value(), offsets, mode, gradient);
          }};
}
const Op kEmbeddingBag("EmbeddingBag",
                       {BagCase("sum", BagMode::kSum, TableGradient::kDense),
                        BagCase("mean", BagMode::kMean, TableGradient::kDense),
                        BagCase("sparse", BagMode::kMean,
                                TableGradient::kSparse)});

SparseRows WithoutRow(const SparseRows& sparse, int64_t row) {
  std::vector<int64_t> kept;
  const Tensor indices = sparse.indices.Contiguous();
  const std::vector<int64_t> all = indices.ToVector<int64_t>();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != row) kept.push_back(static_cast<int64_t>(i));
  }
  const Tensor places = Tensor::FromVector(kept).To(indices.device());
  return {IndexSelect(indices, 0, places),
          IndexSelect(sparse.values, 0, places), sparse.rows};
}

// Puts the gradient of the table, input 0.
void PutTable(BackwardCall& call, TableGradient wanted, SparseRows rows) {
  if (wanted == TableGradient::kSparse) {
    call.inputs[0] = std::move(rows);
    return;
  }
  const GradientDestination to = call.destination(0);
  if (!to.tensor.defined()) {
    call.inputs[0] = ToDense(rows);
    return;
  }
  if (!to.add) to.tensor.Fill(0);
  AddRows_(to.tensor, 1, rows);
  call.inputs[0] = to.tensor;
}

}  // namespace

Variable IndexSelect(const Variable& x, int64_t dim, const Tensor& index) {
  return Record(
      kIndexSelect, IndexSelect(x.value(), dim, index), {&x},
      [shape = x.shape(), dim, index = SavedTensor(index)](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor whole = Tensor::Zeros(shape, grad.dtype(), grad.device());
        IndexAdd_(whole, dim, index.Get(), grad);
        call.inputs[0] = whole;
      });
}

Variable Gather(const Variable& x, int64_t dim, const Tensor& index) {
  return Record(
      kGather, Gather(x.value(), dim, index), {&x},
      [shape = x.shape(), dim, index = SavedTensor(index)](BackwardCall& call) {
        const Tensor grad = call.output();
        const Tensor whole = Tensor::Zeros(shape, grad.dtype(), grad.device());
        ScatterAdd_(whole, dim, index.Get(), grad);
        call.inputs[0] = whole;
      });
}

Variable ScatterAdd(const Variable& x, int64_t dim, const Tensor& index,
                    const Variable& src) {
  if (internal::IsAutocasting() && x.dtype() != src.dtype()) {
    return internal::ComputeInWidest(
        [&](const Variable& sum, const Variable& addend) {
          return ScatterAdd(sum, dim, index, addend);
        },
        x, src);
  }
  const Tensor sum = x.value().Clone();
  ScatterAdd_(sum, dim, index, src.value());
  return Record(kScatterAdd, sum, {&x, &src},
                [dim, index = SavedTensor(index)](BackwardCall& call) {
                  const Tensor grad = call.output();
                  if (call.needs(0)) call.inputs[0] = grad;
                  if (call.needs(1)) {
                    call.inputs[1] = Gather(grad, dim, index.Get());
                  }
                });
}

Variable IndexAdd(const Variable& x, int64_t dim, const Tensor& index,
                  const Variable& src) {
  if (internal::IsAutocasting() && x.dtype() != src.dtype()) {
    return internal::ComputeInWidest(
        [&](const Variable& sum, const Variable& addend) {
          return IndexAdd(sum, dim, index, addend);
        },
        x, src);
  }
  const Tensor sum = x.value().Clone();
  IndexAdd_(sum, dim, index, src.value());
  return Record(kIndexAdd, sum, {&x, &src},
                [dim, index = SavedTensor(index)](BackwardCall& call) {
                  const Tensor grad = call.output();
                  if (call.needs(0)) call.inputs[0] = grad;
                  if (call.needs(1)) {
                    call.inputs[1] = IndexSelect(grad, dim, index.Get());
                  }
                });
}

Variable Embedding(const Variable& weight, const Tensor& indices,
                   TableGradient gradient, std::optional<int64_t> padding) {
  return Record(kEmbedding, Embedding(weight.value(), indices), {&weight},
                [indices = SavedTensor(indices), rows = weight.size(0),
                 gradient, padding](BackwardCall& call) {
                  SparseRows used =
                      EmbeddingBackward(call.output(), indices.Get(), rows);
                  if (padding.has_value()) used = WithoutRow(used, *padding);
                  PutTable(call, gradient, std::move(used));
                });
}

Variable EmbeddingBag(const Variable& weight, const Tensor& indices,
                      const Tensor& offsets, BagMode mode,
                      TableGradient gradient) {
  return Record(kEmbeddingBag,
                EmbeddingBag(weight.value(), indices, offsets, mode), {&weight},
                [indices = SavedTensor(indices), offsets = SavedTensor(offsets),
                 mode, rows = weight.size(0), gradient](BackwardCall& call) {
                  PutTable(call, gradient,
                           EmbeddingBagBackward(call.output(), indices.Get(),
                                                offsets.Get(), mode, rows));
                });
}

}  // namespace weft
