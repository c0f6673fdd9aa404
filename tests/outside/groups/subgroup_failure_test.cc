// What process_group.h says of groups that are being made while ranks differ,
// refuse, leave, revoke or shrink.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/abort_source.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/parts.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::collectives::Backend;
using ::weft::collectives::CallOptions;
using ::weft::collectives::Operation;
using ::weft::collectives::ProcessGroup;
using ::weft::collectives::SubgroupOptions;
using ::weft::collectives::SubgroupSpec;
using ::weft::collectives::Transfer;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

constexpr auto kAborted = absl::StatusCode::kAborted;
constexpr auto kCancelled = absl::StatusCode::kCancelled;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kResourceExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

constexpr int kLeast = std::numeric_limits<int>::min();
constexpr int kMost = std::numeric_limits<int>::max();

class SubgroupFailures : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, SubgroupFailures, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// --- Differences and refusals. -----------------------------------------------

// "kInvalidArgument wrong tensor, root, split or reduction: at once on this
// rank; on the others the same operation, as far as it needs this rank, ends in
// kAborted with this rank's message. The group goes on."
TEST_P(SubgroupFailures, ListThatOneRankHasWrongIsRefusedAndTheGroupGoesOn) {
  const std::vector<std::vector<int>> wrong = {
      {0, 0}, {0, 1, 2, 3}, {-1, 0, 1}, {kMost}, {kLeast, 0}, {2, 1, 0, 2}, {}};
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        for (size_t i = 0; i < wrong.size(); ++i) {
          SCOPED_TRACE(absl::StrCat(i));
          const bool is_wrong = group.rank() == static_cast<int>(i % 3);
          Future<Part> part = group.SubgroupAsync(
              is_wrong ? wrong[i] : std::vector<int>{2, 0, 1},
              Within(absl::Seconds(20)));
          EXPECT_TRUE(!is_wrong || part.IsReady());
          const absl::Status found = std::move(part).Wait(kPatience).status();
          if (is_wrong) {
            EXPECT_THAT(found, StatusIs(kInvalidArgument, "Subgroup #"));
            EXPECT_THAT(found, StatusIs(kInvalidArgument, "failure_test.cc:"));
          } else {
            EXPECT_THAT(found,
                        StatusIs(kAborted, absl::StrCat("rank ", i % 3)));
          }
          WEFT_RETURN_IF_ERROR(Works(group));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

using Call = std::function<absl::Status(ProcessGroup& group)>;

struct Difference {
  std::string name;
  Call call;
};
std::vector<Difference> Differences() {
  return {
      {"label",
       [](ProcessGroup& g) {
         SubgroupOptions options;
         options.label = 5;
         CallOptions call = options;
         return g.AllReduce(Tensor::Ones({2}), {}, call);
       }},
      {"barrier", [](ProcessGroup& g) { return g.Barrier(); }},
      {"all-gather of some numbers",
       [](ProcessGroup& g) {
         return g.AllGather(Tensor::Zeros({2}), Tensor::Zeros({6}));
       }},
      {"all-gather of bytes",
       [](ProcessGroup& g) { return g.AllGatherBytes("abc").status(); }},
      {"all-gather of as many",
       [](ProcessGroup& g) {
         return g.AllGather(Tensor::Zeros({3}, DType::kI64),
                            Tensor::Zeros({9}, DType::kI64));
       }},
      {"subgroup",
       [](ProcessGroup& g) {
         return g.SubgroupAsync({0, 1, 2}).Wait(kPatience).status();
       }},
      {"broadcast",
       [](ProcessGroup& g) {
         return g.Broadcast(Tensor::Zeros({2}), g.rank());
       }},
  };
}

// "kFailedPrecondition the ranks called different operations, both call sites
// are named on every rank". A rank "may be OK ... both find out, and the next
// operation of each ends in kFailedPrecondition".
TEST_P(SubgroupFailures, DifferenceFromASplitIsHeardOnEveryRankWhoeverDiffers) {
  for (const Difference& difference : Differences()) {
    for (int odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(absl::StrCat(difference.name, " on rank ", odd));
      const auto statuses =
          RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
            WEFT_RETURN_IF_ERROR(Works(group));
            absl::Status found;
            if (group.rank() == odd) {
              found = difference.call(group);
            } else {
              found = group.SplitAsync(0).Wait(kPatience).status();
            }
            WEFT_RETURN_IF_ERROR(found);
            return group.Barrier();
          });
      for (int r = 0; r < 3; ++r) {
        EXPECT_THAT(statuses[r],
                    StatusIs(kFailedPrecondition, "different operations"))
            << r;
        const std::vector<std::string> sites =
            absl::StrSplit(statuses[r].message(), "subgroup_failure_test.cc:");
        EXPECT_GE(sites.size(), 3u) << r << ": " << statuses[r];
      }
    }
  }
}

