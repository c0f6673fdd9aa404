// SavedTables: checkpoints of small tables, as servers would have written them,
// for tests.

#ifndef WEFT_PS_EXPORT_SAVED_TABLES_H_
#define WEFT_PS_EXPORT_SAVED_TABLES_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "weft/base/check.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_life.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/shard/snapshot.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// A table: its rows are by key, or by slice.
struct TableContent {
  v1::TableSpec spec;
  int64_t version = 1;
  std::map<uint64_t, std::vector<float>> rows;
};

// Rows of two weights with Adagrad's slot.
inline v1::TableSpec WordsSpec() {
  v1::TableSpec spec;
  spec.set_name("words");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  spec.mutable_rule()->mutable_adagrad()->set_lr(0.1);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.5);
  spec.mutable_initializer()->set_seed(7);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.set_partitions(8);
  return spec;
}

inline v1::TableSpec VectorSpec(int64_t elements) {
  v1::TableSpec spec;
  spec.set_name("vector");
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(elements);
  spec.mutable_rule()->mutable_sgd()->set_lr(0.1);
  spec.set_mode(v1::TableSpec::SYNC);
  spec.set_shards(1);
  spec.set_partitions(4);
  return spec;
}

// Keys that lie far apart, some above 2^63.
inline uint64_t WordKey(int i) { return Mix64(i); }

// The weights of a row that is not there.
inline std::vector<float> FirstWeights(const v1::TableSpec& spec,
                                       uint64_t key) {
  std::vector<float> weights(spec.dim());
  (*TableLayout::Create(spec))->InitialWeights(key, absl::MakeSpan(weights));
  return weights;
}

// Row i holds i and -i.
inline TableContent Words(int rows) {
  TableContent words;
  words.spec = WordsSpec();
  words.version = 9;
  for (int i = 0; i < rows; ++i) {
    words.rows[WordKey(i)] = {1.0f * i, -1.0f * i};
  }
  return words;
}

// As Words, bounded, and with a slot that is one value for a row.
inline TableContent BoundedWords(int rows) {
  TableContent words = Words(rows);
  words.spec.mutable_rule()->mutable_rowwise_adagrad()->set_lr(0.1);
  words.spec.mutable_life()->set_max_rows(1'000'000);
  return words;
}

// Element i is i.
inline TableContent Vector(int64_t elements) {
  TableContent vector;
  vector.spec = VectorSpec(elements);
  vector.version = 3;
  const auto layout = *TableLayout::Create(vector.spec);
  float next = 0;
  for (int64_t slice = 0; slice < layout->slices(); ++slice) {
    std::vector<float>& row = vector.rows[slice];
    for (int64_t i = 0; i < layout->RowLength(slice); ++i)
      row.push_back(next++);
  }
  return vector;
}

// The part of a table that `server` has.
inline TableShard::Image ImageOf(const TableContent& table, int server,
                                 int servers) {
  const auto layout = *TableLayout::Create(table.spec);
  const Placement placement(table.spec.name(), table.spec.partitions(),
                            servers);
  std::map<int, PartitionImage> parts;
  for (int p = 0; p < table.spec.partitions(); ++p) {
    if (placement.ServerOf(p) == server) parts[p].slots.resize(layout->slots());
  }
  for (const auto& [key, weights] : table.rows) {
    const int p = layout->is_dense() ? placement.PartitionOfSlice(key)
                                     : placement.PartitionOfKey(key);
    if (placement.ServerOf(p) != server) continue;
    PartitionImage& part = parts[p];
    part.keys.push_back(key);
    part.steps.push_back(1);
    part.weights.insert(part.weights.end(), weights.begin(), weights.end());
    for (int s = 0; s < layout->slots(); ++s) {
      const size_t n = layout->slot_is_per_row(s) ? 1 : weights.size();
      part.slots[s].insert(part.slots[s].end(), n, 0.25f);
    }
    if (layout->limits().any()) part.touched.push_back(0);
  }
  TableShard::Image image;
  image.version = table.version;
  for (auto& [p, part] : parts) {
    if (layout->limits().any()) part.life = RowLife(layout->limits()).Format();
    image.partitions.emplace_back(p, part);
  }
  return image;
}

