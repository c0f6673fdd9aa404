// ShardTree: sums of virtual shards over one balanced binary tree, the same
// whoever owns the shards.
//
// A job has a fixed number of shards, a power of two. A rank owns a range of
// them, adds up what lies in complete subtrees of its own, and what is left of
// the tree is added up from the parts of all ranks. Floating-point addition is
// not associative, so it is the tree that makes a sum independent of the number
// of ranks: each of its additions is done once, with the same two operands,
// wherever that is.
//
//   ShardTree<float> tree;
//   for (int shard = 0; shard < 8; ++shard) {
//     tree.Add({shard, shard + 1}, value[shard],
//              [](float& left, float& right) { left += right; });
//   }
//   float sum = tree.parts()[0].value;   // ((0+1)+(2+3))+((4+5)+(6+7))
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DDP_SHARD_TREE_H_
#define WEFT_DDP_SHARD_TREE_H_

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/check.h"

namespace weft::ddp {

// Shards begin ... end - 1.
struct ShardRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
  friend bool operator==(const ShardRange& a, const ShardRange& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

inline constexpr int kMostVirtualShards = 1 << 12;

// kInvalidArgument, with both numbers: `shards` is no power of two from 1 to
// kMostVirtualShards, or there are more ranks than shards.
absl::Status CheckVirtualShards(int shards, int ranks);

// The shards that `rank` owns. The ranks' numbers of shards differ by one at
// most, the larger first: of 8, three ranks own 3, 3 and 2. REQUIRES: 0 <= rank
// < ranks <= shards.
ShardRange OwnShards(int rank, int ranks, int shards);

// The largest complete subtrees that `range` consists of, from left to right:
// of 3 ... 7 these are 3, 4 ... 7. At most two of each height.
std::vector<ShardRange> SubtreesOf(const ShardRange& range);

// Whether `left` and `right` are the two children of one node.
bool AreSiblings(const ShardRange& left, const ShardRange& right);

// The sums of subtrees that lie side by side, none of which are siblings.
template <typename T>
class ShardTree {
 public:
  struct Part {
    ShardRange shards;  // a complete subtree
    T value;
  };

  // `shards` is a complete subtree that begins where the last part ends. Calls
  // `add` for each pair of siblings that are there now: it makes `left` the sum
  // of both, and may take `right` apart.
  void Add(const ShardRange& shards, T value,
           absl::FunctionRef<void(T& left, T& right)> add) {
    WEFT_CHECK(parts_.empty() || parts_.back().shards.end == shards.begin)
        << shards.begin;
    parts_.push_back({shards, std::move(value)});
    while (parts_.size() > 1) {
      Part& left = parts_[parts_.size() - 2];
      Part& right = parts_.back();
      if (!AreSiblings(left.shards, right.shards)) return;
      add(left.value, right.value);
      left.shards.end = right.shards.end;
      parts_.pop_back();
    }
  }

  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  void Clear() { parts_.clear(); }

 private:
  std::vector<Part> parts_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_SHARD_TREE_H_
