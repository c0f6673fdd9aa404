// What local_world.h, backend.h and process_group.h say of groups of few and of
// very many ranks of one process: each operation, a difference at each place, a
// rank that is killed or held at any moment, and a backend that begins
// operations and ends them by events. The backends check what they are told is
// asked of them.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/parts.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::weft::collectives::Backend;
using ::weft::collectives::CallOptions;
using ::weft::collectives::LocalWorld;
using ::weft::collectives::Operation;
using ::weft::collectives::PointToPoint;
using ::weft::collectives::ProcessGroup;
using ::weft::collectives::ReduceOp;
using ::weft::collectives::SubgroupSpec;
using ::weft::collectives::Transfer;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr auto kCancelled = absl::StatusCode::kCancelled;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

LocalWorld::Options QuietWorld() {
  LocalWorld::Options options;
  options.diagnosis.report_after = absl::Minutes(5);
  return options;
}

std::vector<float> Values(const Tensor& tensor) {
  return tensor.ToVector<float>();
}
std::vector<float> Equal(int64_t n, double value) {
  return std::vector<float>(n, static_cast<float>(value));
}
std::vector<float> UpTo(int n) {
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  return values;
}

// Each operation once, with exact values.
absl::Status CallCollectives(ProcessGroup& group) {
  const int n = group.size(), r = group.rank();
  const double sum = n * (n + 1) / 2.0;
  const Tensor a = Tensor::Full({3}, r + 1), b = Tensor::Full({2}, r + 1);
  const Tensor c = Tensor::Zeros({2});
  const Future<void> first = group.AllReduceAsync(a);
  const Future<void> second = group.AllReduceIntoAsync(b, c);
  WEFT_RETURN_IF_ERROR(second.Wait(absl::Minutes(2)));
  WEFT_RETURN_IF_ERROR(first.Wait(absl::Minutes(2)));
  EXPECT_EQ(Values(a), Equal(3, sum));
  EXPECT_EQ(Values(c), Equal(2, sum));
  const Tensor d = Tensor::Full({2}, r);
  WEFT_RETURN_IF_ERROR(group.Broadcast(d, n - 1));
  EXPECT_EQ(Values(d), Equal(2, n - 1));
  const Tensor e = Tensor::Full({2}, r);
  WEFT_RETURN_IF_ERROR(group.Reduce(e, n / 2, ReduceOp::kMax));
  EXPECT_EQ(Values(e), Equal(2, r == n / 2 ? n - 1 : r));
  const Tensor f = Tensor::Zeros({n});
  WEFT_RETURN_IF_ERROR(group.AllGather(Tensor::Full({1}, r), f));
  EXPECT_EQ(Values(f), UpTo(n));
  const Tensor g = Tensor::Zeros({1});
  WEFT_RETURN_IF_ERROR(
      group.ReduceScatter(Tensor::FromVector<float>(UpTo(n)), g));
  EXPECT_EQ(Values(g), Equal(1, static_cast<double>(n) * r));
  const Tensor h = Tensor::Zeros({n});
  WEFT_RETURN_IF_ERROR(group.AllToAll(Tensor::Full({n}, r), h));
  EXPECT_EQ(Values(h), UpTo(n));
  std::vector<Tensor> list;
  if (r == 0) {
    for (int i = 0; i < n; ++i) list.push_back(Tensor::Full({2}, i));
  }
  const Tensor k = Tensor::Zeros({2});
  WEFT_RETURN_IF_ERROR(group.Scatter(list, k, 0));
  EXPECT_EQ(Values(k), Equal(2, r));
  WEFT_RETURN_IF_ERROR(group.Gather(Tensor::Full({2}, 2 * r), list, 0));
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(Values(list[i]), Equal(2, 2.0 * static_cast<double>(i)));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> bytes,
                        group.AllGatherBytes(std::string(r % 5, 'x')));
  EXPECT_EQ(bytes[n - 1].size(), static_cast<size_t>((n - 1) % 5));
  // Refused on every rank, and the group goes on.
  EXPECT_THAT(group.Broadcast(d, n), StatusIs(kInvalidArgument));
  return group.BarrierAsync().Wait(absl::Minutes(2));
}

