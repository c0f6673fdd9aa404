// What the tests of TableShard share: a table on its only server, and workers
// that push to it.

#ifndef WEFT_PS_SHARD_TABLE_SHARD_FIXTURE_H_
#define WEFT_PS_SHARD_TABLE_SHARD_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/ps/core/cut.h"
#include "weft/ps/shard/table_shard.h"

namespace weft::ps {

inline constexpr int kPartitions = 8;

inline v1::TableSpec Spec(v1::TableSpec::Kind kind, v1::TableSpec::Mode mode) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(kind);
  spec.set_elements(5);
  spec.set_dim(2);
  spec.set_mode(mode);
  spec.set_shards(2);
  spec.set_partitions(kPartitions);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}

inline std::unique_ptr<TableShard> Shard(v1::TableSpec::Kind kind,
                                         v1::TableSpec::Mode mode) {
  return *TableShard::Create(Spec(kind, mode), /*server=*/0, /*servers=*/1);
}

inline absl::StatusOr<ShardReply> Now(Future<ShardReply> future) {
  return future.Wait(absl::ZeroDuration());
}

// One worker's view of a sparse or dense shard on the only server.
class Worker {
 public:
  Worker(TableShard* shard, int rank)
      : shard_(shard),
        rank_(rank),
        client_(100 + rank),
        placement_("t", kPartitions, 1),
        layout_(*TableLayout::Create(shard->spec())) {}

  // Each key's gradient is {value, value}.
  Future<ShardReply> Sparse(int64_t round, std::vector<int64_t> keys,
                            float value, bool pull = true, int of_shard = -1) {
    v1::Request request = Request(round, pull);
    if (of_shard >= 0) request.set_shard(of_shard);
    const SparseCut cut = CutSparse(keys, placement_);
    std::vector<int64_t> sorted;
    for (const SparsePart::Group& group : cut.parts[0].groups) {
      AddSpan(request, group.partition, group.end - group.begin);
    }
    for (uint64_t key : cut.keys) {
      sorted.push_back(static_cast<int64_t>(key));
    }
    const int64_t n = static_cast<int64_t>(sorted.size());
    const Tensor k = Tensor::FromVector<int64_t>(sorted);
    return shard_->Handle(request, k, Tensor::Full({n, 2}, value), k,
                          Instant::Infinite());
  }

  inline Future<ShardReply> Dense(int64_t round, std::vector<float> gradient,
                                  int of_shard = -1, bool take_over = false) {
    v1::Request request = Request(round, /*pull=*/true);
    if (of_shard >= 0) request.set_shard(of_shard);
    request.set_take_over(take_over);
    const std::vector<DensePart> cut = CutDense(*layout_, placement_);
    for (const DensePart::Group& group : cut[0].groups) {
      AddSpan(request, group.partition, group.slices.size());
    }
    return shard_->Handle(request, Tensor(), Tensor::FromVector(gradient),
                          Tensor(), Instant::Infinite());
  }

  inline void set_client(uint64_t client) { client_ = client; }

 private:
  v1::Request Request(int64_t round, bool pull) const {
    v1::Request request;
    request.set_table("t");
    request.set_client(client_);
    request.set_rank(rank_);
    request.set_shard(rank_);
    request.set_push(true);
    request.set_pull(pull);
    request.set_round(round);
    return request;
  }
  void AddSpan(v1::Request& request, int partition, int64_t rows) const {
    request.add_partitions(partition);
    request.add_rows(rows);
    if (shard_->spec().mode() == v1::TableSpec::ASYNC) {
      request.add_sequences(1);
    }
  }

  TableShard* shard_;
  int rank_;
  uint64_t client_;
  Placement placement_;
  std::unique_ptr<TableLayout> layout_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_TABLE_SHARD_FIXTURE_H_
