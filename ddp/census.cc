#include "weft/ddp/census.h"

#include <algorithm>

#include "weft/base/check.h"

namespace weft::ddp {

// [world] weights, [world] has_gradients, [parameters] is_ready, and
// [parameters] is_whole or nothing.
Tensor WriteCensus(const CensusEntry& entry, int rank, int world) {
  const auto entries = static_cast<int64_t>(2 * world + entry.is_ready.size() +
                                            entry.is_whole.size());
  Tensor census = Tensor::Zeros({entries}, DType::kF64);
  double* const counts = census.data<double>();
  counts[rank] = entry.weight;
  counts[world + rank] = entry.has_gradients;
  double* const ready = counts + 2 * world;
  std::copy(entry.is_ready.begin(), entry.is_ready.end(), ready);
  std::copy(entry.is_whole.begin(), entry.is_whole.end(),
            ready + entry.is_ready.size());
  return census;
}

Census ReadCensus(const Tensor& sum, int world, int parameters) {
  const bool was_asked = sum.numel() == 2 * world + 2 * parameters;
  WEFT_CHECK(was_asked || sum.numel() == 2 * world + parameters);
  const double* const counts = sum.data<double>();
  Census census;
  for (int rank = world - 1; rank >= 0; --rank) {
    census.total_weight += counts[rank];
    if (counts[rank] > 0) census.first_rank_with_data = rank;
    if (counts[world + rank] > 0) census.first_rank_with_gradients = rank;
  }
  const double* const ready = counts + 2 * world;
  for (int i = 0; i < parameters; ++i) {
    census.is_used.push_back(ready[i] > 0);
    census.is_whole.push_back(!was_asked || ready[parameters + i] > 0);
  }
  return census;
}

}  // namespace weft::ddp
