// Snapshot: a server's part of a table as the content of a checkpoint's shard,
// and back.
//
// Tensors of a shard, rows by ascending partition and key:
//   key        i64 [n]
//   step       i64 [n]
//   weight     f32 [n, dim], or of a dense table [elements of these slices]
//   slot.NAME  like weight, for each slot of the rule, or f32 [n] where a slot
//              is one value for a row
//   partition  i64 [p, 2]   each partition held here, and how many rows follow
// and of a table with RowLife
//   touched    i64 [n]      the version that touched the row
//   life       u8 [bytes]   RowLife::Format of each partition
//   life_bytes i64 [p]      how many of these are its
// and where a partition has only what has changed since another checkpoint
//   delta      u8 [p]       1: this one has
//   removed    i64 [t]      keys of rows that went since, by ascending key
//   removed_rows i64 [p]    how many of these are its
// and another format, and in the metadata base, the attempt of that checkpoint.
// Metadata: format, table (the spec), version, server, placement, and
// learning_rate (RateChanges::Format) if that was changed. A reader
// checks everything against the spec before any of it is used: files come from
// disks and people.

#ifndef WEFT_PS_SHARD_SNAPSHOT_H_
#define WEFT_PS_SHARD_SNAPSHOT_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/shard/table_shard.h"

namespace weft::ps {

// kInvalidArgument if the spec is none.
absl::StatusOr<checkpoint::Safetensors> ToShard(int server,
                                                const v1::TableSpec& spec,
                                                const TableShard::Image& image);

// Whether ToShard made it, by its metadata.
bool IsTableShard(const checkpoint::Metadata& metadata);
bool IsTableShard(const checkpoint::Safetensors& shard);

struct LoadedTable {
  v1::TableSpec spec;
  TableShard::Image image;
};

// What the metadata of a table's shard says: the spec, the version and the
// rates, without partitions. Errors as AddShard's.
absl::StatusOr<LoadedTable> ReadTableMetadata(
    const checkpoint::Metadata& metadata, const std::string& where);

// The attempt since which a table's shard has what has changed; empty: none.
std::string BaseOf(const checkpoint::Metadata& metadata);

// Turns `metadata` of a file that may be a delta into that of a file that has
// all rows.
void MakeWhole(checkpoint::Metadata& metadata);

// Adds what `shard` holds to `tables`, by the table's name. kDataLoss or
// kInvalidArgument, saying what and `where`, for a shard that is no table's,
// does not fit the spec in it, differs from an earlier one in spec or version,
// or repeats a partition.
absl::Status AddShard(const checkpoint::Safetensors& shard,
                      const std::string& where,
                      std::map<std::string, LoadedTable>& tables);

// Completes `delta`, all shards of checkpoint `where`, to the tables as they
// were then; `base` is what they were at its parent, which was written as
// attempt `base_attempt`, and is used up. For a checkpoint without a parent
// both are empty. kDataLoss if they do not fit: a delta since another attempt,
// of a table or a partition that the parent has not, with another spec, or a
// later version; or if a partition of a table is missing.
absl::Status ApplyTo(std::map<std::string, LoadedTable> base,
                     const std::string& base_attempt, const std::string& where,
                     std::map<std::string, LoadedTable>& delta);

// kDataLoss if a partition of `table` was in none of the shards that were
// added, those of checkpoint `where`: its rows would begin anew.
absl::Status CheckWhole(const LoadedTable& table, const std::string& where);

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_SNAPSHOT_H_
