#include "weft/tensor/ops/conv.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/onednn.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using dnnl::memory;
using internal::CheckFloating;
using internal::CheckSameDevice;
using internal::IsHalf;
using internal::OnDevice;
using internal::Operation;
using internal::Wide;

// The sizes of one convolution.
struct Geometry {
  int64_t batch, channels, height, width;
  int64_t filters, kernel_h, kernel_w;
  int64_t out_h, out_w;
};

int64_t OutputSize(int64_t size, int64_t kernel, int d,
                   const Conv2dOptions& options) {
  const int64_t reach = options.dilation[d] * (kernel - 1) + 1;
  const int64_t room = size + 2 * options.padding[d] - reach;
  return room < 0 ? 0 : room / options.stride[d] + 1;
}

// Checks all but dtypes. Sizes and options stay below 2^31, which is oneDNN's
// limit and keeps the arithmetic here from overflow.
Geometry CheckedGeometry(const Shape& x, const Shape& weight,
                         const Conv2dOptions& options, const char* where) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  bool is_possible = x.size() == 4 && weight.size() == 4;
  for (size_t i = 0; is_possible && i < 4; ++i) {
    is_possible = x[i] < kLimit && weight[i] < kLimit;
  }
  if (!is_possible || x[1] != weight[1] || weight[2] < 1 || weight[3] < 1) {
    ThrowInvalidArgument(where, ": x is ", ShapeText(x), ", weight is ",
                         ShapeText(weight),
                         "; wanted [n, channels, h, w] and [filters, "
                         "channels, kh, kw]");
  }
  for (int d = 0; d < 2; ++d) {
    if (options.stride[d] < 1 || options.padding[d] < 0 ||
        options.dilation[d] < 1 || options.stride[d] >= kLimit ||
        options.padding[d] >= kLimit || options.dilation[d] >= kLimit) {
      ThrowInvalidArgument(where, ": stride ", ShapeText(options.stride),
                           ", padding ", ShapeText(options.padding),
                           ", dilation ", ShapeText(options.dilation),
                           "; wanted at least 1, 0 and 1");
    }
  }
  Geometry g = {x[0],      x[1],      x[2],      x[3],     weight[0],
                weight[2], weight[3], int64_t{}, int64_t{}};
  g.out_h = OutputSize(g.height, g.kernel_h, 0, options);
  g.out_w = OutputSize(g.width, g.kernel_w, 1, options);
  if (g.out_h < 1 || g.out_w < 1) {
    ThrowInvalidArgument(where, ": x ", ShapeText(x), " with padding ",
                         ShapeText(options.padding),
                         " is smaller than the kernel of ", ShapeText(weight));
  }
  return g;
}

Shape OutputShape(const Geometry& g) {
  return {g.batch, g.filters, g.out_h, g.out_w};
}

void CheckGrad(const Tensor& grad, const Geometry& g, const char* where) {
  if (grad.shape() != OutputShape(g)) {
    ThrowInvalidArgument(where, ": grad is ", ShapeText(grad.shape()),
                         "; wanted ", ShapeText(OutputShape(g)));
  }
}

// Checks that two operands are of one dtype and device.
void CheckAlike(const Tensor& a, const Tensor& b, const char* where) {
  CheckSameDevice(a, b, where);
  if (a.dtype() != b.dtype()) {
    ThrowInvalidArgument(where, ": operands are ", a.Describe(), " and ",
                         b.Describe(), "; dtypes differ");
  }
}

// --- f64: one image at a time through its columns. ---------------------------