absl::Status CallTheRest(ProcessGroup& group) {
  const int n = group.size(), r = group.rank();
  WEFT_ASSIGN_OR_RETURN(const Part third, group.Split(r % 3, -r));
  EXPECT_EQ(third->size(), (n - r % 3 + 2) / 3);
  EXPECT_EQ(third->parent_ranks()[third->rank()], r);
  for (int p = 0; p < n; ++p) {
    EXPECT_EQ(third->RankOfParent(p).has_value(), p % 3 == r % 3);
  }
  WEFT_RETURN_IF_ERROR(Works(*third));
  std::vector<int> reversed(n);
  for (int i = 0; i < n; ++i) reversed[i] = n - 1 - i;
  WEFT_ASSIGN_OR_RETURN(
      const Part all,
      std::move(group.SubgroupAsync(reversed)).Wait(absl::Minutes(2)));
  EXPECT_EQ(all->rank(), n - 1 - r);
  EXPECT_EQ(all->parent_ranks(), reversed);
  WEFT_RETURN_IF_ERROR(Works(*all));
  const Tensor in = Tensor::Zeros({2});
  std::vector<PointToPoint> parts;
  if (n > 1) {
    parts = {{PointToPoint::kReceive, in, (r + n - 1) % n, 5},
             {PointToPoint::kSend, Tensor::Full({2}, r), (r + 1) % n, 5}};
  }
  WEFT_RETURN_IF_ERROR(group.ExchangeAsync(parts).Wait(absl::Minutes(2)));
  EXPECT_EQ(Values(in), Equal(2, n > 1 ? (r + n - 1) % n : 0));
  return Works(group);
}

// --- Few and many ranks. -----------------------------------------------------

class LocalRanks : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, LocalRanks, ::testing::Values(1, 2, 3, 65, 256),
                         ::testing::PrintToStringParamName());

