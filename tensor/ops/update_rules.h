// Update rules: how a weight and its slots follow a gradient.
// The rules of optimizer/rules and the kernels of CUDA (tensor/cuda/update.h)
// both run them, so that their bits are the same.
//
// A rule is made of numbers, in f64, which optimizer/rules/rule_numbers.h
// makes. It has a scope, and the fewest and most slots. If its scope is
// kElement it has, for each number of slots that it may have,
//   void Apply(T gradient, T& w, T&... slots) const;
// What looks at norms adds them up in an order of its own on the CPU and on a
// device. T is float or double.

#ifndef WEFT_TENSOR_OPS_UPDATE_RULES_H_
#define WEFT_TENSOR_OPS_UPDATE_RULES_H_

#include <cmath>
#include <cstdint>

#include "weft/tensor/cuda/host_device.h"

namespace weft::internal {

// Where the limits of the gradient are among the numbers of a kernel, behind
// those of its rule; 0: none.
inline constexpr int kClipValue = 8;
inline constexpr int kClipNorm = 9;

// What a rule must see whole: the values of Scope of rules/update_rule.h.
enum class UpdateScope { kElement, kRow, kParameter };

// Calls f(slots...) with the first `count` of `slots`, which are as many as
// Rule may have.
template <typename Rule, typename T, typename F>
WEFT_HOST_DEVICE void WithSlots(T* const (&slots)[3], int count, F f) {
  constexpr int kFewest = Rule::kFewestSlots;
  constexpr int kMost = Rule::kMostSlots;
  static_assert(kMost <= 3);
  if constexpr (kFewest == 0) {
    if (count == 0) f();
  }
  if constexpr (kFewest <= 1 && kMost >= 1) {
    if (count == 1) f(slots[0]);
  }
  if constexpr (kFewest <= 2 && kMost >= 2) {
    if (count == 2) f(slots[0], slots[1]);
  }
  if constexpr (kMost == 3) {
    if (count == 3) f(slots[0], slots[1], slots[2]);
  }
}

// Stochastic gradient descent, with slot "momentum" if wanted:
//   g = gradient + decay * w
//   m = g at the first step, else momentum * m + (1 - dampening) * g
//   w -= lr * m, or for Nesterov w -= lr * (g + momentum * m)
// Numbers: lr, decay, and kept, taken, ahead, speed of
//   m = kept * m + taken * g;  w -= lr * (ahead * g + speed * m).
// Source: Sutskever et al., "On the importance of initialization and momentum
// in deep learning", ICML 2013, in the form that PyTorch uses.
template <typename T>
struct Sgd {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 0;
  static constexpr int kMostSlots = 1;
  explicit Sgd(const double* n)
      : lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        kept(static_cast<T>(n[2])),
        taken(static_cast<T>(n[3])),
        ahead(static_cast<T>(n[4])),
        speed(static_cast<T>(n[5])) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w) const {
    w -= lr * (gradient + decay * w);
  }
  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& m) const {
    const T g = gradient + decay * w;
    m = kept * m + taken * g;
    w -= lr * (ahead * g + speed * m);
  }

  T lr, decay, kept, taken, ahead, speed;
};

