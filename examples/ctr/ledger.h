// Ledger: a table beside the model by which a reader can tell whether what it
// reads is whole. Each round enters kRows new rows and adds one to kRows rows
// that stay; a row that no round names for kIdle further ones goes. So what the
// ledger holds at version v is a function of v:
//
//   row i of round r    r + 1 in each column, for v - kIdle - 1 <= r < v
//   count i             v in each column
//
// Keys are spread over all partitions, and so over all servers. All values are
// whole numbers below 2^24, which f32 has exactly. In some tens of rounds most
// rows stay as they are: so a checkpoint of what has changed since one of then
// has the rows that came, and the keys of those that went.

#ifndef WEFT_EXAMPLES_CTR_LEDGER_H_
#define WEFT_EXAMPLES_CTR_LEDGER_H_

#include <cstdint>
#include <vector>

#include "weft/weft.h"

namespace example::ledger {

inline constexpr char kTable[] = "ledger";
inline constexpr int64_t kDim = 4;
inline constexpr int64_t kRows = 16;
inline constexpr int64_t kIdle = 128;

inline int64_t KeyOfRound(int64_t round, int64_t i) {
  return round * kRows + i;
}
inline int64_t KeyOfCount(int64_t i) { return (int64_t{1} << 48) + i; }

// What row `i` of `round` holds at `version`; 0: there is none.
inline int64_t Wanted(int64_t version, int64_t round) {
  return version - kIdle - 1 <= round && round < version ? round + 1 : 0;
}

inline weft::ps::v1::TableSpec Spec(int shards) {
  weft::ps::v1::TableSpec spec;
  spec.set_name(kTable);
  spec.set_kind(weft::ps::v1::TableSpec::SPARSE);
  spec.set_dim(kDim);
  spec.set_partitions(8);
  spec.set_mode(weft::ps::v1::TableSpec::SYNC);
  spec.set_shards(shards);
  spec.set_reduction(weft::ps::v1::TableSpec::SUM);
  spec.set_orphans(weft::ps::v1::TableSpec::WAIT);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);  // a row less its gradient
  spec.mutable_life()->set_idle_versions(kIdle);
  return spec;
}

// The part of `round` that trainer `rank` of `trainers` gives.
struct Part {
  weft::Tensor keys;       // i64 [n]
  weft::Tensor gradients;  // f32 [n, kDim]
};
inline Part PartOf(int64_t round, int rank, int trainers) {
  std::vector<int64_t> keys;
  std::vector<float> gradients;
  for (int64_t i = rank; i < kRows; i += trainers) {
    keys.push_back(KeyOfRound(round, i));
    keys.push_back(KeyOfCount(i));
    gradients.insert(gradients.end(), kDim, -static_cast<float>(round + 1));
    gradients.insert(gradients.end(), kDim, -1.0f);
  }
  const auto n = static_cast<int64_t>(keys.size());
  return {weft::Tensor::FromVector<int64_t>(keys),
          weft::Tensor::FromVector<float>(gradients, {n, kDim})};
}

}  // namespace example::ledger

#endif  // WEFT_EXAMPLES_CTR_LEDGER_H_
