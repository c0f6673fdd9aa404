#include "weft/input/sharded_sampler.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/input/split_mix.h"

namespace weft::input {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 62;

}  // namespace

absl::StatusOr<ShardedSampler> ShardedSampler::Create(const Options& options) {
  if (options.size < 0 || options.size > kMaxSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ShardedSampler.size is ", options.size, ", allowed is [0, 2^62]"));
  }
  if (options.shards < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ShardedSampler.shards is ", options.shards, ", wanted at least 1"));
  }
  if (options.shard < 0 || options.shard >= options.shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("ShardedSampler.shard is ", options.shard,
                     ", allowed is [0, ", options.shards, ")"));
  }
  return ShardedSampler(options);
}

ShardedSampler::ShardedSampler(const Options& options)
    : options_(options), order_(0, 0) {
  Begin(0, 0);
}

void ShardedSampler::SetEpoch(int64_t epoch) {
  WEFT_CHECK_GE(epoch, 0);
  Begin(epoch, 0);
}

void ShardedSampler::Begin(int64_t epoch, int64_t used) {
  epoch_ = epoch;
  begin_ = used;
  drawn_ = 0;
  order_ = Permutation(options_.size, SplitMix64(options_.seed) ^ epoch);
  const int64_t left = std::max<int64_t>(options_.size - used, 0);
  share_ = left / options_.shards;
  if (options_.uneven == Uneven::kPad && left % options_.shards != 0) ++share_;
}

int64_t ShardedSampler::remaining() const { return share_ - drawn_; }

std::optional<int64_t> ShardedSampler::Next() {
  if (drawn_ == share_) return std::nullopt;
  // Past the end, padding begins again at the front.
  const int64_t place =
      (begin_ + drawn_ * options_.shards + options_.shard) % options_.size;
  ++drawn_;
  return options_.shuffle ? order_(place) : place;
}

ShardedSampler::State ShardedSampler::StateAfter(int64_t draws) const {
  State state;
  state.epoch = epoch_;
  // Padding uses nothing more.
  state.used = std::min(begin_ + draws * options_.shards, options_.size);
  state.size = options_.size;
  state.seed = options_.seed;
  state.shuffle = options_.shuffle;
  return state;
}

absl::Status ShardedSampler::LoadState(const State& state) {
  if (state.size != options_.size || state.seed != options_.seed ||
      state.shuffle != options_.shuffle) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ShardedSampler: the state is of size ", state.size, ", seed ",
        state.seed, ", shuffle ", state.shuffle, "; this sampler has size ",
        options_.size, ", seed ", options_.seed, ", shuffle ", options_.shuffle,
        "; start it with the same data and seed"));
  }
  if (state.epoch < 0 || state.used < 0 || state.used > state.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("ShardedSampler: no such place: epoch ", state.epoch, ", ",
                     state.used, " of ", state.size, " used"));
  }
  Begin(state.epoch, state.used);
  return absl::OkStatus();
}

std::vector<int> ShardsOf(int member, int members, int shards) {
  WEFT_CHECK(0 <= member && member < members) << member << " of " << members;
  WEFT_CHECK_GE(shards, 0);
  std::vector<int> served;
  for (int shard = member; shard < shards; shard += members) {
    served.push_back(shard);
  }
  return served;
}

std::string ShardedSampler::State::ToString() const {
  return absl::StrCat("epoch=", epoch, " used=", used, " size=", size,
                      " seed=", seed, " shuffle=", shuffle ? 1 : 0);
}

absl::StatusOr<ShardedSampler::State> ShardedSampler::State::Parse(
    absl::string_view text) {
  State state;
  int64_t shuffle = 0;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  const auto read = [&words](size_t i, absl::string_view name, auto* value) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    return parts.first == name && absl::SimpleAtoi(parts.second, value);
  };
  if (words.size() == 5 && read(0, "epoch", &state.epoch) &&
      read(1, "used", &state.used) && read(2, "size", &state.size) &&
      read(3, "seed", &state.seed) && read(4, "shuffle", &shuffle)) {
    state.shuffle = shuffle != 0;
    return state;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ShardedSampler: wanted \"", State().ToString(),
                   "\" with other numbers, found \"", text, "\""));
}

}  // namespace weft::input
