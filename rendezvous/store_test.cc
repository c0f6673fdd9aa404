// The conformance suite of stores: what every Store does.

#include "weft/rendezvous/store.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/thread_pool.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/etcd_store.h"
#include "weft/rendezvous/file_store.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/meeting_keys.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/rendezvous/prefix_store.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(50);

// Stores that share their keys.
class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  // Null: it cannot be had here.
  virtual std::unique_ptr<Store> Open() = 0;
};

class MemoryWorld final : public StoreWorld {
 public:
  std::unique_ptr<Store> Open() override {
    return std::make_unique<PrefixStore>("all", store_);
  }

 private:
  MemoryStore store_;
};

class BareMemoryWorld final : public StoreWorld {
 public:
  std::unique_ptr<Store> Open() override {
    return std::make_unique<Handed>(store_);
  }

 private:
  // The one store, in the hands of several.
  class Handed final : public Store {
   public:
    explicit Handed(Store& store) : store_(store) {}
    absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                                 absl::Duration timeout) override {
      return store_.Set(key, value, timeout);
    }
    absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                   absl::Duration timeout) override {
      return store_.Get(key, timeout);
    }
    absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                    absl::Duration timeout) override {
      return store_.Wait(key, after, timeout);
    }
    absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                                absl::Duration timeout) override {
      return store_.Add(key, delta, timeout);
    }
    absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                    uint64_t expected_version,
                                    absl::string_view value,
                                    absl::Duration timeout) override {
      return store_.CompareSet(key, expected_version, value, timeout);
    }
    absl::StatusOr<bool> Delete(absl::string_view key,
                                absl::Duration timeout) override {
      return store_.Delete(key, timeout);
    }
    absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                      absl::Duration timeout) override {
      return store_.CountKeys(prefix, timeout);
    }

   private:
    Store& store_;
  };

  MemoryStore store_;
};

class FileWorld final : public StoreWorld {
 public:
  std::unique_ptr<Store> Open() override {
    auto store = OpenFileStore({directory_.Path("store"), "run-1"});
    EXPECT_THAT(store, IsOk());
    return *std::move(store);
  }

 private:
  testing::TempDir directory_;
};

class GrpcWorld final : public StoreWorld {
 public:
  GrpcWorld() {
    chmod(directory_.path().c_str(), 0700);
    loop_ = *net::Loop::Create();
    timers_ = MakeLoopTimers(*loop_);
    executor_ = *ThreadPool::Create({});
    address_ = absl::StrCat("unix:", directory_.Path("c.sock"));
    coordinator_ = *Coordinator::Create(*timers_, *executor_, {});
    endpoint_ = *net::Endpoint::Open(*loop_, {"ps0", address_, "", {}});
    Serve(*coordinator_, *endpoint_);
    EXPECT_THAT(endpoint_->Start(), IsOk());
  }
  std::unique_ptr<Store> Open() override {
    return MakeStoreClient(*timers_, *MakeGrpcLink(*loop_, address_, "ps0"),
                           "job", /*client=*/0);
  }

 private:
  testing::TempDir directory_;
  std::string address_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<TimerSource> timers_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<net::Endpoint> endpoint_;
};

class EtcdWorld final : public StoreWorld {
 public:
  std::unique_ptr<Store> Open() override {
    if (!testing::Etcd::IsInstalled()) return nullptr;
    if (etcd_ == nullptr) {
      auto etcd = testing::Etcd::Start(directory_.path());
      EXPECT_THAT(etcd, IsOk());
      etcd_ = *std::move(etcd);
      loop_ = *net::Loop::Create();
      timers_ = MakeLoopTimers(*loop_);
    }
    return MakeEtcdStore(*timers_, *MakeEtcdLink(*loop_, etcd_->address()),
                         "weft/job");
  }

 private:
  testing::TempDir directory_;
  std::unique_ptr<testing::Etcd> etcd_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<TimerSource> timers_;
};

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<StoreWorld>()> make;

  friend void PrintTo(const StoreKind& kind, std::ostream* out) {
    *out << kind.name;
  }
};

template <typename World>
StoreKind KindOf(std::string name) {
  return {std::move(name), [] { return std::make_unique<World>(); }};
}