// Steps scaled by running moments of the gradient. With t the step:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Adam adds weight_decay * w to g first; AdamW, decoupled, multiplies w by
// 1 - lr * weight_decay instead. With amsgrad the root is that of the slot
// "v_max", the largest v so far, as PyTorch has it (v, not v / (1 - beta2^t)).
// Numbers: lr / (1 - beta1^t), sqrt(1 - beta2^t), beta1, beta2, epsilon, and
// the decay that enters the gradient, or, decoupled, what is kept of w.
// Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled
// weight decay regularization", ICLR 2019; Reddi, Kale and Kumar, "On the
// convergence of Adam and beyond", ICLR 2018.
template <typename T, bool kIsDecoupled>
struct AdamLike {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 3;
  explicit AdamLike(const double* n)
      : size(static_cast<T>(n[0])),
        root(static_cast<T>(n[1])),
        beta1(static_cast<T>(n[2])),
        beta2(static_cast<T>(n[3])),
        rest1(static_cast<T>(1.0 - n[2])),
        rest2(static_cast<T>(1.0 - n[3])),
        epsilon(static_cast<T>(n[4])),
        decay(kIsDecoupled ? T(0) : static_cast<T>(n[5])),
        keep(kIsDecoupled ? static_cast<T>(n[5]) : T(1)) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& m, T& v) const {
    Average(gradient + decay * w, m, v);
    Step(m, v, w);
  }
  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& m, T& v, T& v_max) const {
    Average(gradient + decay * w, m, v);
    v_max = v_max < v ? v : v_max;
    Step(m, v_max, w);
  }

  WEFT_HOST_DEVICE void Average(T g, T& m, T& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
  }
  WEFT_HOST_DEVICE void Step(T m, T square, T& w) const {
    w = keep * w - size * (m / (std::sqrt(square) / root + epsilon));
  }

  T size, root, beta1, beta2, rest1, rest2, epsilon, decay, keep;
};
template <typename T>
using Adam = AdamLike<T, false>;
template <typename T>
using AdamW = AdamLike<T, true>;

// Each weight's rate falls with the sum of its squared gradients:
//   g = gradient + decay * w;  accumulator += g^2
//   w -= lr * g / (sqrt(accumulator) + epsilon)
// Numbers: lr / (1 + (step - 1) * lr_decay), decay, epsilon.
// Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online
// learning and stochastic optimization", JMLR 12, 2011.
template <typename T>
struct Adagrad {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  explicit Adagrad(const double* n)
      : lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        epsilon(static_cast<T>(n[2])) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& accumulator) const {
    const T g = gradient + decay * w;
    accumulator += g * g;
    w -= lr * g / (std::sqrt(accumulator) + epsilon);
  }

  T lr, decay, epsilon;
};

// FTRL-Proximal, which keeps weights that matter little at exactly 0. With
// slots "z" and "n":
//   s = (sqrt(n + g^2) - sqrt(n)) / lr;  z += g - s * w;  n += g^2
//   w = 0 if |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / lr + l2)
// The weights follow from the slots: start them at 0, since any other initial
// value fades at the first update.
// Numbers: lr, beta, l1, l2. With lr 0 it stands still, as every rule does.
// Source: McMahan et al., "Ad click prediction: a view from the trenches",
// KDD 2013, algorithm 1.
template <typename T>
struct Ftrl {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  explicit Ftrl(const double* n)
      : stands_still(n[0] == 0.0),
        per_lr(static_cast<T>(1.0 / n[0])),
        beta(static_cast<T>(n[1])),
        l1(static_cast<T>(n[2])),
        l2(static_cast<T>(n[3])) {}

  WEFT_HOST_DEVICE void Apply(T g, T& w, T& z, T& squares) const {
    if (stands_still) return;
    const T root = std::sqrt(squares);
    squares += g * g;
    const T new_root = std::sqrt(squares);
    z += g - (new_root - root) * per_lr * w;
    const T beyond = std::fabs(z) - l1;
    const T curvature = (beta + new_root) * per_lr + l2;
    // Without the branch a weight whose gradients were all 0 would be 0 / 0.
    w = beyond > T(0) ? -std::copysign(beyond, z) / curvature : T(0);
  }

  bool stands_still;
  T per_lr, beta, l1, l2;
};