// "Called by all ranks with the same list, which is compared". Whoever gives
// another one, all hear of both.
TEST_P(SubgroupFailures, DifferentListsAreReportedOnAllRanks) {
  const std::vector<std::vector<std::vector<int>>> cases = {
      {{0, 1, 2}, {0, 1, 2}, {2, 1, 0}}, {{0, 1}, {0, 1, 2}, {0, 1, 2}},
      {{0, 1}, {0, 1}, {1, 2}},          {{2}, {2}, {0, 1}},
      {{0, 1, 2}, {0, 1, 2}, {0, 1}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          return group.SubgroupAsync(cases[i][group.rank()])
              .Wait(kPatience)
              .status();
        });
    EXPECT_THAT(statuses,
                Each(StatusIs(kFailedPrecondition, "different operations")));
    for (const std::vector<int>& list : cases[i]) {
      EXPECT_THAT(statuses,
                  Each(StatusIs(
                      kFailedPrecondition,
                      absl::StrCat("Subgroup #0 ([", absl::StrJoin(list, ", "),
                                   "]) at subgroup_failure_test"))));
    }
  }
}

// Also for lists that are too long to be shown whole.
TEST_P(SubgroupFailures, LongListsThatDifferAtTheirEndAreReported) {
  constexpr int kSize = 14;
  const auto statuses =
      RunGroups(GetParam(), kSize, [&](ProcessGroup& group) -> absl::Status {
        std::vector<int> list(kSize);
        std::iota(list.begin(), list.end(), 0);
        WEFT_ASSIGN_OR_RETURN(const Part part, group.Subgroup(list));
        if (group.rank() == 5) std::swap(list[12], list[13]);
        return group.Subgroup(list).status();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(kFailedPrecondition,
                            "Subgroup #1 ([0, 1, 2, 3, 4, 5, 6, ... of 14, "
                            "#")));
}

// SubgroupOptions says: all members give the same, but for `timeout` and
// `label`.
TEST_P(SubgroupFailures, TimeoutsMayDiffer) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        const SubgroupOptions options =
            Within(absl::Seconds(20 + 10 * group.rank()));
        WEFT_ASSIGN_OR_RETURN(const Part one, group.Split(0, 0, options));
        WEFT_ASSIGN_OR_RETURN(
            const Part other,
            group.SubgroupAsync({1, 2, 0}, options).Wait(kPatience));
        WEFT_RETURN_IF_ERROR(Works(*one));
        return Works(*other);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// --- Ranks that leave, revoke, shrink. ---------------------------------------

// "kUnavailable: a rank has ended, or is out of its job; its number is named."
TEST_P(SubgroupFailures, RankThatLeavesBeforeItSplitsIsNamed) {
  for (int leaver = 0; leaver < 3; ++leaver) {
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          WEFT_RETURN_IF_ERROR(group.Barrier());
          if (group.rank() == leaver) return absl::OkStatus();
          return group.SplitAsync(0).Wait(kPatience).status();
        });
    for (int r = 0; r < 3; ++r) {
      if (r == leaver) continue;
      EXPECT_THAT(statuses[r],
                  StatusIs(kUnavailable, absl::StrCat("rank ", leaver)));
    }
  }
}