// Calls visit(row of columns, place in columns, place in x) for each tap that
// lies in the image.
template <typename Visit>
void ForEachTap(const Geometry& g, const Conv2dOptions& o, Visit&& visit) {
  const int64_t out_size = g.out_h * g.out_w;
  int64_t row = 0;
  for (int64_t c = 0; c < g.channels; ++c) {
    for (int64_t i = 0; i < g.kernel_h; ++i) {
      for (int64_t j = 0; j < g.kernel_w; ++j, ++row) {
        for (int64_t y = 0; y < g.out_h; ++y) {
          const int64_t h = y * o.stride[0] + i * o.dilation[0] - o.padding[0];
          if (h < 0 || h >= g.height) continue;
          for (int64_t x = 0; x < g.out_w; ++x) {
            const int64_t w =
                x * o.stride[1] + j * o.dilation[1] - o.padding[1];
            if (w < 0 || w >= g.width) continue;
            visit(row * out_size + y * g.out_w + x,
                  (c * g.height + h) * g.width + w);
          }
        }
      }
    }
  }
}

// [channels * kh * kw, oh * ow]: what each output sees of `image`.
Tensor Columns(const Tensor& image, const Geometry& g,
               const Conv2dOptions& options) {
  const Tensor columns = Tensor::Zeros(
      {g.channels * g.kernel_h * g.kernel_w, g.out_h * g.out_w}, DType::kF64);
  double* const out = columns.data<double>();
  const double* const in = image.data<double>();
  ForEachTap(g, options, [&](int64_t to, int64_t from) { out[to] = in[from]; });
  return columns;
}

// Each element of `result` becomes the bias of its filter, or 0.
void StartWith(const Tensor& bias, const Tensor& result) {
  if (bias.defined()) {
    result.CopyFrom(bias.View({bias.numel(), 1, 1}));
  } else {
    result.Fill(0);
  }
}

void ForwardByColumns(const Geometry& g, const Conv2dOptions& options,
                      const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& result) {
  StartWith(bias, result);
  const Tensor filters = weight.FlattenFrom(1);
  for (int64_t n = 0; n < g.batch; ++n) {
    MatMulAdd_(result.Select(0, n).FlattenFrom(1), filters,
               Columns(x.Select(0, n), g, options));
  }
}

void BackwardInputByColumns(const Tensor& grad, const Tensor& weight,
                            const Geometry& g, const Conv2dOptions& options,
                            const Tensor& result) {
  result.Fill(0);
  const Tensor filters = weight.FlattenFrom(1).Transpose(0, 1);
  for (int64_t n = 0; n < g.batch; ++n) {
    const Tensor columns = MatMul(filters, grad.Select(0, n).FlattenFrom(1));
    const double* const in = columns.data<double>();
    double* const out = result.Select(0, n).data<double>();
    ForEachTap(g, options,
               [&](int64_t from, int64_t to) { out[to] += in[from]; });
  }
}

void BackwardWeightByColumns(const Tensor& grad, const Tensor& x,
                             const Geometry& g, const Conv2dOptions& options,
                             const Tensor& out) {
  out.Fill(0);
  const Tensor result =
      out.View({g.filters, g.channels * g.kernel_h * g.kernel_w});
  for (int64_t n = 0; n < g.batch; ++n) {
    MatMulAdd_(result, grad.Select(0, n).FlattenFrom(1),
               Columns(x.Select(0, n), g, options).Transpose(0, 1));
  }
}

// --- f32: oneDNN. -----------------------------------------------------------

enum class Pass : int64_t {
  kForward,
  kForwardBias,
  kInput,
  kWeight,
  kWeightBias
};

// A primitive and how it wants its operands to lie.
struct ConvEntry {
  dnnl::primitive primitive;
  memory::desc src, weights, dst;
};

memory::desc Plain(const memory::dims& dims) {
  return {dims, memory::data_type::f32, memory::format_tag::nchw};
}

memory::desc Any(const memory::dims& dims) {
  return {dims, memory::data_type::f32, memory::format_tag::any};
}

struct ConvDims {
  memory::dims src, weights, dst, bias, strides, dilates, padding_l, padding_r;
};