// Steps divided by a running root mean square of the gradient. With slots
// "square_avg", if centered "grad_avg", and with momentum "momentum":
//   g = gradient + decay * w
//   square_avg = alpha * square_avg + (1 - alpha) * g^2
//   grad_avg = alpha * grad_avg + (1 - alpha) * g
//   s = g / (sqrt(square_avg) + epsilon), or centered
//   s = g / (sqrt(square_avg - grad_avg^2) + epsilon)
//   w -= lr * s, or momentum = momentum * momentum + s;  w -= lr * momentum
// A variance that roundings made negative is 0 here, NaN in PyTorch.
// Numbers: lr, alpha, epsilon, decay, momentum, whether it is centered.
// Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", COURSERA 2012; centered:
// Graves, "Generating sequences with recurrent neural networks", 2013; in the
// form that PyTorch uses.
template <typename T>
struct Rmsprop {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 3;
  explicit Rmsprop(const double* n)
      : lr(static_cast<T>(n[0])),
        alpha(static_cast<T>(n[1])),
        rest(static_cast<T>(1.0 - n[1])),
        epsilon(static_cast<T>(n[2])),
        decay(static_cast<T>(n[3])),
        momentum(static_cast<T>(n[4])),
        is_centered(n[5] != 0) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& square) const {
    const T g = gradient + decay * w;
    w -= lr * Scaled(g, MeanSquare(g, square));
  }
  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& square, T& other) const {
    const T g = gradient + decay * w;
    const T size = MeanSquare(g, square);
    if (is_centered) {
      w -= lr * Scaled(g, Variance(g, size, other));
    } else {
      w -= lr * Speed(Scaled(g, size), other);
    }
  }
  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& square, T& mean,
                              T& speed) const {
    const T g = gradient + decay * w;
    const T size = Variance(g, MeanSquare(g, square), mean);
    w -= lr * Speed(Scaled(g, size), speed);
  }

  WEFT_HOST_DEVICE T MeanSquare(T g, T& square) const {
    return square = alpha * square + rest * g * g;
  }
  WEFT_HOST_DEVICE T Variance(T g, T mean_square, T& mean) const {
    mean = alpha * mean + rest * g;
    const T variance = mean_square - mean * mean;
    return variance < T(0) ? T(0) : variance;
  }
  WEFT_HOST_DEVICE T Scaled(T g, T size) const {
    return g / (std::sqrt(size) + epsilon);
  }
  WEFT_HOST_DEVICE T Speed(T step, T& speed) const {
    return speed = momentum * speed + step;
  }

  T lr, alpha, rest, epsilon, decay, momentum;
  bool is_centered;
};

// Steps as large as those before them, divided by the root mean square of the
// gradient. With slots "square_avg" and "acc_delta":
//   g = gradient + decay * w
//   square_avg = rho * square_avg + (1 - rho) * g^2
//   d = sqrt(acc_delta + epsilon) / sqrt(square_avg + epsilon) * g
//   acc_delta = rho * acc_delta + (1 - rho) * d^2
//   w -= lr * d
// Numbers: lr, rho, epsilon, decay.
// Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012, with the
// lr that PyTorch adds.
template <typename T>
struct Adadelta {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  explicit Adadelta(const double* n)
      : lr(static_cast<T>(n[0])),
        rho(static_cast<T>(n[1])),
        rest(static_cast<T>(1.0 - n[1])),
        epsilon(static_cast<T>(n[2])),
        decay(static_cast<T>(n[3])) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& square, T& moved) const {
    const T g = gradient + decay * w;
    square = rho * square + rest * g * g;
    const T delta =
        std::sqrt(moved + epsilon) / std::sqrt(square + epsilon) * g;
    moved = rho * moved + rest * delta * delta;
    w -= lr * delta;
  }

  T lr, rho, rest, epsilon, decay;
};

// Steps of one size, in the direction of a running mean's sign:
//   w = (1 - lr * weight_decay) * w - lr * sign(beta1 * m + (1 - beta1) * g)
//   m = beta2 * m + (1 - beta2) * g
// The sign of 0 is 0. That of NaN is NaN, so that it shows.
// Numbers: lr, what is kept of the weights, beta1, beta2.
// Source: Chen et al., "Symbolic discovery of optimization algorithms",
// NeurIPS 2023, algorithm 2.
template <typename T>
struct Lion {
  static constexpr UpdateScope kScope = UpdateScope::kElement;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  explicit Lion(const double* n)
      : lr(static_cast<T>(n[0])),
        keep(static_cast<T>(n[1])),
        beta1(static_cast<T>(n[2])),
        beta2(static_cast<T>(n[3])),
        rest1(static_cast<T>(1.0 - n[2])),
        rest2(static_cast<T>(1.0 - n[3])) {}