// It has told its wish, so all know who the members are; then it is gone.
TEST_P(SubgroupFailures, RankThatLeavesAmidSplitsEndsThemOnAll) {
  for (int round = 0; round < 10; ++round) {
    const auto statuses =
        RunGroups(GetParam(), 4, [&](ProcessGroup& group) -> absl::Status {
          WEFT_RETURN_IF_ERROR(group.Barrier());
          if (group.rank() == round % 4) {
            for (int i = 0; i < round / 2; ++i) {
              WEFT_RETURN_IF_ERROR(group.Split(0, 0, WithArena(0)).status());
            }
            return absl::OkStatus();
          }
          for (int i = 0; i < 100; ++i) {
            WEFT_ASSIGN_OR_RETURN(
                const Part part,
                group.SplitAsync(0, 0, WithArena(0)).Wait(kPatience));
          }
          return absl::OkStatus();
        });
    for (int r = 0; r < 4; ++r) {
      if (r == round % 4) {
        // It leaves a part before others have it: that is their matter.
        EXPECT_THAT(statuses[r], IsOk());
      } else {
        EXPECT_THAT(statuses[r],
                    StatusIs(kUnavailable, absl::StrCat("rank ", round % 4)));
      }
    }
  }
}

// "Ends all operations in flight and queued, on every rank, with `reason`, and
// breaks the group; the object stays, for Shrink".
TEST_P(SubgroupFailures, RevokeEndsSplitsThatGoOnAndShrinkGoesOn) {
  Gate has_called;
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        std::vector<Future<Part>> parts;
        if (group.rank() == 0) {
          parts.push_back(group.SplitAsync(0));
          parts.push_back(group.SubgroupAsync({0, 1}));
          parts.push_back(group.SplitAsync(1));
          has_called.Open();
        } else if (group.rank() == 1) {
          has_called.Wait();
          group.Revoke(absl::CancelledError("enough of it"));
        }
        for (Future<Part>& part : parts) {
          EXPECT_THAT(std::move(part).Wait(kPatience).status(),
                      StatusIs(kCancelled, "enough of it"));
        }
        EXPECT_THAT(group.SplitAsync(0).Wait(kPatience).status(),
                    StatusIs(kCancelled, "enough of it"));
        WEFT_RETURN_IF_ERROR(group.Shrink({1, 2, 0}));
        WEFT_ASSIGN_OR_RETURN(const Part part,
                              group.SplitAsync(0).Wait(kPatience));
        EXPECT_THAT(part->parent_ranks(), ElementsAre(0, 1, 2));
        WEFT_RETURN_IF_ERROR(Works(*part));
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A rank that, once it is asked for a group, stays away from the others until
// its own wait is ended; with `comes`, it is as any other.
class Away final : public Backend {
 public:
  Away(std::unique_ptr<Backend> inner, std::atomic<int>& asked,
       const std::atomic<bool>& comes)
      : inner_(std::move(inner)), asked_(asked), comes_(comes) {}

  absl::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Driver& driver() override { return inner_->driver(); }
  absl::Status Run(const Operation& operation) override {
    return inner_->Run(operation);
  }
  void Refuse(const Operation& operation, const absl::Status& why) override {
    inner_->Refuse(operation, why);
  }
  void Abort(const absl::Status& why) override { inner_->Abort(why); }
  absl::Status health() const override { return inner_->health(); }
  void EndShrink(uint64_t key, const absl::Status& why) override {
    inner_->EndShrink(key, why);
  }
  absl::Status CheckShrink(uint64_t key) const override {
    return inner_->CheckShrink(key);
  }
  absl::StatusOr<bool> Advance(Transfer& transfer) override {
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
    ++asked_;
    if (comes_ || rank() < 2) return inner_->Subgroup(spec);
    absl::Status ended;
    EXPECT_TRUE(weft::testing::Becomes([&] {
      ended = spec.check_wait();
      return !ended.ok();
    }));
    return ended;
  }

 private:
  const std::unique_ptr<Backend> inner_;
  std::atomic<int>& asked_;
  const std::atomic<bool>& comes_;
};

// "Ends all operations in flight and queued, on every rank, with `reason`":
// also where all have told their wishes, and one of them does not come.
TEST_P(SubgroupFailures, RevokeEndsAGroupThatIsBeingMade) {
  if (GetParam().name == "local") GTEST_SKIP() << "its ranks wait for nobody";
  for (int revoker = 0; revoker < 3; ++revoker) {
    for (const bool splits : {false, true}) {
      SCOPED_TRACE(absl::StrCat("rank ", revoker, splits));
      const auto world = GetParam().make(3, Quiet());
      std::atomic<int> asked{0};
      std::atomic<bool> comes{false};
      const absl::Time began = absl::Now();
      const auto statuses =
          weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
            const Part group = ProcessGroup::Create(
                std::make_unique<Away>(std::move(backend), asked, comes));
            const SubgroupOptions options = Within(absl::Minutes(2));
            Future<Part> part = splits
                                    ? group->SplitAsync(0, 0, options)
                                    : group->SubgroupAsync({2, 1, 0}, options);
            Future<Part> queued = group->SplitAsync(1, 0, options);
            EXPECT_TRUE(weft::testing::Becomes([&] { return asked >= 3; }));
            if (rank == revoker) {
              group->Revoke(absl::CancelledError("enough of it"));
            }
            const absl::Status found = std::move(part).Wait(kPatience).status();
            EXPECT_THAT(found, StatusIs(kCancelled, "enough of it"));
            EXPECT_THAT(found,
                        StatusIs(kCancelled,
                                 splits ? "Split #0 at subgroup_failure_test"
                                        : "Subgroup #0 ([2, 1, 0]) at "
                                          "subgroup_failure_test"));
            EXPECT_THAT(std::move(queued).Wait(kPatience).status(),
                        StatusIs(kCancelled, "enough of it"));
            comes = true;
            WEFT_RETURN_IF_ERROR(group->Shrink({0, 1, 2}));
            return Works(*group);
          });
      EXPECT_THAT(statuses, Each(IsOk()));
      EXPECT_LT(absl::Now() - began, absl::Seconds(30));
    }
  }
}

