// Bf16CompressionHook: sends gradients in bf16, half the bytes of f32.
//
// The range is that of f32; 8 bits of precision are left.

#ifndef WEFT_DDP_HOOKS_BF16_COMPRESSION_H_
#define WEFT_DDP_HOOKS_BF16_COMPRESSION_H_

#include <string>

#include "weft/ddp/hooks/compression.h"

namespace weft::ddp {

class Bf16CompressionHook final : public CompressionHook {
 public:
  Bf16CompressionHook() : CompressionHook(DType::kBF16) {}
  std::string name() const override { return "bf16"; }
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_HOOKS_BF16_COMPRESSION_H_