  WEFT_HOST_DEVICE void Apply(T gradient, T& w, T& m) const {
    const T ahead = beta1 * m + rest1 * gradient;
    const T sign = ahead > T(0) ? T(1) : (ahead < T(0) ? T(-1) : ahead);
    w = keep * w - lr * sign;
    m = beta2 * m + rest2 * gradient;
  }

  T lr, keep, beta1, beta2, rest1, rest2;
};

// Adam's steps, scaled to the size of the weights that they change:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       + weight_decay * w
//   w -= lr * |w| / |u| * u
// The norms are Euclidean, of a whole parameter: in a sparse table of a row.
// Their ratio is 1 where one of them is 0, so that weights that begin at 0
// learn. It is not clipped (the paper's phi is the identity).
// Numbers: lr, 1 - beta1^t, sqrt(1 - beta2^t), beta1, beta2, epsilon, decay.
// Source: You et al., "Large batch optimization for deep learning: training
// BERT in 76 minutes", ICLR 2020, algorithm 2.
template <typename T>
struct Lamb {
  static constexpr UpdateScope kScope = UpdateScope::kParameter;
  static constexpr int kFewestSlots = 2;
  static constexpr int kMostSlots = 2;
  explicit Lamb(const double* n)
      : lr(n[0]),
        correction(static_cast<T>(n[1])),
        root(static_cast<T>(n[2])),
        beta1(static_cast<T>(n[3])),
        beta2(static_cast<T>(n[4])),
        rest1(static_cast<T>(1.0 - n[3])),
        rest2(static_cast<T>(1.0 - n[4])),
        epsilon(static_cast<T>(n[5])),
        decay(static_cast<T>(n[6])) {}

  WEFT_HOST_DEVICE void Average(T g, T& m, T& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
  }
  // u
  WEFT_HOST_DEVICE T Step(T w, T m, T v) const {
    return m / correction / (std::sqrt(v) / root + epsilon) + decay * w;
  }
  // What u is multiplied by.
  WEFT_HOST_DEVICE T Size(double norm_of_w, double norm_of_u) const {
    const double ratio =
        norm_of_w > 0.0 && norm_of_u > 0.0 ? norm_of_w / norm_of_u : 1.0;
    return static_cast<T>(lr * ratio);
  }

  double lr;
  T correction, root, beta1, beta2, rest1, rest2, epsilon, decay;
};

// Adagrad with one sum of squares for a row. With D the row's elements:
//   g = gradient + decay * w;  accumulator += |g|^2 / D
//   w -= lr / (sqrt(accumulator) + epsilon) * g
// A row of D weights takes D + 1 numbers, with Adagrad 2 * D.
// Numbers: lr, decay, epsilon.
// Source: rowwise_adagrad of FBGEMM's embedding tables (fbgemm_gpu/codegen,
// with its weight decay of mode L2).
template <typename T>
struct RowwiseAdagrad {
  static constexpr UpdateScope kScope = UpdateScope::kRow;
  static constexpr int kFewestSlots = 1;
  static constexpr int kMostSlots = 1;
  explicit RowwiseAdagrad(const double* n)
      : lr(static_cast<T>(n[0])),
        decay(static_cast<T>(n[1])),
        epsilon(static_cast<T>(n[2])) {}

  WEFT_HOST_DEVICE T Decayed(T gradient, T w) const {
    return gradient + decay * w;
  }
  // What g is multiplied by.
  WEFT_HOST_DEVICE T Size(T accumulator) const {
    return lr / (std::sqrt(accumulator) + epsilon);
  }

  T lr, decay, epsilon;
};

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_UPDATE_RULES_H_