ConvDims DimsOf(const Geometry& g, const Conv2dOptions& o) {
  ConvDims d;
  d.src = {g.batch, g.channels, g.height, g.width};
  d.weights = {g.filters, g.channels, g.kernel_h, g.kernel_w};
  d.dst = {g.batch, g.filters, g.out_h, g.out_w};
  d.bias = {g.filters};
  d.strides = {o.stride[0], o.stride[1]};
  d.dilates = {o.dilation[0] - 1, o.dilation[1] - 1};
  d.padding_l = {o.padding[0], o.padding[1]};
  // The right side is what makes the output's size exact, rounded down.
  d.padding_r = {
      (g.out_h - 1) * o.stride[0] + o.dilation[0] * (g.kernel_h - 1) + 1 -
          g.height - o.padding[0],
      (g.out_w - 1) * o.stride[1] + o.dilation[1] * (g.kernel_w - 1) + 1 -
          g.width - o.padding[1]};
  return d;
}

ConvEntry MakeEntry(Pass pass, const ConvDims& d, const dnnl::engine& engine) {
  using dnnl::convolution_backward_data;
  using dnnl::convolution_backward_weights;
  using dnnl::convolution_forward;
  const auto kind = dnnl::prop_kind::forward_training;
  const auto direct = dnnl::algorithm::convolution_direct;
  const memory::desc bias(d.bias, memory::data_type::f32,
                          memory::format_tag::x);
  const convolution_forward::primitive_desc forward(
      pass == Pass::kForwardBias
          ? convolution_forward::desc(kind, direct, Any(d.src), Any(d.weights),
                                      bias, Any(d.dst), d.strides, d.dilates,
                                      d.padding_l, d.padding_r)
          : convolution_forward::desc(kind, direct, Any(d.src), Any(d.weights),
                                      Any(d.dst), d.strides, d.dilates,
                                      d.padding_l, d.padding_r),
      engine);
  if (pass == Pass::kInput) {
    const convolution_backward_data::primitive_desc pd(
        {direct, Any(d.src), Any(d.weights), Any(d.dst), d.strides, d.dilates,
         d.padding_l, d.padding_r},
        engine, forward);
    return {convolution_backward_data(pd), pd.diff_src_desc(),
            pd.weights_desc(), pd.diff_dst_desc()};
  }
  if (pass == Pass::kWeight || pass == Pass::kWeightBias) {
    const convolution_backward_weights::primitive_desc pd(
        pass == Pass::kWeightBias
            ? convolution_backward_weights::desc(
                  direct, Any(d.src), Any(d.weights), bias, Any(d.dst),
                  d.strides, d.dilates, d.padding_l, d.padding_r)
            : convolution_backward_weights::desc(
                  direct, Any(d.src), Any(d.weights), Any(d.dst), d.strides,
                  d.dilates, d.padding_l, d.padding_r),
        engine, forward);
    return {convolution_backward_weights(pd), pd.src_desc(),
            pd.diff_weights_desc(), pd.diff_dst_desc()};
  }
  return {convolution_forward(forward), forward.src_desc(),
          forward.weights_desc(), forward.dst_desc()};
}

ConvEntry& EntryFor(Pass pass, const Geometry& g, const Conv2dOptions& o,
                    const dnnl::engine& engine) {
  thread_local internal::PrimitiveCache<ConvEntry> cache;
  const internal::PrimitiveKey key = {static_cast<int64_t>(pass),
                                      internal::IntraOpThreads(),
                                      g.batch,
                                      g.channels,
                                      g.height,
                                      g.width,
                                      g.filters,
                                      g.kernel_h,
                                      g.kernel_w,
                                      o.stride[0],
                                      o.stride[1],
                                      o.padding[0],
                                      o.padding[1],
                                      o.dilation[0],
                                      o.dilation[1]};
  return cache.FindOrMake(
      key, [&] { return MakeEntry(pass, DimsOf(g, o), engine); });
}

// An operand in oneDNN's hands: the tensor itself, or a copy laid out as the
// primitive wants it.
class Operand {
 public:
  // REQUIRES: `tensor` is contiguous and outlives this.
  Operand(const Tensor& tensor, const memory::desc& wanted,
          internal::OneDnn& onednn)
      : onednn_(onednn),
        plain_(Plain({tensor.shape().begin(), tensor.shape().end()}),
               onednn.engine, tensor.raw()),
        used_(plain_) {
    if (wanted == plain_.get_desc()) return;
    copy_ =
        Tensor::Empty({static_cast<int64_t>(wanted.get_size())}, DType::kU8);
    used_ = memory(wanted, onednn.engine, copy_.raw());
  }

