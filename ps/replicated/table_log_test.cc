// The log of tables on disks that lose power, are full, or have a bit flipped.

#include "weft/ps/replicated/table_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/ps/replicated/frame.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using checkpoint::FakeFileSystem;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr uint64_t kBirth = 77;

v1::TableSpec Spec(const std::string& name = "t") {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.set_dim(2);
  spec.set_partitions(4);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  spec.set_durability(v1::TableSpec::LOGGED);
  return spec;
}

LogEntry Entry(uint64_t n) {
  LogEntry entry;
  entry.lsn = {3, n};
  entry.mark = {9, n, 1};
  entry.payload = Bytes::Copy(absl::StrCat("push ", n));
  return entry;
}

// What the callbacks were told.
struct Told {
  Mutex mu;
  std::vector<TableLog::Place> places ABSL_GUARDED_BY(mu);
  uint64_t Through(int partition) {
    MutexLock lock(mu);
    uint64_t n = 0;
    for (const TableLog::Place& place : places) {
      if (place.partition == partition) n = place.n;
    }
    return n;
  }
};

TableLog::Callbacks CallbacksOf(const std::shared_ptr<Told>& told) {
  return {[told](const std::vector<TableLog::Place>& places) {
            MutexLock lock(told->mu);
            told->places.insert(told->places.end(), places.begin(),
                                places.end());
          },
          [] { return false; }};
}

std::vector<uint64_t> Numbers(const TableLog& log, int partition) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, table] : log.found().tables()) {
    const auto it = table.partitions.find(partition);
    if (it == table.partitions.end()) continue;
    for (const LogEntry& entry : it->second.entries) {
      EXPECT_EQ(entry.payload.view(), absl::StrCat("push ", entry.lsn.n));
      numbers.push_back(entry.lsn.n);
    }
  }
  return numbers;
}

TableLog::Options On(FakeFileSystem& files) {
  TableLog::Options options;
  options.files = &files;
  options.directory = "/ps0";
  options.is_local = false;
  options.retry_after = absl::Milliseconds(1);
  return options;
}

// The power is cut at each byte that is written: what was told to be on disk is
// found, and nothing else than what was appended, in order.
TEST(TableLog, WhatWasToldToBeOnDiskIsFoundAfterAPowerCutAtAnyByte) {
  int64_t spent = 0;
  bool has_cut = false;
  for (int64_t budget = 0; budget <= spent + 1; ++budget) {
    FakeFileSystem files;
    const auto told = std::make_shared<Told>();
    {
      auto log = TableLog::Open(On(files));
      ASSERT_THAT(log.status(), IsOk());
      if (budget > 0) {
        files.FailAfter(budget, FakeFileSystem::Failure::kPowerCut);
      }
      if ((*log)->Begin({1, 1}, kBirth, CallbacksOf(told)).ok()) {
        const uint32_t table = (*log)->AddTable(Spec(), 0, true, false);
        for (uint64_t n = 1; n <= 4; ++n) {
          for (int p = 0; p < 2; ++p) {
            (*log)->AppendEntry({table, p, 1, n}, Entry(n));
          }
          if (!(*log)->Await().ok()) break;
        }
      }
      (*log)->Shutdown();
      if (budget == 0) spent = files.spent();
      has_cut = has_cut || files.has_failed();
    }
    files.Restart(static_cast<uint64_t>(budget));
    const auto again = TableLog::Open(On(files));
    ASSERT_THAT(again.status(), IsOk()) << budget;
    for (int p = 0; p < 2; ++p) {
      const std::vector<uint64_t> found = Numbers(**again, p);
      EXPECT_GE(found.size(), told->Through(p)) << budget;
      for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i + 1);
    }
  }
  EXPECT_TRUE(has_cut);
}

TEST(TableLog, FullDiskIsToldAndGoesOnOnceThereIsRoom) {
  FakeFileSystem files;
  const auto told = std::make_shared<Told>();
  {
    auto log = TableLog::Open(On(files));
    ASSERT_THAT(log.status(), IsOk());
    ASSERT_THAT((*log)->Begin({1, 1}, kBirth, CallbacksOf(told)), IsOk());
    const uint32_t table = (*log)->AddTable(Spec(), 0, true, false);
    (*log)->AppendEntry({table, 0, 1, 1}, Entry(1));
    ASSERT_THAT((*log)->Await(), IsOk());
    files.FailAfter(10, FakeFileSystem::Failure::kFull);
    (*log)->AppendEntry({table, 0, 1, 2}, Entry(2));
    EXPECT_THAT((*log)->Await(),
                StatusIs(absl::StatusCode::kResourceExhausted, "/ps0"));
    EXPECT_EQ(told->Through(0), 1u);
  }
  // What had not been told may be there or not.
  files.Restart(1);
  auto log = TableLog::Open(On(files));
  ASSERT_THAT(log.status(), IsOk());
  EXPECT_THAT(Numbers(**log, 0), ::testing::ElementsAre(1));
}

