// Chains: servers whose tables are saved as what has changed, and what two
// checkpoints have in common, for tests.

#ifndef WEFT_TESTS_OUTSIDE_DELTAS_CHAINS_H_
#define WEFT_TESTS_OUTSIDE_DELTAS_CHAINS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/export/difference.h"
#include "weft/ps/export/merge.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {

inline constexpr auto kSync = v1::TableSpec::SYNC;
inline constexpr auto kAsync = v1::TableSpec::ASYNC;
inline constexpr int kKeepAll =
    checkpoint::CheckpointDirectory::Options::kKeepAll;

// A directory of checkpoints.
struct Where {
  explicit Where(const std::string& path, int keep = kKeepAll)
      : path(path),
        files(*checkpoint::CheckpointDirectory::Open({path, keep})) {}

  // Writes one that has what has changed since `parent`; its name.
  absl::StatusOr<std::string> Save(Client& client, const SaveAs& as) {
    const auto attempt = files->Begin(++step);
    if (!attempt.ok()) return attempt.status();
    auto written = client.Save(path, *attempt, -1, as);
    if (!written.ok()) {
      files->Abandon(*attempt);
      return written.status();
    }
    auto name = files->Commit(*attempt, *std::move(written), {}, as.parent);
    if (!name.ok()) files->Abandon(*attempt);
    return name;
  }
  absl::StatusOr<std::string> SaveNext(Client& client, int full_every = 1000) {
    const auto parent = files->FindParent(full_every);
    if (!parent.ok()) return parent.status();
    return Save(client, SaveAs::Delta(*parent));
  }
  int64_t links(const std::string& name) {
    const auto manifest = files->ReadManifest(name);
    EXPECT_THAT(manifest, weft::testing::IsOk());
    return manifest.ok() ? manifest->links : -1;
  }

  const std::string path;
  const std::unique_ptr<checkpoint::CheckpointDirectory> files;
  int64_t step = 0;
};

// Both are of the same tables to the bit, and merge to the same bytes.
inline void ExpectSame(const std::string& a, const std::string& a_name,
                       const std::string& b, const std::string& b_name,
                       const std::string& scratch) {
  const auto opened_a = SavedCheckpoint::Open(a, a_name);
  const auto opened_b = SavedCheckpoint::Open(b, b_name);
  ASSERT_THAT(opened_a, weft::testing::IsOk());
  ASSERT_THAT(opened_b, weft::testing::IsOk());
  const auto difference = DifferenceBetween(**opened_a, **opened_b);
  ASSERT_THAT(difference, weft::testing::IsOk());
  EXPECT_TRUE(difference->IsNone())
      << a << "/" << a_name << " is not " << b << "/" << b_name;
  for (const TableDifference& table : difference->tables) {
    EXPECT_EQ(table.spec, "") << table.name;
    EXPECT_EQ(table.version_a, table.version_b) << table.name;
    EXPECT_EQ(table.rows_a, table.rows_b) << table.name;
    EXPECT_EQ(table.added + table.removed, 0) << table.name;
    EXPECT_EQ(table.changed, 0) << table.name;
    EXPECT_EQ(table.state_changed, 0) << table.name;
  }
  std::filesystem::remove_all(scratch);
  const auto merged_a = Merge(**opened_a, scratch + "/a");
  const auto merged_b = Merge(**opened_b, scratch + "/b");
  ASSERT_THAT(merged_a, weft::testing::IsOk());
  ASSERT_THAT(merged_b, weft::testing::IsOk());
  for (size_t i = 0; i < (*opened_b)->tables().size(); ++i) {
    const std::string file = "/" + checkpoint::ShardName(static_cast<int>(i));
    EXPECT_EQ(FileBytes(scratch + "/a/" + *merged_a + file) ==
                  FileBytes(scratch + "/b/" + *merged_b + file),
              true)
        << a_name << file;
  }
}

inline Tensor Keys(const std::vector<int64_t>& keys) {
  return Tensor::FromVector(keys);
}
inline absl::Status Push(SparseTable& table, const Tensor& keys,
                         double gradient) {
  const Shape shape = {keys.numel(), table.dim()};
  return weft::testing::GetStatus(
      table.Push(keys, Tensor::Full(shape, gradient)).Wait(kTimeout));
}
// The first weight of each row.
inline std::vector<float> Pull(SparseTable& table, const Tensor& keys) {
  const auto rows = table.Pull(keys).Wait(kTimeout);
  EXPECT_THAT(rows, weft::testing::IsOk());
  std::vector<float> firsts;
  if (!rows.ok()) return firsts;
  const std::vector<float> all = rows->ToVector<float>();
  for (size_t i = 0; i < all.size(); i += table.dim()) {
    firsts.push_back(all[i]);
  }
  return firsts;
}

// One client with one table of two servers.
struct One {
  One(const weft::testing::TempDir& dir, const v1::TableSpec& spec,
      int servers = 2)
      : job(servers, 1, nullptr, dir.path()), client(job.MakeClient(0)) {
    Open(spec);
  }
  void Open(const v1::TableSpec& spec) {
    table.reset();
    auto opened = client->Sparse(spec);
    EXPECT_THAT(opened, weft::testing::IsOk());
    if (opened.ok()) table = *std::move(opened);
  }
  TestJob job;
  std::unique_ptr<Client> client;
  std::unique_ptr<SparseTable> table;
};

inline v1::TableSpec Plain(v1::TableSpec::Mode mode = kAsync) {
  v1::TableSpec spec = SparseSpec(mode, 1);
  spec.set_partitions(4);
  return spec;
}
inline std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

}  // namespace weft::ps

#endif  // WEFT_TESTS_OUTSIDE_DELTAS_CHAINS_H_