// Writes a checkpoint of `tables` as so many servers would, beside a model of a
// trainer; returns its name.
inline std::string SaveTables(const std::string& directory, int64_t step,
                              const std::vector<TableContent>& tables,
                              int servers, float model = 1.5f) {
  const auto opened = *checkpoint::CheckpointDirectory::Open({directory});
  const std::string attempt = *opened->Begin(step);
  std::vector<checkpoint::FileRecord> files;
  int number = 0;
  for (int server = 0; server < servers; ++server) {
    for (const TableContent& table : tables) {
      const auto shard =
          ToShard(server, table.spec, ImageOf(table, server, servers));
      WEFT_CHECK(shard.ok()) << shard.status();
      files.push_back(*opened->AddShard(attempt, number++,
                                        absl::StrCat("ps", server), *shard));
    }
  }
  checkpoint::Safetensors own;
  own.tensors["bias"] = Tensor::Full({3}, model);
  files.push_back(*opened->AddShard(attempt, 99999, "trainer0", own));
  return *opened->Commit(attempt, files, {{"epoch", "2"}});
}

// The rows of `after` that are not as in `before` or not in it, and the keys of
// `before` that it lacks.
inline PartitionImage ChangesOf(const TableContent& before,
                                const TableContent& after, int partition,
                                const PartitionImage& rows) {
  const auto layout = *TableLayout::Create(after.spec);
  const Placement placement(after.spec.name(), after.spec.partitions(), 1);
  TableContent changed = after;
  for (const auto& [key, weights] : before.rows) {
    const auto it = changed.rows.find(key);
    if (it != changed.rows.end() && it->second == weights) {
      changed.rows.erase(it);
    }
  }
  PartitionImage changes;
  changes.slots.resize(layout->slots());
  for (const auto& [p, image] : ImageOf(changed, 0, 1).partitions) {
    if (p == partition) changes = image;
  }
  changes.life = rows.life;
  changes.is_delta = true;
  for (const auto& [key, weights] : before.rows) {
    const bool is_here = !layout->is_dense() &&
                         placement.PartitionOfKey(key) == partition &&
                         after.rows.count(key) == 0;
    if (is_here) changes.removed.push_back(key);
  }
  return changes;
}

// The same as SaveTables, of what has changed since the newest checkpoint
// there, which has `before`: tables[i] was before[i]. Partitions that are a
// multiple of `whole` are saved whole.
inline std::string SaveChanges(const std::string& directory, int64_t step,
                               const std::vector<TableContent>& before,
                               const std::vector<TableContent>& tables,
                               int servers, int whole = 1000,
                               float model = 1.5f) {
  const auto opened = *checkpoint::CheckpointDirectory::Open(
      {directory, checkpoint::CheckpointDirectory::Options::kKeepAll});
  const auto parent = *opened->FindParent(1000);
  WEFT_CHECK(parent.has_value());
  const std::string attempt = *opened->Begin(step);
  std::vector<checkpoint::FileRecord> files;
  int number = 0;
  for (int server = 0; server < servers; ++server) {
    for (size_t t = 0; t < tables.size(); ++t) {
      TableShard::Image image = ImageOf(tables[t], server, servers);
      image.base = parent->attempt;
      for (auto& [p, rows] : image.partitions) {
        if (p % whole != whole - 1) {
          rows = ChangesOf(before[t], tables[t], p, rows);
        }
      }
      const auto shard = ToShard(server, tables[t].spec, image);
      WEFT_CHECK(shard.ok()) << shard.status();
      files.push_back(*opened->AddShard(attempt, number++,
                                        absl::StrCat("ps", server), *shard));
      files.back().is_delta = !BaseOf(shard->metadata).empty();
    }
  }
  checkpoint::Safetensors own;
  own.tensors["bias"] = Tensor::Full({3}, model);
  files.push_back(*opened->AddShard(attempt, 99999, "trainer0", own));
  return *opened->Commit(attempt, files, {{"epoch", "2"}}, parent);
}

inline std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  WEFT_CHECK(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void PutBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_SAVED_TABLES_H_
