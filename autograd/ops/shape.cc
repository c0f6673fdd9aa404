#include "weft/autograd/ops/shape.h"

#include <utility>
#include <vector>

#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/reduce.h"

namespace weft {
namespace {

using Inputs = absl::Span<const Variable>;
using Case = Variable (*)(Inputs);

std::vector<OpCase> OneCase(Shape shape, Case forward) {
  return {{"", {{std::move(shape)}}, forward}};
}

const Op kReshape("Reshape", OneCase({2, 6}, [](Inputs in) {
                    return Reshape(in[0], {3, -1});
                  }));
const Op kTranspose("Transpose", OneCase({2, 3, 4}, [](Inputs in) {
                      return Transpose(in[0], 0, 2);
                    }));
const Op kPermute("Permute", OneCase({2, 3, 4}, [](Inputs in) {
                    return Permute(in[0], {2, 0, 1});
                  }));
const Op kSlice("Slice", OneCase({4, 5}, [](Inputs in) {
                  return Slice(in[0], 1, 1, 4);
                }));
const Op kSelect("Select", OneCase({4, 5}, [](Inputs in) {
                   return Select(in[0], 0, 2);
                 }));
const Op kExpand("Expand", OneCase({3, 1}, [](Inputs in) {
                   return Expand(in[0], {2, 3, 4});
                 }));
const Op kSqueeze("Squeeze", OneCase({3, 1, 2}, [](Inputs in) {
                    return Squeeze(in[0], 1);
                  }));
const Op kUnsqueeze("Unsqueeze", OneCase({3, 2}, [](Inputs in) {
                      return Unsqueeze(in[0], 1);
                    }));
const Op kConcat("Concat", {{"", {{{2, 3}}, {{2, 1}}, {{2, 2}}}, [](Inputs in) {
                               return Concat(in, 1);
                             }}});

const Op kStack("Stack", {{"", {{{2, 3}}, {{2, 3}}}, [](Inputs in) {
                             return Stack(in, 1);
                           }}});
const Op kIndex("Index", OneCase({4, 5, 3}, [](Inputs in) {
                  return Index(in[0], {Slice(1, 3), -2, Slice(1)});
                }));
const Op kTril("Tril",
               OneCase({2, 3, 4}, [](Inputs in) { return Tril(in[0], 1); }));
const Op kTriu("Triu",
               OneCase({2, 4, 3}, [](Inputs in) { return Triu(in[0], -1); }));

// An operation whose gradient is the same elements in x's shape.
Variable RecordReshaped(const Op& op, const Variable& x, Tensor y) {
  return Record(op, std::move(y), {&x},
                [shape = x.shape()](BackwardCall& call) {
                  call.inputs[0] = call.output().Reshape(shape);
                });
}

// Zeros of `shape`, and `grad` in the part that `part` views.
template <typename Part>
Tensor Embedded(const Tensor& grad, const Shape& shape, Part part) {
  const Tensor whole = Tensor::Zeros(shape, grad.dtype(), grad.device());
  part(whole).CopyFrom(grad);
  return whole;
}

}  // namespace

Variable Reshape(const Variable& x, const Shape& shape) {
  return RecordReshaped(kReshape, x, x.value().Reshape(shape));
}

Variable FlattenFrom(const Variable& x, int64_t begin) {
  return RecordReshaped(kReshape, x, x.value().FlattenFrom(begin));
}

Variable Squeeze(const Variable& x, int64_t dim) {
  return RecordReshaped(kSqueeze, x, x.value().Squeeze(dim));
}

Variable Unsqueeze(const Variable& x, int64_t dim) {
  return RecordReshaped(kUnsqueeze, x, x.value().Unsqueeze(dim));
}

Variable Transpose(const Variable& x, int64_t a, int64_t b) {
  return Record(kTranspose, x.value().Transpose(a, b), {&x},
                [a, b](BackwardCall& call) {
                  call.inputs[0] = call.output().Transpose(a, b);
                });
}

Variable Permute(const Variable& x, absl::Span<const int64_t> dims) {
  Tensor y = x.value().Permute(dims);
  Shape back(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    back[WrapDim(dims[i], x.dim(), "Permute")] = static_cast<int64_t>(i);
  }
  return Record(kPermute, std::move(y), {&x}, [back](BackwardCall& call) {
    call.inputs[0] = call.output().Permute(back);
  });
}

Variable Slice(const Variable& x, int64_t dim, int64_t begin, int64_t end) {
  return Record(kSlice, x.value().Slice(dim, begin, end), {&x},
                [shape = x.shape(), dim, begin, end](BackwardCall& call) {
                  call.inputs[0] =
                      Embedded(call.output(), shape, [=](const Tensor& whole) {
                        return whole.Slice(dim, begin, end);
                      });
                });
}

Variable Select(const Variable& x, int64_t dim, int64_t index) {
  return Record(kSelect, x.value().Select(dim, index), {&x},
                [shape = x.shape(), dim, index](BackwardCall& call) {
                  call.inputs[0] =
                      Embedded(call.output(), shape, [=](const Tensor& whole) {
                        return whole.Select(dim, index);
                      });
                });
}

Variable Expand(const Variable& x, const Shape& shape) {
  return Record(kExpand, x.value().Expand(shape), {&x},
                [shape = x.shape()](BackwardCall& call) {
                  call.inputs[0] = SumTo(call.output(), shape);
                });
}

Variable Concat(absl::Span<const Variable> parts, int64_t dim) {
  if (internal::IsAutocasting()) {
    const std::vector<Variable> cast = internal::InWidest(parts);
    const AutocastScope off(std::nullopt);
    return Concat(cast, dim);
  }
  std::vector<Tensor> values;
  std::vector<const Variable*> inputs;
  std::vector<int64_t> sizes;
  for (const Variable& part : parts) {
    values.push_back(part.value());
    inputs.push_back(&part);
  }
  Tensor joined = Concat(values, dim);
  for (const Tensor& value : values) sizes.push_back(value.size(dim));
  return Record(kConcat, std::move(joined), inputs,
                [sizes = std::move(sizes), dim](BackwardCall& call) {
                  const Tensor grad = call.output();
                  int64_t begin = 0;
                  for (size_t i = 0; i < sizes.size(); ++i) {
                    const int64_t end = begin + sizes[i];
                    call.inputs[i] = grad.Slice(dim, begin, end);
                    begin = end;
                  }
                });
}

Variable Stack(absl::Span<const Variable> parts, int64_t dim) {
  if (internal::IsAutocasting()) {
    const std::vector<Variable> cast = internal::InWidest(parts);
    const AutocastScope off(std::nullopt);
    return Stack(cast, dim);
  }
  std::vector<Tensor> values;
  std::vector<const Variable*> inputs;
  for (const Variable& part : parts) {
    values.push_back(part.value());
    inputs.push_back(&part);
  }
  return Record(kStack, Stack(values, dim), inputs,
                [n = parts.size(), dim](BackwardCall& call) {
                  const Tensor grad = call.output();
                  for (size_t i = 0; i < n; ++i) {
                    call.inputs[i] = grad.Select(dim, static_cast<int64_t>(i));
                  }
                });
}

Variable Index(const Variable& x, absl::Span<const TensorIndex> parts) {
  return Record(
      kIndex, x.value().Index(parts), {&x},
      [shape = x.shape(), parts = std::vector<TensorIndex>(
                              parts.begin(), parts.end())](BackwardCall& call) {
        call.inputs[0] =
            Embedded(call.output(), shape,
                     [&](const Tensor& whole) { return whole.Index(parts); });
      });
}

std::vector<Variable> Split(const Variable& x, absl::Span<const int64_t> sizes,
                            int64_t dim) {
  std::vector<Variable> parts;
  int64_t begin = 0;
  for (const Tensor& part : Split(x.value(), sizes, dim)) {
    const int64_t end = begin + part.size(dim);
    parts.push_back(Slice(x, dim, begin, end));
    begin = end;
  }
  return parts;
}

std::vector<Variable> Split(const Variable& x, int64_t size, int64_t dim) {
  return Split(x, SplitSizes(x.size(dim), size, "Split"), dim);
}

std::vector<Variable> Chunk(const Variable& x, int64_t chunks, int64_t dim) {
  return Split(x, ChunkSizes(x.size(dim), chunks), dim);
}

Variable Tril(const Variable& x, int64_t diagonal) {
  return Record(kTril, Tril(x.value(), diagonal), {&x},
                [diagonal](BackwardCall& call) {
                  call.inputs[0] = Tril(call.output(), diagonal);
                });
}

Variable Triu(const Variable& x, int64_t diagonal) {
  return Record(kTriu, Triu(x.value(), diagonal), {&x},
                [diagonal](BackwardCall& call) {
                  call.inputs[0] = Triu(call.output(), diagonal);
                });
}

}  // namespace weft