// The same of the end of the group itself.
TEST_P(SubgroupFailures, EndOfTheGroupEndsAGroupThatIsBeingMade) {
  if (GetParam().name == "local") GTEST_SKIP() << "its ranks wait for nobody";
  const auto world = GetParam().make(3, Quiet());
  std::atomic<int> asked{0};
  std::atomic<bool> comes{false};
  const absl::Time began = absl::Now();
  const auto statuses =
      weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
        Part group = ProcessGroup::Create(
            std::make_unique<Away>(std::move(backend), asked, comes));
        Future<Part> part = group->SplitAsync(0, 0, Within(absl::Minutes(2)));
        EXPECT_TRUE(weft::testing::Becomes([&] { return asked >= 3; }));
        if (rank == 0) group = nullptr;
        return std::move(part).Wait(kPatience).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "ended on rank 0")));
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
}

// A rank that waits in a Shrink ends it on all; what they shrink is broken
// before. So does what has taken ranks out of their job.
TEST_P(SubgroupFailures, RevokeEndsAShrinkThatThisRankHasCalled) {
  if (GetParam().name == "local") GTEST_SKIP() << "its ranks wait for nobody";
  for (const int revoker : {0, 1, 2, -1}) {
    SCOPED_TRACE(revoker);
    const auto world = GetParam().make(3, Quiet());
    std::atomic<int> asked{0}, ended{0};
    std::atomic<bool> comes{false};
    const auto source = std::make_shared<collectives::AbortSource>();
    const absl::Time began = absl::Now();
    const auto statuses =
        weft::testing::RunRanks(3, [&](int rank) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
          collectives::GroupOptions options;
          options.abort_source = source;
          const Part group = ProcessGroup::Create(
              std::make_unique<Away>(std::move(backend), asked, comes),
              options);
          // This Revoke comes before the Shrink, and is not the one that ends
          // it.
          if (rank == 1) group->Revoke(absl::CancelledError("first"));
          CallOptions call;
          call.timeout = absl::Minutes(2);
          absl::Status found;
          std::thread shrinks([&] { found = group->Shrink({0, 1, 2}, call); });
          EXPECT_TRUE(weft::testing::Becomes([&] { return asked >= 3; }));
          if (rank == revoker) {
            group->Revoke(absl::CancelledError("enough"));
          } else if (revoker < 0 && rank == 0) {
            source->Abort(absl::CancelledError("enough"));
          }
          shrinks.join();
          EXPECT_THAT(found, StatusIs(kCancelled, "enough"));
          EXPECT_THAT(found, StatusIs(kCancelled,
                                      "Shrink to [0, 1, 2] at subgroup_fail"));
          ++ended;
          EXPECT_TRUE(weft::testing::Becomes([&] { return ended >= 3; }));
          if (revoker < 0) return absl::OkStatus();
          comes = true;
          WEFT_RETURN_IF_ERROR(group->Shrink({0, 1, 2}));
          return Works(*group);
        });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_LT(absl::Now() - began, absl::Seconds(30));
  }
}

