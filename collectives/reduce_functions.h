// What a reduction does with two accumulators, for loops on the CPU and for
// kernels: no Abseil here.

#ifndef WEFT_COLLECTIVES_REDUCE_FUNCTIONS_H_
#define WEFT_COLLECTIVES_REDUCE_FUNCTIONS_H_

#include <type_traits>

#include "weft/tensor/cuda/host_device.h"

namespace weft::collectives::internal {

// A sum that does not fit wraps; of signed integers that is undefined.
template <typename A, typename Op>
WEFT_HOST_DEVICE inline A Wrapping(A a, A b, Op op) {
  if constexpr (std::is_same_v<A, bool> || std::is_floating_point_v<A>) {
    return op(a, b);
  } else {
    using U = std::make_unsigned_t<A>;
    // 8-bit operands would be promoted to int, in which 16 of them overflow.
    using Wide = std::conditional_t<sizeof(U) < sizeof(unsigned), unsigned, U>;
    return static_cast<A>(op(static_cast<Wide>(static_cast<U>(a)),
                             static_cast<Wide>(static_cast<U>(b))));
  }
}

struct Add {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    if constexpr (std::is_same_v<A, bool>) {
      return a || b;
    } else {
      return Wrapping(a, b, [](auto x, auto y) { return x + y; });
    }
  }
};
struct Multiply {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    if constexpr (std::is_same_v<A, bool>) {
      return a && b;
    } else {
      return Wrapping(a, b, [](auto x, auto y) { return x * y; });
    }
  }
};
// The comparison is false for a NaN on either side.
struct Least {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) {
      return a != a ? a : (a < b ? a : b);
    } else {
      return a < b ? a : b;
    }
  }
};
struct Greatest {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) {
      return a != a ? a : (a > b ? a : b);
    } else {
      return a > b ? a : b;
    }
  }
};
struct BitAnd {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    return static_cast<A>(a & b);
  }
};
struct BitOr {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    return static_cast<A>(a | b);
  }
};
struct BitXor {
  template <typename A>
  WEFT_HOST_DEVICE A operator()(A a, A b) const {
    return static_cast<A>(a ^ b);
  }
};

// Calls run(function) with that of `op`, a ReduceOp or an enumeration with its
// names, on accumulators of type A. What CheckReduction refuses does not come
// here.
template <typename A, typename Op, typename Run>
WEFT_HOST_DEVICE void WithFunction(Op op, Run run) {
  switch (op) {
    case Op::kSum:
    case Op::kAverage:
      return run(Add());
    case Op::kProduct:
      return run(Multiply());
    case Op::kMin:
      return run(Least());
    case Op::kMax:
      return run(Greatest());
    default:
      break;
  }
  if constexpr (std::is_integral_v<A>) {
    if (op == Op::kAnd) return run(BitAnd());
    if (op == Op::kOr) return run(BitOr());
    if (op == Op::kXor) return run(BitXor());
  }
}

}  // namespace weft::collectives::internal

#endif  // WEFT_COLLECTIVES_REDUCE_FUNCTIONS_H_
