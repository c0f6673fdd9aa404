// Census: what the ranks of a reducer tell each other in each step: how much
// each weighs, and which gradients it has. One sum over all ranks.

#ifndef WEFT_DDP_CENSUS_H_
#define WEFT_DDP_CENSUS_H_

#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::ddp {

// What one rank says.
struct CensusEntry {
  double weight = 1;
  bool has_gradients = false;
  std::vector<bool> is_ready;  // by parameter
  // By parameter: whether it contributes a whole gradient. Empty on all ranks
  // where nobody asks.
  std::vector<bool> is_whole;
};

// What all ranks say together.
struct Census {
  double total_weight = 0;
  int first_rank_with_data = 0;        // a weight above 0; 0 if there is none
  int first_rank_with_gradients = -1;  // -1: none has
  std::vector<bool> is_used;           // by parameter: ready on some rank
  std::vector<bool> is_whole;          // on some rank; true where nobody asked
};

// f64, to be summed over all ranks.
Tensor WriteCensus(const CensusEntry& entry, int rank, int world);

// Reads the sum of all ranks' entries for so many parameters. REQUIRES: written
// so by `world` ranks.
Census ReadCensus(const Tensor& sum, int world, int parameters);

}  // namespace weft::ddp

#endif  // WEFT_DDP_CENSUS_H_
