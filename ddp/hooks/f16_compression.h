// F16CompressionHook: sends gradients in f16, half the bytes of f32.
//
// What is not within 65504 of 0 becomes infinite; below 6e-8 it becomes 0. With
// Divisor::kTotalWeight the sum of gradients times their weights is what is
// sent: prefer bf16 there.

#ifndef WEFT_DDP_HOOKS_F16_COMPRESSION_H_
#define WEFT_DDP_HOOKS_F16_COMPRESSION_H_

#include <string>

#include "weft/ddp/hooks/compression.h"

namespace weft::ddp {

class F16CompressionHook final : public CompressionHook {
 public:
  F16CompressionHook() : CompressionHook(DType::kF16) {}
  std::string name() const override { return "f16"; }
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_HOOKS_F16_COMPRESSION_H_