  memory& AsInput() {
    if (copy_.defined()) Reorder(plain_, used_);
    return used_;
  }
  memory& AsOutput() { return used_; }
  void FinishOutput() {
    if (copy_.defined()) Reorder(used_, plain_);
  }

 private:
  void Reorder(memory& from, memory& to) {
    dnnl::reorder(from, to).execute(onednn_.stream, from, to);
  }

  internal::OneDnn& onednn_;
  memory plain_;
  memory used_;
  Tensor copy_;
};

// Calls run(onednn), whose errors become ours.
template <typename Run>
void WithOneDnn(Run&& run) {
  internal::OneDnn& onednn = internal::OneDnn::ForThisThread();
  try {
    run(onednn);
    onednn.stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(absl::InternalError(
        absl::StrCat("Conv2d: oneDNN ended with status ",
                     static_cast<int>(error.status), ": ", error.message)));
  }
}

memory BiasMemory(const Tensor& bias, internal::OneDnn& onednn) {
  return memory({{bias.numel()}, memory::data_type::f32, memory::format_tag::x},
                onednn.engine, bias.raw());
}

void RunForward(const Geometry& g, const Conv2dOptions& options,
                const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& y) {
  WithOneDnn([&](internal::OneDnn& onednn) {
    const Pass pass = bias.defined() ? Pass::kForwardBias : Pass::kForward;
    ConvEntry& entry = EntryFor(pass, g, options, onednn.engine);
    Operand src(x, entry.src, onednn);
    Operand weights(weight, entry.weights, onednn);
    Operand dst(y, entry.dst, onednn);
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, src.AsInput()},
        {DNNL_ARG_WEIGHTS, weights.AsInput()},
        {DNNL_ARG_DST, dst.AsOutput()}};
    if (bias.defined()) {
      arguments.emplace(DNNL_ARG_BIAS, BiasMemory(bias, onednn));
    }
    entry.primitive.execute(onednn.stream, arguments);
    dst.FinishOutput();
  });
}

// Both primitives take dL/dy in one layout, so that it is laid out once.
void RunBackward(const Geometry& g, const Conv2dOptions& options,
                 const Conv2dGradients& out, const Tensor& grad,
                 const Tensor& x, const Tensor& weight) {
  WithOneDnn([&](internal::OneDnn& onednn) {
    std::optional<Operand> dst;
    memory::desc layout;
    const auto gradient = [&](const memory::desc& wanted) -> memory& {
      if (!dst.has_value() || layout != wanted) {
        dst.emplace(grad, wanted, onednn);
        layout = wanted;
        return dst->AsInput();
      }
      return dst->AsOutput();
    };
    if (out.x.defined()) {
      ConvEntry& entry = EntryFor(Pass::kInput, g, options, onednn.engine);
      Operand weights(weight, entry.weights, onednn);
      Operand src(out.x, entry.src, onednn);
      entry.primitive.execute(onednn.stream,
                              {{DNNL_ARG_DIFF_DST, gradient(entry.dst)},
                               {DNNL_ARG_WEIGHTS, weights.AsInput()},
                               {DNNL_ARG_DIFF_SRC, src.AsOutput()}});
      src.FinishOutput();
    }
    if (out.weight.defined()) {
      const Pass pass = out.bias.defined() ? Pass::kWeightBias : Pass::kWeight;
      ConvEntry& entry = EntryFor(pass, g, options, onednn.engine);
      Operand src(x, entry.src, onednn);
      Operand weights(out.weight, entry.weights, onednn);
      std::unordered_map<int, memory> arguments = {
          {DNNL_ARG_DIFF_DST, gradient(entry.dst)},
          {DNNL_ARG_SRC, src.AsInput()},
          {DNNL_ARG_DIFF_WEIGHTS, weights.AsOutput()}};
      if (out.bias.defined()) {
        arguments.emplace(DNNL_ARG_DIFF_BIAS, BiasMemory(out.bias, onednn));
      }
      entry.primitive.execute(onednn.stream, arguments);
      weights.FinishOutput();
    }
  });
}

