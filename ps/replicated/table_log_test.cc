// The log of tables on disks that lose power, are full, or have a bit flipped.

#include "weft/ps/replicated/table_log.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
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

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
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

// What newer copies have made old is in the file, and not in memory; the file
// is read in pieces.
TEST(TableLog, IsReadInPiecesHoweverLargeItIs) {
  const auto layout = TableLayout::Create(Spec());
  ASSERT_THAT(layout.status(), IsOk());
  constexpr int64_t kPayload = 300000;
  constexpr uint64_t kCopies = 40;
  constexpr uint64_t kEntries = 2;  // after each
  FakeFileSystem files;
  {
    auto log = TableLog::Open(On(files));
    ASSERT_THAT(log.status(), IsOk());
    ASSERT_THAT(
        (*log)->Begin({1, 1}, kBirth, CallbacksOf(std::make_shared<Told>())),
        IsOk());
    const uint32_t table = (*log)->AddTable(Spec(), 0, true, false);
    uint64_t n = 0;
    for (uint64_t copy = 0; copy < kCopies; ++copy) {
      (*log)->AppendCopy(
          {table, 0, 1, n}, Marks(), {},
          std::make_shared<const CopyInPieces>(
              **layout, PartitionImage{{}, {}, {}, {}}, RateChanges(), 1024));
      for (uint64_t i = 0; i < kEntries; ++i) {
        LogEntry entry = Entry(++n);
        entry.payload = Bytes::Own(std::string(kPayload, 'x'));
        (*log)->AppendEntry({table, 0, 1, n}, entry);
      }
      ASSERT_THAT((*log)->Await(), IsOk());
    }
  }
  const std::string path = "/ps0/00000001.log";
  const int64_t size = *files.Size(path);
  EXPECT_GT(size, static_cast<int64_t>(kCopies * kEntries) * kPayload);
  const auto log = TableLog::Open(On(files));
  ASSERT_THAT(log.status(), IsOk());
  EXPECT_LE(files.largest_read(), int64_t{1} << 20);
  EXPECT_GT(size, 20 * files.largest_read());
  const LoggedPartition& found =
      (*log)->found().tables().at(1).partitions.at(0);
  EXPECT_EQ(found.entries.size(), kEntries);
  EXPECT_EQ(found.n, (kCopies - 1) * kEntries);
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
  const std::string bytes = ReadAll(path);
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

// As by a cleaner of old files: what was appended before and after is found,
// and is not told to be on disk before it can be.
TEST_F(TableLogOnDisk, IsWrittenAnewWhereItWasRemoved) {
  const auto layout = TableLayout::Create(Spec());
  ASSERT_THAT(layout.status(), IsOk());
  auto log = TableLog::Open(Options());
  ASSERT_THAT(log.status(), IsOk());
  std::atomic<bool> may_copy{false};
  TableLog::Callbacks callbacks = CallbacksOf(told_);
  callbacks.copy_all = [&] {
    if (!may_copy) return false;
    Marks marks;
    marks[9].SkipTo(2);
    (*log)->AppendCopy(
        {1, 0, 1, 2}, marks, {},
        std::make_shared<const CopyInPieces>(
            **layout, PartitionImage{{}, {}, {}, {}}, RateChanges(), 1024));
    return true;
  };
  ASSERT_THAT((*log)->Begin({1, 1}, kBirth, std::move(callbacks)), IsOk());
  ASSERT_EQ((*log)->AddTable(Spec(), 0, true, false), 1u);
  (*log)->AppendEntry({1, 0, 1, 1}, Entry(1));
  ASSERT_THAT((*log)->Await(), IsOk());
  EXPECT_EQ(told_->Through(0), 1u);
  std::filesystem::remove_all(Options().directory);
  (*log)->AppendEntry({1, 0, 1, 2}, Entry(2));
  ASSERT_THAT((*log)->Await(), IsOk());
  EXPECT_EQ(told_->Through(0), 1u);
  may_copy = true;
  EXPECT_TRUE(Becomes([&] { return told_->Through(0) == 2; }));
  (*log)->Shutdown();
  log->reset();
  log = TableLog::Open(Options());
  ASSERT_THAT(log.status(), IsOk());
  ASSERT_EQ((*log)->found().tables().size(), 1u);
  EXPECT_EQ((*log)->found().tables().at(1).partitions.at(0).n, 2u);
}

// Copies take the place of what is older, while entries come; a partition that
// is not copied is void. What is older is removed one segment after another: a
// process that is killed amid that leaves some, which do not count.
TEST_F(TableLogOnDisk, IsWrittenAnewWhenItHasGrown) {
  const auto layout = TableLayout::Create(Spec());
  ASSERT_THAT(layout.status(), IsOk());
  TableLog::Options options = Options();
  options.least_growth = 4096;
  testing::TempDir kept;  // each segment that there was
  uint64_t n = 0;
  for (uint64_t life = 1; life <= 2; ++life) {
    auto log = TableLog::Open(options);
    ASSERT_THAT(log.status(), IsOk());
    uint32_t table = 1;
    Mutex mu;  // of partition 0
    TableLog::Callbacks callbacks = CallbacksOf(told_);
    callbacks.copy_all = [&] {
      MutexLock lock(mu);
      Marks marks;
      marks[9].SkipTo(n);
      (*log)->AppendCopy(
          {table, 0, 1, n}, marks, {},
          std::make_shared<const CopyInPieces>(
              **layout, PartitionImage{{}, {}, {}, {}}, RateChanges(), 1024));
      return true;
    };
    ASSERT_THAT((*log)->Begin({1, life}, kBirth, std::move(callbacks)), IsOk());
    if (life == 1) {
      ASSERT_EQ((*log)->AddTable(Spec(), 0, true, false), table);
      (*log)->AppendEntry({table, 1, 1, 1}, Entry(1));
    }
    const uint32_t dropped = (*log)->AddTable(Spec("u"), 0, true, false);
    (*log)->DropTable(dropped);
    const std::string first = Segments().at(0);
    EXPECT_TRUE(Becomes([&] {
      {
        MutexLock lock(mu);
        ++n;
        (*log)->AppendEntry({table, 0, 1, n}, Entry(n));
        (*log)->AppendEntry({dropped, 0, 1, n}, Entry(n));
      }
      EXPECT_THAT((*log)->Await(), IsOk());
      for (const std::string& path : Segments()) {
        std::error_code gone;
        std::filesystem::copy(path, kept.path(),
                              std::filesystem::copy_options::overwrite_existing,
                              gone);
      }
      return !std::filesystem::exists(first);
    }));
  }
  const auto expect_found = [&] {
    const auto log = TableLog::Open(Options());
    ASSERT_THAT(log.status(), IsOk());
    ASSERT_EQ((*log)->found().tables().size(), 1u);
    const LoggedTable& table = (*log)->found().tables().at(1);
    const LoggedPartition& found = table.partitions.at(0);
    EXPECT_FALSE(found.is_void);
    EXPECT_GT(found.n, 0u);
    EXPECT_EQ(found.marks.at(9).through(), found.n);
    EXPECT_EQ(found.entries.empty() ? found.n : found.entries.back().lsn.n, n);
    EXPECT_TRUE(table.IsVoid(1));
  };
  expect_found();
  std::vector<std::string> removed;
  for (const auto& file : std::filesystem::directory_iterator(kept.path())) {
    const std::string name = file.path().filename();
    if (!std::filesystem::exists(dir_.Path("ps0/" + name))) {
      removed.push_back(name);
    }
  }
  std::sort(removed.begin(), removed.end());
  ASSERT_FALSE(removed.empty());
  // The newest of them is removed last.
  for (; !removed.empty(); removed.pop_back()) {
    std::filesystem::copy(kept.Path(removed.back()), dir_.Path("ps0"));
    expect_found();
  }
  // They go with the next process.
  const size_t with_old_ones = Segments().size();
  Begin({1, 3}, Options());
  expect_found();
  EXPECT_LT(Segments().size(), with_old_ones);
  // Without the one that it begins with nothing is served.
  std::filesystem::remove(Segments().at(0));
  EXPECT_THAT(TableLog::Open(Options()).status(),
              StatusIs(absl::StatusCode::kDataLoss, "the log begins with"));
  const std::string begin = ReadAll(dir_.Path("ps0/begin"));
  for (size_t at = 0; at < begin.size(); ++at) {
    std::string flipped = begin;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    std::ofstream(dir_.Path("ps0/begin"), std::ios::binary) << flipped;
    EXPECT_THAT(TableLog::Open(Options()).status(),
                StatusIs(absl::StatusCode::kDataLoss, "/begin: "))
        << at;
  }
}

}  // namespace
}  // namespace weft::ps