class StoreConformance : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    a_ = world_->Open();
    if (a_ == nullptr) GTEST_SKIP() << "etcd is not installed";
    b_ = world_->Open();
  }

  std::unique_ptr<StoreWorld> world_;
  std::unique_ptr<Store> a_;
  std::unique_ptr<Store> b_;
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreConformance,
    ::testing::Values(KindOf<BareMemoryWorld>("memory"),
                      KindOf<MemoryWorld>("memory_and_prefix"),
                      KindOf<FileWorld>("file"), KindOf<GrpcWorld>("grpc"),
                      KindOf<EtcdWorld>("etcd")),
    [](const auto& info) { return info.param.name; });

TEST_P(StoreConformance, ValueOfOneMemberIsReadByAnotherWithRisingVersions) {
  EXPECT_THAT(b_->Get("key", kLong),
              StatusIs(absl::StatusCode::kNotFound, "key"));
  const auto first = a_->Set("key", "one", kLong);
  ASSERT_THAT(first, IsOk());
  EXPECT_GT(*first, 0u);
  const auto second = b_->Set("key", std::string("tw\0o", 4), kLong);
  ASSERT_THAT(second, IsOk());
  EXPECT_GT(*second, *first);
  const auto found = a_->Get("key", kLong);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->value, std::string("tw\0o", 4));
  EXPECT_EQ(found->version, *second);
}

TEST_P(StoreConformance, AddCountsFromZeroAndRefusesOtherText) {
  EXPECT_THAT(a_->Add("count", 5, kLong), IsOkAndHolds(5));
  EXPECT_THAT(b_->Add("count", -7, kLong), IsOkAndHolds(-2));
  EXPECT_THAT(a_->Add("count", 0, kLong), IsOkAndHolds(-2));
  EXPECT_EQ(b_->Get("count", kLong)->value, "-2");
  ASSERT_THAT(a_->Set("word", "five", kLong), IsOk());
  EXPECT_THAT(b_->Add("word", 1, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument, "five"));
}

