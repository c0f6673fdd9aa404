// LookUp: which rows of which table, and in which form.

#ifndef WEFT_PS_EMBEDDING_LOOK_UP_H_
#define WEFT_PS_EMBEDDING_LOOK_UP_H_

#include <optional>

#include "weft/ps/client.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

struct LookUp {
  SparseTable* table = nullptr;  // borrowed
  // i64 of any shape, on the CPU, none negative. They may repeat.
  Tensor ids;
  // The sum or mean of the rows of the last dimension, as one bag.
  std::optional<BagMode> bag = std::nullopt;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_LOOK_UP_H_
