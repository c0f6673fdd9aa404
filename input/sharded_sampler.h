// ShardedSampler: which examples a shard of the data has, and in which order.
//
// An epoch is one order of all indices, dealt to the shards in turn: after k
// draws of each shard, the first k * shards indices of the order are used. A
// job chooses the number of shards once. A rank serves one shard or several,
// with a sampler for each, and who serves a shard may change: a sampler made
// elsewhere goes on from the shard's State with the same indices. So neither
// the order nor what one step uses depends on how many ranks there are.
//
// An epoch can be continued with another number of shards, too; what follows is
// then dealt in another way.
//
// Every shard draws equally often: with kPad the first indices of the order
// come again at the end, with kDrop the last ones are left out.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_INPUT_SHARDED_SAMPLER_H_
#define WEFT_INPUT_SHARDED_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/input/permutation.h"

namespace weft::input {

class ShardedSampler {
 public:
  enum class Uneven { kPad, kDrop };
  struct Options {
    int64_t size = 0;  // of the dataset
    int shard = 0;
    int shards = 1;
    uint64_t seed = 0;  // the same for every shard
    bool shuffle = true;
    Uneven uneven = Uneven::kPad;
  };

  // A place in the data: the same for every shard after equally many draws.
  struct State {
    int64_t epoch = 0;
    int64_t used = 0;  // by all shards together, in this epoch
    int64_t size = 0;
    uint64_t seed = 0;
    bool shuffle = true;

    // One line of text, for a checkpoint's metadata.
    std::string ToString() const;
    static absl::StatusOr<State> Parse(absl::string_view text);
  };

  // kInvalidArgument names the option, its value and what is allowed.
  static absl::StatusOr<ShardedSampler> Create(const Options& options);

  // Goes to the beginning of `epoch`; each has an order of its own. Create
  // begins epoch 0. REQUIRES: epoch >= 0.
  void SetEpoch(int64_t epoch);

  // How many indices this shard draws from here to the epoch's end.
  int64_t remaining() const;

  // The next index; nothing at the end of the epoch.
  std::optional<int64_t> Next();

  State state() const { return StateAfter(drawn_); }
  // The state when this shard had drawn `draws` since SetEpoch or LoadState.
  State StateAfter(int64_t draws) const;

  // Continues there, with this sampler's shard. kInvalidArgument if
  // the state is of other data: its size, seed or shuffle differ.
  absl::Status LoadState(const State& state);

 private:
  explicit ShardedSampler(const Options& options);

  void Begin(int64_t epoch, int64_t used);

  Options options_;
  Permutation order_;
  int64_t epoch_ = 0;
  int64_t begin_ = 0;  // what was used of the epoch before the first draw
  int64_t share_ = 0;  // draws of each shard from begin_ on
  int64_t drawn_ = 0;
};

// The shards that `member` of `members` serves while all are there: member,
// member + members, ... REQUIRES: 0 <= member < members, shards >= 0.
std::vector<int> ShardsOf(int member, int members, int shards);

}  // namespace weft::input

#endif  // WEFT_INPUT_SHARDED_SAMPLER_H_