// A Revoke at any moment of the making: each rank has a part or the reason,
// nobody waits for a minute, and Shrink goes on.
TEST_P(SubgroupFailures, RevokeAmidSplitsLeavesGroupsOrTheReason) {
  for (int round = 0; round < 12; ++round) {
    const absl::Time began = absl::Now();
    std::atomic<int> past{0};
    const auto statuses =
        RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
          WEFT_RETURN_IF_ERROR(group.Barrier());
          ++past;
          EXPECT_TRUE(weft::testing::Becomes([&] { return past >= 3; }));
          SubgroupOptions options = Within(absl::Minutes(2));
          options.arena_bytes = 0;
          std::vector<Future<Part>> parts;
          for (int i = 0; i < 3; ++i) {
            parts.push_back(group.SplitAsync(0, -group.rank(), options));
          }
          if (group.rank() == round % 3) {
            absl::SleepFor(absl::Microseconds(300 * round));
            group.Revoke(absl::CancelledError("enough"));
          }
          for (Future<Part>& part : parts) {
            absl::StatusOr<Part> made = std::move(part).Wait(kPatience);
            if (made.ok()) {
              EXPECT_EQ((*made)->size(), 3);
            } else {
              // UNAVAILABLE: a member of the part has left it.
              EXPECT_THAT(made.status(),
                          AnyOf(StatusIs(kCancelled), StatusIs(kUnavailable)));
            }
          }
          WEFT_RETURN_IF_ERROR(group.Shrink({2, 0, 1}));
          WEFT_ASSIGN_OR_RETURN(const Part part, group.Split(0));
          WEFT_RETURN_IF_ERROR(Works(*part));
          return Works(group);
        });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_LT(absl::Now() - began, absl::Seconds(25)) << "round " << round;
  }
}

// "Operations in flight end with kCancelled."
TEST_P(SubgroupFailures, ShrinkEndsASplitThatGoesOn) {
  std::atomic<int> past{0};
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        ++past;
        EXPECT_TRUE(weft::testing::Becomes([&] { return past >= 3; }));
        if (group.rank() == 2) return absl::OkStatus();
        Future<Part> part = MakeReady<Part>(Part());
        if (group.rank() == 0) part = group.SplitAsync(0);
        WEFT_RETURN_IF_ERROR(group.Shrink({0, 1}));
        if (group.rank() == 0) {
          // Unless it has heard first that rank 2 has left.
          EXPECT_THAT(std::move(part).Wait(kPatience).status(),
                      AnyOf(StatusIs(kCancelled), StatusIs(kUnavailable)));
        }
        WEFT_ASSIGN_OR_RETURN(const Part again,
                              group.SplitAsync(0).Wait(kPatience));
        WEFT_RETURN_IF_ERROR(Works(*again));
        return Works(group);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A broken part is its own: neither parent nor children are.
TEST_P(SubgroupFailures, BrokenGroupBreaksNeitherItsParentNorItsChildren) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const Part part, group.Split(0));
        WEFT_ASSIGN_OR_RETURN(const Part child, part->Split(0));
        WEFT_RETURN_IF_ERROR(child->Barrier());
        if (group.rank() == 1) part->Revoke(absl::CancelledError("part ends"));
        EXPECT_THAT(part->Barrier(), StatusIs(kCancelled, "part ends"));
        EXPECT_THAT(part->SplitAsync(0).Wait(kPatience).status(),
                    StatusIs(kCancelled, "part ends"));
        EXPECT_THAT(group.health(), IsOk());
        EXPECT_THAT(child->health(), IsOk());
        WEFT_RETURN_IF_ERROR(Works(*child));
        WEFT_RETURN_IF_ERROR(Works(group));
        WEFT_ASSIGN_OR_RETURN(const Part again,
                              group.SplitAsync(0).Wait(kPatience));
        return Works(*again);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
