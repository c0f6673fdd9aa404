#include "weft/ddp/shard_tree.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace weft::ddp {
namespace {

bool IsPowerOfTwo(int n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

absl::Status CheckVirtualShards(int shards, int ranks) {
  if (!IsPowerOfTwo(shards) || shards > kMostVirtualShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("virtual shards: wanted a power of two from 1 to ",
                     kMostVirtualShards, ", found ", shards));
  }
  if (ranks > shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "virtual shards: wanted at least one for each of ", ranks,
        " ranks, found ", shards, "; raise their number or start fewer ranks"));
  }
  return absl::OkStatus();
}

ShardRange OwnShards(int rank, int ranks, int shards) {
  WEFT_CHECK(0 <= rank && rank < ranks && ranks <= shards)
      << rank << " of " << ranks << " of " << shards;
  const auto begin_of = [&](int r) {
    return static_cast<int>((int64_t{shards} * r + ranks - 1) / ranks);
  };
  return {begin_of(rank), begin_of(rank + 1)};
}

std::vector<ShardRange> SubtreesOf(const ShardRange& range) {
  std::vector<ShardRange> subtrees;
  for (int begin = range.begin; begin < range.end;) {
    int size = 1;
    while (begin % (2 * size) == 0 && begin + 2 * size <= range.end) size *= 2;
    subtrees.push_back({begin, begin + size});
    begin += size;
  }
  return subtrees;
}

bool AreSiblings(const ShardRange& left, const ShardRange& right) {
  return left.size() == right.size() && left.end == right.begin &&
         left.begin % (2 * left.size()) == 0;
}

}  // namespace weft::ddp