// Checks where the gradient of `operand`, of `shape`, is to be written.
void CheckOutput(const Tensor& out, const Shape& shape, const Tensor& grad,
                 const char* operand, const char* where) {
  if (!out.defined()) return;
  CheckSameDevice(out, grad, where);
  if (out.shape() != shape || out.dtype() != grad.dtype() ||
      !out.is_contiguous()) {
    ThrowInvalidArgument(where, ": the gradient of ", operand, " is to be in ",
                         out.Describe(), "; wanted ", Name(grad.dtype()),
                         ShapeText(shape), ", contiguous");
  }
}

// Writes the bias's gradient, where oneDNN does not.
void WriteBias(const Tensor& out, const Tensor& grad) {
  if (out.defined()) out.CopyFrom(Sum(grad, {0, 2, 3}));
}

Operation WithOptions(const char* name, const Conv2dOptions& options) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  return {name,
          {number(options.stride[0]), number(options.stride[1]),
           number(options.padding[0]), number(options.padding[1]),
           number(options.dilation[0]), number(options.dilation[1])}};
}

// Conv2d on the CPU; all are contiguous, `bias` may be undefined.
void ForwardOnHost(const Geometry& g, const Conv2dOptions& options,
                   const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& result) {
  if (g.channels == 0) {
    StartWith(bias, result);
  } else if (x.dtype() == DType::kF32) {
    RunForward(g, options, x, weight, bias, result);
  } else {
    ForwardByColumns(g, options, x, weight, bias, result);
  }
}

// Conv2dBackwardInto on the CPU. x or weight may be undefined if the gradient
// that needs it is not wanted.
void BackwardOnHost(const Geometry& g, const Conv2dOptions& options,
                    const Conv2dGradients& out, const Tensor& grad,
                    const Tensor& x, const Tensor& weight) {
  if (grad.numel() == 0 || g.channels == 0) {
    if (out.x.defined()) out.x.Fill(0);
    if (out.weight.defined()) out.weight.Fill(0);
    WriteBias(out.bias, grad);
  } else if (grad.dtype() == DType::kF32) {
    RunBackward(g, options, out, grad, x, weight);
    if (!out.weight.defined()) WriteBias(out.bias, grad);
  } else {
    if (out.x.defined()) {
      BackwardInputByColumns(grad, weight, g, options, out.x);
    }
    if (out.weight.defined()) {
      BackwardWeightByColumns(grad, x, g, options, out.weight);
    }
    WriteBias(out.bias, grad);
  }
}

// As BackwardOnHost, on another device: an operation for each operand. Only
// the weight's and the bias's are one, as they are for oneDNN.
void BackwardOnDevice(const Geometry& g, const Conv2dOptions& options,
                      const Conv2dGradients& out, const Tensor& grad,
                      const Tensor& x, const Tensor& weight) {
  if (out.x.defined()) {
    OnDevice(
        WithOptions("Conv2dBackwardInput", options),
        [g, options](const Tensor& grad, const Tensor& weight,
                     const Tensor& to_x) {
          BackwardOnHost(g, options, {to_x, {}, {}}, grad, {}, weight);
        },
        grad, weight, out.x);
  }
  if (out.weight.defined() && out.bias.defined()) {
    OnDevice(
        WithOptions("Conv2dBackwardWeightBias", options),
        [g, options](const Tensor& grad, const Tensor& x,
                     const Tensor& to_weight, const Tensor& to_bias) {
          BackwardOnHost(g, options, {{}, to_weight, to_bias}, grad, x, {});
        },
        grad, x, out.weight, out.bias);
  } else if (out.weight.defined()) {
    OnDevice(
        WithOptions("Conv2dBackwardWeight", options),
        [g, options](const Tensor& grad, const Tensor& x,
                     const Tensor& to_weight) {
          BackwardOnHost(g, options, {{}, to_weight, {}}, grad, x, {});
        },
        grad, x, out.weight);
  } else if (out.bias.defined()) {
    OnDevice(
        "Conv2dBackwardBias",
        [](const Tensor& grad, const Tensor& to_bias) {
          WriteBias(to_bias, grad);
        },
        grad, out.bias);
  }
}