// On the system's files, where a thread may look on.
class TableLogOnDisk : public ::testing::Test {
 protected:
  TableLog::Options Options() const {
    TableLog::Options options;
    options.directory = dir_.Path("ps0");
    return options;
  }
  std::unique_ptr<TableLog> Begin(WorkerKey self,
                                  TableLog::Options options) const {
    auto log = TableLog::Open(std::move(options));
    EXPECT_THAT(log.status(), IsOk());
    EXPECT_THAT((*log)->Begin(self, kBirth, CallbacksOf(told_)), IsOk());
    return *std::move(log);
  }
  std::vector<std::string> Segments() const {
    std::vector<std::string> names;
    for (const auto& file :
         std::filesystem::directory_iterator(dir_.Path("ps0"))) {
      if (file.path().extension() == ".log") names.push_back(file.path());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  testing::TempDir dir_;
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
};

TEST_F(TableLogOnDisk, EachFlippedBitIsAnErrorThatNamesTheFileAndTheByte) {
  {
    const auto log = Begin({1, 1}, Options());
    const uint32_t table = log->AddTable(Spec(), 0, true, false);
    for (uint64_t n = 1; n <= 3; ++n) {
      log->AppendEntry({table, 0, 1, n}, Entry(n));
      ASSERT_THAT(log->Await(), IsOk());
    }
  }
  const std::string path = Segments().at(0);
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    std::ofstream(path, std::ios::binary) << flipped;
    EXPECT_THAT(TableLog::Open(Options()).status(),
                StatusIs(absl::StatusCode::kDataLoss, absl::StrCat(path, ": ")))
        << at;
    EXPECT_THAT(TableLog::Open(Options()).status().message(),
                HasSubstr(" at byte "));
  }
}

TEST_F(TableLogOnDisk, LogOfAnotherJobIsKeptAsideAndOneServerHasItOpen) {
  {
    const auto log = Begin({1, 1}, Options());
    log->AddTable(Spec(), 0, true, false);
    ASSERT_THAT(log->Await(), IsOk());
    EXPECT_THAT(TableLog::Open(Options()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "another server has it open"));
  }
  {
    const auto log = Begin({1, 2}, Options());
    EXPECT_EQ(log->found().tables().size(), 1u);
    EXPECT_EQ(log->found().owners().count({1, 1}), 1u);
  }
  auto other = TableLog::Open(Options());
  ASSERT_THAT(other.status(), IsOk());
  EXPECT_EQ((*other)->found().owners().size(), 2u);
  ASSERT_THAT((*other)->Begin({1, 1}, kBirth + 1, CallbacksOf(told_)), IsOk());
  EXPECT_EQ((*other)->found().birth(), 0u);
  EXPECT_EQ(Segments().size(), 1u);
  int kept = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(dir_.Path("ps0"))) {
    kept += absl::StrContains(file.path().string(), ".log.of-job-");
  }
  EXPECT_GT(kept, 0);
}

// Copies take the place of what is older, while entries come; a partition that
// is not copied is void.
TEST_F(TableLogOnDisk, IsWrittenAnewWhenItHasGrown) {
  const auto layout = TableLayout::Create(Spec());
  ASSERT_THAT(layout.status(), IsOk());
  TableLog::Options options = Options();
  options.least_growth = 4096;
  uint64_t n = 0;
  {
    auto log = TableLog::Open(options);
    ASSERT_THAT(log.status(), IsOk());
    uint32_t table = 0;
    Mutex mu;  // of partition 0
    TableLog::Callbacks callbacks = CallbacksOf(told_);
    callbacks.copy_all = [&] {
      MutexLock lock(mu);
      Marks marks;
      marks[9].SkipTo(n);
      (*log)->AppendCopy(
          {table, 0, 1, n}, marks,
          std::make_shared<const CopyInPieces>(
              **layout, PartitionImage{{}, {}, {}, {}}, RateChanges(), 1024));
      return true;
    };
    ASSERT_THAT((*log)->Begin({1, 1}, kBirth, std::move(callbacks)), IsOk());
    table = (*log)->AddTable(Spec(), 0, true, false);
    const std::string first = Segments().at(0);
    (*log)->AppendEntry({table, 1, 1, 1}, Entry(1));
    EXPECT_TRUE(Becomes([&] {
      {
        MutexLock lock(mu);
        ++n;
        (*log)->AppendEntry({table, 0, 1, n}, Entry(n));
      }
      EXPECT_THAT((*log)->Await(), IsOk());
      return !std::filesystem::exists(first);
    }));
  }
  const auto log = TableLog::Open(Options());
  ASSERT_THAT(log.status(), IsOk());
  const LoggedTable& table = (*log)->found().tables().at(1);
  const LoggedPartition& found = table.partitions.at(0);
  EXPECT_FALSE(found.is_void);
  EXPECT_GT(found.n, 0u);
  EXPECT_EQ(found.marks.at(9).through(), found.n);
  EXPECT_EQ(found.entries.empty() ? found.n : found.entries.back().lsn.n, n);
  EXPECT_TRUE(table.IsVoid(1));
}

}  // namespace
}  // namespace weft::ps