TEST_P(StoreConformance, NoAdditionIsLostAmongThreads) {
  constexpr int kThreads = 4, kTimes = 25;
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < kThreads; ++i) stores.push_back(world_->Open());
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < kTimes; ++k) {
        if (!stores[i]->Add("sum", 1, kLong).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_THAT(a_->Add("sum", 0, kLong), IsOkAndHolds(kThreads * kTimes));
}

TEST_P(StoreConformance, CompareSetAppliesOnlyToTheExpectedVersion) {
  const auto made = a_->CompareSet("key", 0, "a", kLong);
  ASSERT_THAT(made, IsOk());
  EXPECT_TRUE(made->applied);
  const auto refused = b_->CompareSet("key", 0, "b", kLong);
  ASSERT_THAT(refused, IsOk());
  EXPECT_FALSE(refused->applied);
  EXPECT_EQ(refused->now.value, "a");
  EXPECT_EQ(refused->now.version, made->now.version);
  const auto changed = b_->CompareSet("key", made->now.version, "b", kLong);
  ASSERT_THAT(changed, IsOk());
  EXPECT_TRUE(changed->applied);
  EXPECT_GT(changed->now.version, made->now.version);
  EXPECT_EQ(a_->Get("key", kLong)->value, "b");
  // The same of a key that is not there, whatever its version was.
  const auto absent = a_->CompareSet("none", changed->now.version, "x", kLong);
  ASSERT_THAT(absent, IsOk());
  EXPECT_FALSE(absent->applied);
  EXPECT_EQ(absent->now.version, 0u);
}

TEST_P(StoreConformance, AKeyThatIsMadeAgainHasAHigherVersion) {
  EXPECT_THAT(a_->Delete("key", kLong), IsOkAndHolds(false));
  const auto first = a_->Set("key", "x", kLong);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(b_->Delete("key", kLong), IsOkAndHolds(true));
  EXPECT_THAT(a_->Get("key", kLong), StatusIs(absl::StatusCode::kNotFound));
  const auto second = a_->Set("key", "x", kLong);
  ASSERT_THAT(second, IsOk());
  EXPECT_GT(*second, *first);
}

TEST_P(StoreConformance, WaitReturnsOnceTheVersionIsAbove) {
  const auto first = a_->Set("key", "one", kLong);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(b_->Wait("key", 0, kLong)->value, "one");
  std::thread setter(
      [&] { EXPECT_THAT(a_->Set("key", "two", kLong), IsOk()); });
  EXPECT_EQ(b_->Wait("key", *first, kLong)->value, "two");
  setter.join();
}

TEST_P(StoreConformance, WaitThatEndsAtItsDeadlineNamesTheKey) {
  EXPECT_THAT(a_->Wait("absent", 0, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "absent"));
}

TEST_P(StoreConformance, MultiGetWaitsForAllAndKeepsTheOrder) {
  ASSERT_THAT(a_->Set("x", "1", kLong), IsOk());
  std::thread setter([&] { EXPECT_THAT(a_->Set("y", "2", kLong), IsOk()); });
  const auto found = b_->MultiGet({"y", "x"}, kLong);
  setter.join();
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ((*found)[0].value, "2");
  EXPECT_EQ((*found)[1].value, "1");
  EXPECT_EQ(b_->MultiGet({}, kShort)->size(), 0u);
}

TEST_P(StoreConformance, DeadlineOfSeveralKeysListsThoseThatAreMissing) {
  ASSERT_THAT(a_->Set("here", "1", kLong), IsOk());
  // Long enough to find the first.
  const absl::Status status =
      b_->WaitAll({"here", "gone1", "gone2"}, absl::Seconds(1));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  const std::string text(status.message());
  EXPECT_THAT(
      text, AllOf(HasSubstr("missing: gone1, gone2"), Not(HasSubstr("here,"))));
  ASSERT_THAT(a_->Set("gone1", "", kLong), IsOk());
  ASSERT_THAT(a_->Set("gone2", "", kLong), IsOk());
  EXPECT_THAT(b_->WaitAll({"here", "gone1", "gone2"}, kLong), IsOk());
}

TEST_P(StoreConformance, AppendAddsToTheEndAndLosesNothing) {
  ASSERT_THAT(a_->Append("log", "ab", kLong), IsOk());
  std::thread other([&] {
    for (int i = 0; i < 10; ++i)
      EXPECT_THAT(a_->Append("log", "x", kLong), IsOk());
  });
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(b_->Append("log", "x", kLong), IsOk());
  other.join();
  EXPECT_EQ(b_->Get("log", kLong)->value, "ab" + std::string(20, 'x'));
}

TEST_P(StoreConformance, KeysAndValuesThatAreTooLongAreRefused) {
  EXPECT_THAT(a_->Set("key", std::string((1 << 20) + 1, 'x'), kLong),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(a_->Set(std::string((1 << 10) + 1, 'k'), "x", kLong),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(a_->Set("key", std::string(1 << 20, 'x'), kLong), IsOk());
}

// Each operation of a store, on one key.
absl::Status Do(int operation, Store& store, const std::string& key,
                absl::Duration timeout) {
  switch (operation) {
    case 0:
      return store.Set(key, "x", timeout).status();
    case 1:
      return store.Get(key, timeout).status();
    case 2:
      return store.Wait(key, 0, timeout).status();
    case 3:
      return store.Add(key, 1, timeout).status();
    case 4:
      return store.CompareSet(key, 0, "x", timeout).status();
    case 5:
      return store.Delete(key, timeout).status();
    case 6:
      return store.Append(key, "x", timeout).status();
    case 7:
      return store.WaitAll({key}, timeout);
    default:
      return store.MultiGet({key}, timeout).status();
  }
}
constexpr int kOperations = 9;

TEST_P(StoreConformance, EveryOperationRefusesAnEmptyKeyAndOneThatIsTooLong) {
  for (const std::string& key : {std::string(), std::string(1025, 'k')}) {
    for (int operation = 0; operation < kOperations; ++operation) {
      EXPECT_THAT(Do(operation, *a_, key, kLong),
                  StatusIs(absl::StatusCode::kInvalidArgument, "1 to 1024"))
          << operation << " " << key.size();
    }
  }
  EXPECT_THAT(a_->NumKeys(kLong), IsOkAndHolds(0));
}

TEST_P(StoreConformance, TimeoutOfZeroOrLessIsOverAndNothingIsDone) {
  ASSERT_THAT(a_->Set("7", "7", kLong), IsOk());
  for (const absl::Duration none :
       {absl::ZeroDuration(), absl::Seconds(-1), -absl::InfiniteDuration()}) {
    for (const char* key : {"7", "absent"}) {
      for (int operation = 0; operation < kOperations; ++operation) {
        EXPECT_THAT(Do(operation, *a_, key, none),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, key))
            << operation << " " << none;
      }
    }
    EXPECT_THAT(a_->NumKeys(none),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_EQ(b_->Get("7", kLong)->value, "7");
  EXPECT_THAT(b_->NumKeys(kLong), IsOkAndHolds(1));
}

TEST_P(StoreConformance, NumKeysCountsWhatIsThere) {
  EXPECT_THAT(a_->NumKeys(kLong), IsOkAndHolds(0));
  for (const char* key : {"a/1", "a/2", "a", "b"}) {
    ASSERT_THAT(a_->Set(key, "", kLong), IsOk());
  }
  ASSERT_THAT(a_->Add("b", 0, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(a_->Set("b", "again", kLong), IsOk());
  EXPECT_THAT(b_->NumKeys(kLong), IsOkAndHolds(4));
  EXPECT_THAT(b_->CountKeys("a/", kLong), IsOkAndHolds(2));
  EXPECT_THAT(b_->CountKeys("c", kLong), IsOkAndHolds(0));
  EXPECT_THAT(PrefixStore("a", *b_).NumKeys(kLong), IsOkAndHolds(2));
  ASSERT_THAT(b_->Delete("a/1", kLong), IsOkAndHolds(true));
  EXPECT_THAT(a_->NumKeys(kLong), IsOkAndHolds(3));
}

TEST_P(StoreConformance, TheLastToLeaveAMeetingRemovesItsKeys) {
  ASSERT_THAT(a_->Set("other", "", kLong), IsOk());
  const std::vector<std::string> keys = {"meet/0", "meet/1", "never made"};
  ASSERT_THAT(a_->Set("meet/0", "", kLong), IsOk());
  ASSERT_THAT(b_->Set("meet/1", "", kLong), IsOk());
  EXPECT_THAT(LeaveMeeting(*a_, "meet", 2, keys, kLong), IsOk());
  EXPECT_THAT(b_->Get("meet/0", kLong), IsOk());
  EXPECT_THAT(LeaveMeeting(*b_, "meet", 2, keys, kLong), IsOk());
  EXPECT_THAT(a_->NumKeys(kLong), IsOkAndHolds(1));
}

TEST_P(StoreConformance, RankMayStayUntilAllOthersHaveLeftAMeeting) {
  std::atomic<bool> has_left{false};
  std::thread other([&] {
    EXPECT_THAT(LeaveMeeting(*b_, "meet", 3, {}, kLong), IsOk());
    has_left = true;
    EXPECT_THAT(LeaveMeeting(*b_, "meet", 3, {}, kLong), IsOk());
  });
  AwaitOthersLeft(*a_, "meet", 3, kLong);
  EXPECT_TRUE(has_left);
  EXPECT_THAT(LeaveMeeting(*a_, "meet", 3, {}, kLong), IsOk());
  other.join();
  // Nobody leaves any more.
  AwaitOthersLeft(*a_, "meet", 3, absl::Milliseconds(20));
  EXPECT_THAT(a_->NumKeys(kLong), IsOkAndHolds(0));
}

// --- FileStore. --------------------------------------------------------------

TEST(FileStore, FileOfAnotherRunIsRefused) {
  testing::TempDir directory;
  const std::string path = directory.Path("store");
  ASSERT_THAT(OpenFileStore({path, "run-1"}), IsOk());
  EXPECT_THAT(OpenFileStore({path, "run-2"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "remove it"));
  EXPECT_THAT(OpenFileStore({path, ""}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  std::ofstream(directory.Path("text")) << "no store";
  EXPECT_THAT(OpenFileStore({directory.Path("text"), "run-1"}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(FileStore, RecordThatAKilledProcessHasHalfWrittenIsCutOff) {
  testing::TempDir directory;
  const std::string path = directory.Path("store");
  auto store = OpenFileStore({path, "run"});
  ASSERT_THAT(store, IsOk());
  ASSERT_THAT((*store)->Set("a", "1", kLong), IsOk());
  std::ofstream(path, std::ios::app | std::ios::binary)
      << std::string("\x20\0\0\0ha", 6);
  auto other = OpenFileStore({path, "run"});
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ((*other)->Get("a", kLong)->value, "1");
  ASSERT_THAT((*other)->Set("b", "2", kLong), IsOk());
  EXPECT_EQ((*store)->Get("b", kLong)->value, "2");
}

}  // namespace
}  // namespace weft::rendezvous