TEST_P(LocalRanks, EachOperationIsRight) {
  LocalWorld world(GetParam(), QuietWorld());
  const auto statuses = RunRanks(GetParam(), [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    WEFT_RETURN_IF_ERROR(CallCollectives(*group));
    return CallTheRest(*group);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "From now on all groups with this rank of the world find it ended ...; its
// own operations end in kCancelled." "kUnavailable: its number is named."
TEST_P(LocalRanks, RankThatIsKilledAmidSplitsIsNamed) {
  const int n = GetParam();
  if (n == 1) return;
  const int killed = n / 2;
  LocalWorld world(n, QuietWorld());
  std::atomic<int> begun{0};
  std::atomic<bool> was_killed{false};
  Gate all_have_begun;
  std::thread kills([&] {
    all_have_begun.Wait();
    world.Kill(killed);
    was_killed = true;
  });
  const auto statuses = RunRanks(n, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    for (int i = 0; i < 10'000 || !was_killed; ++i) {
      if (i == 1 && ++begun == n) all_have_begun.Open();
      WEFT_RETURN_IF_ERROR(
          group->SplitAsync(0).Wait(absl::Minutes(2)).status());
    }
    return absl::OkStatus();
  });
  all_have_begun.Open();  // where one has failed before
  kills.join();
  for (int r = 0; r < n; ++r) {
    if (r == killed) {
      EXPECT_THAT(statuses[r], StatusIs(kCancelled));
    } else {
      EXPECT_THAT(statuses[r],
                  StatusIs(kUnavailable, absl::StrCat("rank ", killed)));
    }
  }
}

// In a group of others ranks its number is the one that it has there.
TEST(LocalRanksKilled, AreNamedByTheirRankInEachGroup) {
  LocalWorld world(5, QuietWorld());
  std::atomic<int> made{0};
  const auto statuses = RunRanks(5, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    WEFT_ASSIGN_OR_RETURN(const Part some, group->Subgroup({4, 3, 2, 1}));
    Part few;
    if (some != nullptr) {
      WEFT_ASSIGN_OR_RETURN(few, some->SubgroupAsync({2, 3}).Wait(kPatience));
    }
    ++made;
    EXPECT_TRUE(weft::testing::Becomes([&] { return made >= 5; }));
    if (rank == 1) {
      world.Kill(1);
      EXPECT_THAT(group->Barrier(), StatusIs(kCancelled));
      EXPECT_THAT(few->Barrier(), StatusIs(kCancelled));
      EXPECT_THAT(some->SplitAsync(0).Wait(kPatience).status(),
                  StatusIs(kCancelled));
      return absl::OkStatus();
    }
    if (few != nullptr) {  // world ranks 2 and 1
      EXPECT_EQ(rank, 2);
      EXPECT_THAT(few->SplitAsync(0).Wait(kPatience).status(),
                  StatusIs(kUnavailable, "rank 1"));
    }
    if (some != nullptr) {
      EXPECT_THAT(some->SplitAsync(0).Wait(kPatience).status(),
                  StatusIs(kUnavailable, "rank 3"));
    }
    EXPECT_THAT(group->SplitAsync(0).Wait(kPatience).status(),
                StatusIs(kUnavailable, "rank 1"));
    WEFT_RETURN_IF_ERROR(group->Shrink({0, 2, 3, 4}));
    EXPECT_EQ(group->RankOfParent(4).value_or(-1), 3);
    EXPECT_FALSE(group->RankOfParent(1).has_value());
    return CallTheRest(*group);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Killed twice, before it comes, and once it has left: it is ended, no more.
TEST(LocalRanksKilled, MayHaveEndedBefore) {
  LocalWorld world(3, QuietWorld());
  world.Kill(2);
  world.Kill(2);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    return group->SplitAsync(0).Wait(kPatience).status();
  });
  EXPECT_THAT(statuses[0], StatusIs(kUnavailable, "rank 2"));
  EXPECT_THAT(statuses[1], StatusIs(kUnavailable, "rank 2"));
  EXPECT_THAT(statuses[2], StatusIs(kCancelled));
  world.Kill(0);
  world.Hold(1);
  world.Release(1);
  world.Release(1);
}

// "Messages that `rank` sends are held back, until Release; it sends no more
// meanwhile."
TEST(LocalRanksHeld, AreWaitedForAndNamedAtTheDeadline) {
  LocalWorld world(3, QuietWorld());
  std::atomic<int> come{0}, late{0}, holds{0};
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(world.Connect(rank));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (++come == 3) {
      world.Hold(1);
      ++holds;
    }
    EXPECT_TRUE(weft::testing::Becomes([&] { return holds >= 1; }));
    Future<Part> part = group->SplitAsync(0);
    if (rank == 0) {
      absl::SleepFor(absl::Milliseconds(100));
      EXPECT_FALSE(part.IsReady());
      world.Release(1);
    }
    WEFT_ASSIGN_OR_RETURN(const Part made, std::move(part).Wait(kPatience));
    WEFT_RETURN_IF_ERROR(Works(*made));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (++late == 3) {
      world.Hold(1);
      ++holds;
    }
    EXPECT_TRUE(weft::testing::Becomes([&] { return holds >= 2; }));
    const absl::Status found =
        group->SplitAsync(0, 0, Within(absl::Milliseconds(300)))
            .Wait(kPatience)
            .status();
    EXPECT_TRUE(rank == 1 || found.code() == kDeadlineExceeded) << found;
    EXPECT_TRUE(rank == 1 || absl::StrContains(found.message(), "rank 1"));
    if (++late == 6) {
      world.Release(1);
      ++holds;
    }
    EXPECT_TRUE(weft::testing::Becomes([&] { return holds >= 3; }));
    WEFT_RETURN_IF_ERROR(group->Shrink({0, 1, 2}));
    return Works(*group);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "The backend may outlive the world."
TEST(LocalRanksOfNoWorld, GoOn) {
  auto world = std::make_unique<LocalWorld>(3, QuietWorld());
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < 3; ++r) backends.push_back(world->Connect(r));
  world = nullptr;
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    const auto group = ProcessGroup::Create(std::move(backends[rank]));
    WEFT_RETURN_IF_ERROR(CallCollectives(*group));
    return CallTheRest(*group);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// --- A difference at each place. ---------------------------------------------

using Call = std::function<absl::Status(ProcessGroup&)>;

std::vector<Call> Program() {
  return {
      [](ProcessGroup& g) { return g.AllReduce(Tensor::Ones({2})); },
      [](ProcessGroup& g) { return g.Broadcast(Tensor::Ones({2}), 0); },
      [](ProcessGroup& g) { return g.Reduce(Tensor::Ones({2}), g.size() - 1); },
      [](ProcessGroup& g) { return g.SplitAsync(0).Wait(kPatience).status(); },
      [](ProcessGroup& g) {
        std::vector<Tensor> in;
        for (int i = 0; g.rank() == 0 && i < g.size(); ++i) {
          in.push_back(Tensor::Ones({2}));
        }
        return g.Scatter(in, Tensor::Ones({2}), 0);
      },
      [](ProcessGroup& g) {
        return g.AllGather(Tensor::Ones({1}), Tensor::Ones({g.size()}));
      },
      [](ProcessGroup& g) { return g.Barrier(); },
  };
}

// "both call sites are named on every rank"; "A Barrier is OK only if all ranks
// have called the same operations up to it."
TEST(LocalRanksThatDiffer, HearOfItWhereverTheyDo) {
  const std::vector<Call> program = Program();
  const int places = static_cast<int>(program.size());
  for (const int n : {2, 3, 4}) {
    for (int odd = 0; odd < n; ++odd) {
      for (int place = 0; place < places; ++place) {
        SCOPED_TRACE(absl::StrCat("rank ", odd, " of ", n, " at ", place));
        LocalWorld world(n, QuietWorld());
        const auto statuses = RunRanks(n, [&](int rank) -> absl::Status {
          const auto group = ProcessGroup::Create(world.Connect(rank));
          for (int i = 0; i < places; ++i) {
            const int called =
                rank == odd && i == place ? (i + 1 + odd) % places : i;
            WEFT_RETURN_IF_ERROR(program[called](*group));
          }
          return group->Barrier();
        });
        const bool is_same = (place + 1 + odd) % places == place;
        for (int r = 0; r < n; ++r) {
          if (is_same) {
            EXPECT_THAT(statuses[r], IsOk());
            continue;
          }
          EXPECT_THAT(statuses[r],
                      StatusIs(kFailedPrecondition, "different operations"))
              << r;
          const std::vector<std::string> sites =
              absl::StrSplit(statuses[r].message(), "local_ranks_test.cc:");
          EXPECT_GE(sites.size(), 3u) << r << ": " << statuses[r];
        }
      }
    }
  }
}

// --- Backends that begin operations. -----------------------------------------

// What backend.h promises a backend, counted where it does not hold.
struct Breaches {
  std::atomic<int> two_threads{0};    // "Called by one thread at a time"
  std::atomic<int> out_of_order{0};   // Operation::sequence "Counts"
  std::atomic<int> run_in_spite{0};   // "then Run is not called"
  std::atomic<int> odd_subgroups{0};  // "of which this rank is one"
  std::atomic<int> names_again{0};    // "which no other group ever had"
  std::atomic<int> enqueued{0};
  std::mutex mu;
  std::set<std::pair<std::string, int>> names;  // and the world's rank

  void ExpectNone() const {
    EXPECT_EQ(two_threads, 0);
    EXPECT_EQ(out_of_order, 0);
    EXPECT_EQ(run_in_spite, 0);
    EXPECT_EQ(odd_subgroups, 0);
    EXPECT_EQ(names_again, 0);
    EXPECT_GT(enqueued, 0);
  }
};

class OneAtATime {
 public:
  OneAtATime(std::atomic<int>& inside, Breaches& breaches) : inside_(inside) {
    if (++inside_ > 1) ++breaches.two_threads;
  }
  ~OneAtATime() { --inside_; }

 private:
  std::atomic<int>& inside_;
};

// Begins operations on a thread of its own (`waits`: before Enqueue returns, as
// Backend::Enqueue does by itself), over a backend that runs them.
class Beginning final : public Backend {
 public:
  Beginning(std::unique_ptr<Backend> inner, bool waits, int world_rank,
            Breaches& breaches)
      : inner_(std::move(inner)),
        waits_(waits),
        world_rank_(world_rank),
        breaches_(breaches),
        thread_([this] { Loop(); }) {}
  ~Beginning() override {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  absl::string_view name() const override { return "beginning"; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Driver& driver() override { return inner_->driver(); }
  bool enqueues() const override { return true; }
  absl::Status Run(const Operation& operation) override {
    if (!waits_) ++breaches_.run_in_spite;
    return inner_->Run(operation);
  }
  void Enqueue(const Operation& operation, Done done) override {
    const OneAtATime one(in_run_, breaches_);
    ++breaches_.enqueued;
    Count(operation);
    if (waits_) return Backend::Enqueue(operation, std::move(done));
    Add([this, &operation, done = std::move(done)]() mutable {
      std::move(done)(inner_->Run(operation));
    });
  }
  void Refuse(const Operation& operation, const absl::Status& why) override {
    const OneAtATime one(in_run_, breaches_);
    Count(operation);
    if (waits_) return inner_->Refuse(operation, why);
    auto copy = std::make_shared<Operation>(operation);
    copy->inputs.clear();
    copy->outputs.clear();
    copy->whole = nullptr;
    Add([this, copy, why] { inner_->Refuse(*copy, why); });
  }
  void Abort(const absl::Status& why) override { inner_->Abort(why); }
  absl::Status health() const override { return inner_->health(); }
  absl::StatusOr<bool> Advance(Transfer& transfer) override {
    const OneAtATime one(in_advance_, breaches_);
    return inner_->Advance(transfer);
  }
  uint64_t transfer_events() const override {
    return inner_->transfer_events();
  }
  void AwaitTransfers(uint64_t seen, Instant until) override {
    inner_->AwaitTransfers(seen, until);
  }
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return inner_->Allocate(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override {
    const std::set<int> members(spec.members.begin(), spec.members.end());
    if (members.size() != spec.members.size() || members.count(rank()) == 0 ||
        *members.begin() < 0 || *members.rbegin() >= size()) {
      ++breaches_.odd_subgroups;
    }
    {
      const std::lock_guard<std::mutex> lock(breaches_.mu);
      if (!breaches_.names.emplace(spec.name, world_rank_).second) {
        ++breaches_.names_again;
      }
    }
    auto made = inner_->Subgroup(spec);
    if (!made.ok()) return made.status();
    return std::make_unique<Beginning>(*std::move(made), waits_, world_rank_,
                                       breaches_);
  }

 private:
  using Task = absl::AnyInvocable<void() &&>;

  void Count(const Operation& operation) {
    if (operation.sequence != next_++) ++breaches_.out_of_order;
  }
  void Add(Task task) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  void Loop() {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      changed_.wait(lock, [&] { return stops_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::move(task)();
      lock.lock();
    }
  }

  const std::unique_ptr<Backend> inner_;
  const bool waits_;
  const int world_rank_;
  Breaches& breaches_;
  std::atomic<int> in_run_{0}, in_advance_{0};
  std::atomic<uint64_t> next_{0};
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool stops_ = false;
  std::thread thread_;
};

class BeginningBackends : public ::testing::TestWithParam<bool> {
 protected:
  std::vector<absl::Status> RunGroupsOf(
      int n,
      const std::function<absl::Status(std::unique_ptr<ProcessGroup>)>& body) {
    LocalWorld world(n, QuietWorld());
    return RunRanks(n, [&](int rank) -> absl::Status {
      collectives::GroupOptions options;
      options.timeout = absl::Seconds(60);
      return body(ProcessGroup::Create(
          std::make_unique<Beginning>(world.Connect(rank), GetParam(), rank,
                                      breaches_),
          options));
    });
  }

  Breaches breaches_;
};

INSTANTIATE_TEST_SUITE_P(Each, BeginningBackends, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "waits" : "enqueues";
                         });

TEST_P(BeginningBackends, DoAllThatOthersDo) {
  for (const int n : {1, 2, 5}) {
    EXPECT_THAT(RunGroupsOf(n,
                            [&](Part group) -> absl::Status {
                              WEFT_RETURN_IF_ERROR(CallCollectives(*group));
                              WEFT_RETURN_IF_ERROR(CallTheRest(*group));
                              return CallCollectives(*group);
                            }),
                Each(IsOk()));
    breaches_.names.clear();
  }
  breaches_.ExpectNone();
}

// "of several threads, each call whole": each thread has a group of its own,
// and all call the one group by turns that the label tells.
TEST_P(BeginningBackends, MakeManyGroupsAmongOtherOperations) {
  EXPECT_THAT(
      RunGroupsOf(3,
                  [&](Part group) -> absl::Status {
                    std::vector<Future<Part>> parts;
                    std::vector<Future<void>> sums;
                    std::vector<Tensor> tensors;
                    for (int i = 0; i < 20; ++i) {
                      tensors.push_back(Tensor::Ones({i}));
                      sums.push_back(group->AllReduceAsync(tensors.back()));
                      parts.push_back(group->SplitAsync(
                          i % 2 == 0 ? 0 : group->rank() - 1));
                    }
                    for (int i = 19; i >= 0; --i) {
                      WEFT_RETURN_IF_ERROR(sums[i].Wait(kPatience));
                      EXPECT_EQ(Values(tensors[i]), Equal(i, 3));
                      WEFT_ASSIGN_OR_RETURN(
                          const Part part, std::move(parts[i]).Wait(kPatience));
                      if (part != nullptr) {
                        WEFT_RETURN_IF_ERROR(CallTheRest(*part));
                      }
                    }
                    return group->Barrier();
                  }),
      Each(IsOk()));
  breaches_.ExpectNone();
}

// A difference, a refusal, a Revoke and the end: as with other backends.
TEST_P(BeginningBackends, FailAsOthersDo) {
  for (int round = 0; round < 6; ++round) {
    std::atomic<int> worked{0}, rested{0}, differ{0};
    EXPECT_THAT(
        RunGroupsOf(
            3,
            [&](Part group) -> absl::Status {
              if (group->rank() == round % 3) {
                EXPECT_THAT(group->Broadcast(Tensor::Ones({2}), 9),
                            StatusIs(kInvalidArgument));
              } else {
                EXPECT_THAT(group->AllReduce(Tensor::Ones({2})),
                            StatusIs(absl::StatusCode::kAborted,
                                     absl::StrCat("rank ", round % 3)));
              }
              WEFT_RETURN_IF_ERROR(Works(*group));
              ++worked;
              EXPECT_TRUE(weft::testing::Becomes([&] { return worked >= 3; }));
              Future<Part> part = group->SplitAsync(0);
              if (group->rank() == round % 3) {
                group->Revoke(absl::CancelledError("enough"));
              }
              const absl::Status found =
                  std::move(part).Wait(kPatience).status();
              EXPECT_THAT(found, AnyOf(IsOk(), StatusIs(kCancelled),
                                       StatusIs(kUnavailable)));
              WEFT_RETURN_IF_ERROR(group->Shrink({2, 1, 0}));
              WEFT_RETURN_IF_ERROR(CallTheRest(*group));
              // The difference fails what a slower rank has not ended yet.
              ++rested;
              EXPECT_TRUE(weft::testing::Becomes([&] { return rested >= 3; }));
              const Tensor tensor = Tensor::Ones({2});
              const absl::Status differs =
                  group->rank() == round % 3
                      ? group->AllReduceAsync(tensor).Wait(kPatience)
                      : group->SplitAsync(0).Wait(kPatience).status();
              EXPECT_THAT(differs, StatusIs(kFailedPrecondition,
                                            "different operations"));
              EXPECT_THAT(group->Barrier(), StatusIs(kFailedPrecondition));
              ++differ;
              EXPECT_TRUE(weft::testing::Becomes([&] { return differ >= 3; }));

              WEFT_RETURN_IF_ERROR(group->Shrink({1, 2, 0}));
              Future<Part> last = group->SplitAsync(0);
              group = nullptr;
              EXPECT_TRUE(last.IsReady());
              return absl::OkStatus();
            }),
        Each(IsOk()));
    breaches_.names.clear();
  }
  breaches_.ExpectNone();
}

}  // namespace
}  // namespace weft::outside