// Conv2dBackwardInto of f16 or bf16.
void BackwardInF32(const Conv2dGradients& out, const Tensor& grad,
                   const Tensor& x, const Tensor& weight,
                   const Conv2dOptions& options) {
  const Tensor* const targets[] = {&out.x, &out.weight, &out.bias};
  Conv2dGradients wide;
  Tensor* const made[] = {&wide.x, &wide.weight, &wide.bias};
  for (int i = 0; i < 3; ++i) {
    if (!targets[i]->defined()) continue;
    *made[i] =
        Tensor::Empty(targets[i]->shape(), DType::kF32, targets[i]->device());
  }
  Conv2dBackwardInto(wide, Wide(grad), Wide(x), Wide(weight), options);
  for (int i = 0; i < 3; ++i) {
    if (targets[i]->defined()) targets[i]->CopyFrom(*made[i]);
  }
}

}  // namespace

Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  const Geometry g =
      CheckedGeometry(x.shape(), weight.shape(), options, "Conv2d");
  CheckAlike(x, weight, "Conv2d");
  if (bias.defined()) CheckSameDevice(bias, x, "Conv2d");
  if (bias.defined() &&
      (bias.shape() != Shape{g.filters} || bias.dtype() != weight.dtype())) {
    ThrowInvalidArgument("Conv2d: bias is ", bias.Describe(), "; wanted ",
                         Name(weight.dtype()), "[", g.filters, "]");
  }
  CheckFloating(x, "Conv2d");
  if (IsHalf(x)) {
    return Conv2d(Wide(x), Wide(weight), Wide(bias), options).To(x.dtype());
  }
  Tensor result = Tensor::Empty(OutputShape(g), x.dtype(), x.device());
  if (result.numel() == 0) return result;
  if (bias.defined()) {
    OnDevice(
        WithOptions("Conv2d", options),
        [g, options](const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& result) {
          ForwardOnHost(g, options, x, weight, bias, result);
        },
        x.Contiguous(), weight.Contiguous(), bias.Contiguous(), result);
  } else {
    OnDevice(
        WithOptions("Conv2d", options),
        [g, options](const Tensor& x, const Tensor& weight,
                     const Tensor& result) {
          ForwardOnHost(g, options, x, weight, {}, result);
        },
        x.Contiguous(), weight.Contiguous(), result);
  }
  return result;
}

void Conv2dBackwardInto(const Conv2dGradients& out, const Tensor& grad,
                        const Tensor& x, const Tensor& weight,
                        const Conv2dOptions& options) {
  constexpr const char* kWhere = "Conv2dBackwardInto";
  const Geometry g =
      CheckedGeometry(x.shape(), weight.shape(), options, kWhere);
  CheckGrad(grad, g, kWhere);
  CheckAlike(grad, x, kWhere);
  CheckAlike(grad, weight, kWhere);
  CheckOutput(out.x, x.shape(), grad, "x", kWhere);
  CheckOutput(out.weight, weight.shape(), grad, "weight", kWhere);
  CheckOutput(out.bias, {g.filters}, grad, "bias", kWhere);
  CheckFloating(grad, kWhere);
  if (IsHalf(grad)) return BackwardInF32(out, grad, x, weight, options);
  if (grad.device().is_cpu()) {
    // All at once, so that dL/dy is laid out once.
    BackwardOnHost(g, options, out, grad.Contiguous(), x.Contiguous(),
                   weight.Contiguous());
  } else {
    BackwardOnDevice(g, options, out, grad.Contiguous(), x.Contiguous(),
                     weight.Contiguous());
  }
  for (const Tensor& written : {out.x, out.weight, out.bias}) {
    if (written.defined()) written.BumpVersion();
  }
}

}  // namespace weft
