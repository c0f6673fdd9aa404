// What process_group.h and group_options.h say of time that is up, and of what
// a group that breaks leaves behind.

#include "absl/time/time.h"

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::collectives::CallOptions;
using ::weft::collectives::GroupOptions;
using ::weft::collectives::ProcessGroup;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

struct Verb {
  std::string name;
  std::function<absl::Status(ProcessGroup& group, const CallOptions& options)>
      call;
};

// Every collective operation, with arguments that are right for any size.
std::vector<Verb> Verbs() {
  const auto parts = [](const ProcessGroup& group, bool are_wanted = true) {
    std::vector<Tensor> tensors;
    for (int r = 0; are_wanted && r < group.size(); ++r) {
      tensors.push_back(Tensor::Ones({2}));
    }
    return tensors;
  };
  const auto whole = [](const ProcessGroup& group) {
    return Tensor::Ones({2 * group.size()});
  };
  return {
      {"AllReduce",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.AllReduce(Tensor::Ones({2}), {}, o);
       }},
      {"AllReduceAsync",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.AllReduceAsync(Tensor::Ones({2}), {}, o)
             .Wait(absl::Minutes(1));
       }},
      {"AllReduceInto",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.AllReduceInto(Tensor::Ones({2}), Tensor::Ones({2}), {}, o);
       }},
      {"AllReduceCoalesced",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.AllReduceCoalesced({Tensor::Ones({2})}, {}, o);
       }},
      {"Broadcast",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.Broadcast(Tensor::Ones({2}), 0, o);
       }},
      {"Reduce",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.Reduce(Tensor::Ones({2}), 0, {}, o);
       }},
      {"AllGather",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.AllGather(Tensor::Ones({2}), whole(g), o);
       }},
      {"AllGatherList",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.AllGatherList(Tensor::Ones({2}), parts(g), o);
       }},
      {"Gather",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.Gather(Tensor::Ones({2}), parts(g, g.rank() == 0), 0, o);
       }},
      {"Scatter",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.Scatter(parts(g, g.rank() == 0), Tensor::Ones({2}), 0, o);
       }},
      {"ReduceScatter",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.ReduceScatter(whole(g), Tensor::Ones({2}), {}, o);
       }},
      {"ReduceScatterList",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.ReduceScatterList(parts(g), Tensor::Ones({2}), {}, o);
       }},
      {"AllToAll",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.AllToAll(whole(g), whole(g), o);
       }},
      {"AllToAllList",
       [=](ProcessGroup& g, const CallOptions& o) {
         return g.AllToAllList(parts(g), parts(g), o);
       }},
      {"Barrier",
       [](ProcessGroup& g, const CallOptions& o) { return g.Barrier(o); }},
      {"BarrierAsync",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.BarrierAsync(o).Wait(absl::Minutes(1));
       }},
      {"AllGatherBytes",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.AllGatherBytes("x", o).status();
       }},
      {"BroadcastBytes",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.BroadcastBytes("x", 0, o).status();
       }},
      {"Split", [](ProcessGroup& g,
                   const CallOptions& o) { return g.Split(0, 0, o).status(); }},
      {"Subgroup",
       [](ProcessGroup& g, const CallOptions& o) {
         return g.Subgroup({0}, o).status();
       }},
  };
}

class Groups : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, Groups, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// "A timeout of 0 or less ... is not begun": whatever the operation, also alone
// in a group, where nobody has to be waited for.
TEST_P(Groups, NoOperationIsBegunWithoutTime) {
  for (const int size : {1, 2}) {
    for (const Verb& verb : Verbs()) {
      for (const absl::Duration timeout :
           {absl::ZeroDuration(), -absl::InfiniteDuration()}) {
        SCOPED_TRACE(absl::StrCat(verb.name, " of ", size, " ranks, ",
                                  absl::FormatDuration(timeout)));
        const auto statuses =
            RunGroups(GetParam(), size, [&](ProcessGroup& group) {
              CallOptions options;
              options.timeout = timeout;
              const absl::Status found = verb.call(group, options);
              EXPECT_THAT(group.health(), StatusIs(kDeadlineExceeded))
                  << verb.name << " of " << size << " ranks: " << found;
              // A rank that comes later finds its group broken already.
              if (found.code() == kFailedPrecondition) return group.health();
              EXPECT_THAT(verb.call(group, {}), StatusIs(kFailedPrecondition))
                  << verb.name;
              return found;
            });
        EXPECT_THAT(statuses, Each(StatusIs(kDeadlineExceeded)));
      }
    }
  }
}

// The group's own timeout counts where the call has none.
TEST_P(Groups, TimeoutOfTheGroupIsThatOfItsOperations) {
  const auto none = [](int) {
    GroupOptions options;
    options.timeout = absl::ZeroDuration();
    return options;
  };
  const auto statuses = RunGroups(
      GetParam(), 2,
      [&](ProcessGroup& group) -> absl::Status {
        EXPECT_EQ(group.timeout(), absl::ZeroDuration());
        CallOptions enough;
        enough.timeout = absl::Minutes(1);
        WEFT_RETURN_IF_ERROR(group.Barrier(enough));
        WEFT_ASSIGN_OR_RETURN(auto both, group.Split(0, 0, enough));
        EXPECT_EQ(both->timeout(), absl::ZeroDuration());
        absl::Status found = both->AllReduce(Tensor::Ones({1}));
        if (found.code() == kFailedPrecondition) found = both->health();
        EXPECT_THAT(found, StatusIs(kDeadlineExceeded));
        return group.Barrier(enough);
      },
      none);
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(Groups, TimeWithoutEndIsAllowed) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        CallOptions options;
        options.timeout = absl::InfiniteDuration();
        for (const Verb& verb : Verbs()) {
          WEFT_RETURN_IF_ERROR(verb.call(group, options));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// "A Send or Receive without time moves what can be moved at once."
TEST_P(Groups, MessagesWithoutTimeMoveWhatIsThere) {
  Gate is_received;
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        CallOptions none;
        none.timeout = absl::ZeroDuration();
        const Tensor small = Tensor::Full({3}, 5);
        if (group.rank() == 0) {
          WEFT_RETURN_IF_ERROR(group.Send(small, 1, 7, none));
          is_received.Wait();
        } else {
          // What was sent before and has another tag is here, then this too.
          const Tensor found = Tensor::Zeros({3});
          WEFT_RETURN_IF_ERROR(group.Receive(found, 0, 7));
          EXPECT_EQ(found.ToVector<float>(), small.ToVector<float>());
          is_received.Open();
        }
        WEFT_RETURN_IF_ERROR(group.Barrier());
        // Rank 0 sends two; once the second is here, so is the first.
        if (group.rank() == 0) {
          WEFT_RETURN_IF_ERROR(group.Send(small, 1, 1));
          WEFT_RETURN_IF_ERROR(group.Send(small, 1, 2));
          return group.Barrier();
        }
        const Tensor found = Tensor::Zeros({3});
        WEFT_RETURN_IF_ERROR(group.Receive(found, 0, 2));
        WEFT_RETURN_IF_ERROR(group.Receive(found, 0, 1, none));
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// It may be received later.
TEST_P(Groups, ReceiveThatPassesItsDeadlineLeavesTheGroupAsItIs) {
  Gate has_given_up;
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const Tensor x = Tensor::Full({1}, group.rank() == 0 ? 5 : 0);
        if (group.rank() == 0) {
          has_given_up.Wait();
          WEFT_RETURN_IF_ERROR(group.Send(x, 1, 3));
          return group.Barrier();
        }
        for (const absl::Duration timeout :
             {absl::ZeroDuration(), absl::Milliseconds(50)}) {
          CallOptions soon;
          soon.timeout = timeout;
          EXPECT_THAT(group.Receive(x, 0, 3, soon),
                      StatusIs(kDeadlineExceeded));
        }
        has_given_up.Open();
        WEFT_RETURN_IF_ERROR(group.Receive(x, 0, 3));
        EXPECT_EQ(x.item<float>(), 5);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// More than the other keeps: some may be half sent when their time is up.
// Nobody gets what was not sent.
TEST_P(Groups, SendsThatPassTheirDeadlineSpoilNoOthers) {
  constexpr int kMessages = 3;
  Gate has_given_up;
  bool is_sent[kMessages] = {};
  RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    CallOptions soon, later;
    soon.timeout = absl::Milliseconds(100);
    later.timeout = absl::Seconds(2);
    const Tensor large = Tensor::Zeros({1 << 20});
    if (group.rank() == 0) {
      for (int i = 0; i < kMessages; ++i) {
        large.Fill(i + 1);
        is_sent[i] = group.Send(large, 1, i, soon).ok();
        large.Fill(9);
      }
      has_given_up.Open();
    } else {
      has_given_up.Wait();
      for (int i = 0; i < kMessages; ++i) {
        large.Fill(0);
        const absl::Status found = group.Receive(large, 0, i, later);
        if (is_sent[i]) {
          EXPECT_THAT(found, IsOk()) << i;
        }
        if (!found.ok()) continue;
        EXPECT_EQ(large.ToVector<float>(),
                  std::vector<float>(1 << 20, i + 1.0f));
      }
    }
    const Tensor sum = Tensor::Ones({1});
    if (group.AllReduce(sum, {}, later).ok()) {
      EXPECT_EQ(sum.item<float>(), 2);
    }
    return absl::OkStatus();
  });
}

// --- What a group that breaks leaves. ----------------------------------------

int Count(const telemetry::FlightRecorder& recorder, absl::string_view what) {
  int count = 0;
  for (const telemetry::FlightEntry& entry : recorder.Entries()) {
    count += entry.what == what;
  }
  return count;
}

// Rank 1 does not call; each verb passes its deadline on rank 0.
TEST_P(Groups, EachOperationThatPassesItsDeadlineIsRecordedAndSaid) {
  for (const Verb& verb : Verbs()) {
    // Those that need nobody end in OK where ranks run ahead.
    SCOPED_TRACE(verb.name);
    telemetry::FlightRecorder recorders[2];
    std::atomic<int> said[2] = {0, 0};
    absl::Status why[2];
    Mutex mu;
    Gate is_over;
    const auto options = [&](int rank) {
      GroupOptions one;
      one.name = "named";
      one.timeout = absl::Minutes(1);
      one.recorder = &recorders[rank];
      one.on_broken = [&, rank](const absl::Status& status) {
        MutexLock lock(mu);
        ++said[rank];
        why[rank] = status;
      };
      return one;
    };
    RunGroups(
        GetParam(), 2,
        [&](ProcessGroup& group) -> absl::Status {
          WEFT_RETURN_IF_ERROR(group.Barrier());
          if (group.rank() == 1) {
            is_over.Wait();
            EXPECT_EQ(Count(recorders[1], "collective.start"), 1);
            return absl::OkStatus();
          }
          CallOptions soon;
          soon.timeout = absl::Milliseconds(50);
          absl::Status found = verb.call(group, soon);
          if (found.ok()) found = group.Barrier(soon);
          EXPECT_THAT(found, StatusIs(kDeadlineExceeded, "rank 1"));
          EXPECT_THAT(group.Barrier(), StatusIs(kFailedPrecondition));
          // Here, before the caller has the error, it was said.
          {
            MutexLock lock(mu);
            EXPECT_EQ(said[0], 1);
            EXPECT_EQ(why[0].code(), kDeadlineExceeded);
          }
          EXPECT_GE(Count(recorders[0], "collective.start"), 2);
          EXPECT_GE(Count(recorders[0], "collective.end"), 2);
          EXPECT_THAT(recorders[0].DumpText(), HasSubstr("named"));
          is_over.Open();
          return absl::OkStatus();
        },
        options);
    EXPECT_EQ(said[0], 1);
  }
}

TEST_P(Groups, DifferenceIsSaidOnceOnEachRank) {
  std::atomic<int> said[3] = {0, 0, 0};
  const auto options = [&](int rank) {
    GroupOptions one;
    one.timeout = absl::Minutes(1);
    one.on_broken = [&said, rank](const absl::Status& why) {
      EXPECT_THAT(why, StatusIs(kFailedPrecondition, "different operations"));
      ++said[rank];
    };
    return one;
  };
  const auto statuses = RunGroups(
      GetParam(), 3,
      [&](ProcessGroup& group) -> absl::Status {
        std::vector<Future<void>> futures;
        for (int i = 0; i < 20; ++i) {
          futures.push_back(group.rank() == 1 && i == 10
                                ? group.BarrierAsync()
                                : group.AllReduceAsync(Tensor::Ones({4})));
        }
        absl::Status first;
        for (auto& future : futures)
          first.Update(future.Wait(absl::Minutes(1)));
        return first;
      },
      options);
  EXPECT_THAT(statuses,
              Each(StatusIs(kFailedPrecondition, "different operations")));
  for (const auto& count : said) EXPECT_EQ(count, 1);
}

// Only the two codes that a recording helps with.
TEST_P(Groups, RevokeIsNotSaid) {
  std::atomic<int> said{0};
  const auto options = [&](int) {
    GroupOptions one;
    one.timeout = absl::Minutes(1);
    one.on_broken = [&said](const absl::Status&) { ++said; };
    return one;
  };
  const auto statuses = RunGroups(
      GetParam(), 2,
      [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (group.rank() == 0) {
          group.Revoke(absl::CancelledError("enough"));
          // Each operation from here on ends so.
          EXPECT_THAT(group.Barrier(),
                      StatusIs(absl::StatusCode::kCancelled, "enough"));
          EXPECT_THAT(group.Barrier(),
                      StatusIs(absl::StatusCode::kCancelled, "enough"));
          return absl::OkStatus();
        }
        absl::Status found;
        while (found.ok()) found = group.Barrier();
        EXPECT_THAT(found.message(), HasSubstr("enough"));
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(said, 0);
}

// Of a group that was made from it.
TEST_P(Groups, DeadlineOfASubgroupIsSaidByItsParentsOptions) {
  std::atomic<int> said{0};
  const auto options = [&](int rank) {
    GroupOptions one;
    one.timeout = absl::Minutes(1);
    one.on_broken = [&said, rank](const absl::Status&) { said += rank == 0; };
    return one;
  };
  Gate is_over;
  const auto statuses = RunGroups(
      GetParam(), 2,
      [&](ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto both, group.Split(0));
        if (group.rank() == 0) {
          CallOptions soon;
          soon.timeout = absl::Milliseconds(30);
          EXPECT_THAT(both->Barrier(soon), StatusIs(kDeadlineExceeded));
          EXPECT_EQ(said, 1);
          is_over.Open();
        } else {
          is_over.Wait();
        }
        return group.Barrier();
      },
      options);
  EXPECT_THAT(statuses, Each(IsOk()));
}

// All that have not come are named, and nobody else.
TEST_P(Groups, BarrierNamesExactlyThoseThatHaveNotCome) {
  constexpr int kSize = 6;
  std::atomic<int> over{0};
  const auto statuses =
      RunGroups(GetParam(), kSize, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        const int rank = group.rank();
        if (rank == 1 || rank == 4) {
          EXPECT_TRUE(Becomes([&] {
            absl::SleepFor(absl::Milliseconds(1));
            return over == kSize - 2;
          }));
          return absl::OkStatus();
        }
        CallOptions soon;
        soon.timeout = absl::Seconds(1);
        const absl::Status found = group.Barrier(soon);
        ++over;
        return found;
      });
  for (const int r : {0, 2, 3, 5}) {
    EXPECT_THAT(statuses[r],
                AllOf(StatusIs(kDeadlineExceeded, "rank 1 has not called it"),
                      StatusIs(kDeadlineExceeded, "rank 4 has not called it")));
    for (const int other : {0, 2, 3, 5}) {
      EXPECT_THAT(std::string(statuses[r].message()),
                  Not(HasSubstr(absl::StrCat("rank ", other, " has not"))));
    }
  }
}

// Time that all operations before have used up is gone for those behind.
TEST_P(Groups, QueueThatIsTooLongEndsInItsDeadlineAndTheGroupCanShrink) {
  std::atomic<bool> is_over{false};
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (group.rank() == 0) {
          CallOptions soon;
          soon.timeout = absl::Milliseconds(50);
          std::vector<Future<void>> futures;
          for (int i = 0; i < 100; ++i) {
            futures.push_back(
                group.AllReduceAsync(Tensor::Ones({1}), {}, soon));
          }
          int deadlines = 0;
          for (auto& future : futures) {
            const absl::Status found = future.Wait(absl::Minutes(1));
            deadlines += found.code() == kDeadlineExceeded;
            EXPECT_FALSE(found.ok());
          }
          EXPECT_EQ(deadlines, 1);
          is_over = true;
        } else {
          EXPECT_TRUE(Becomes([&] {
            absl::SleepFor(absl::Milliseconds(1));
            return is_over.load();
          }));
        }
        WEFT_RETURN_IF_ERROR(group.Shrink({0, 1}));
        const Tensor sum = Tensor::Ones({1});
        WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
        EXPECT_EQ(sum.item<float>(), 2);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A Shrink for which somebody does not come can be tried again, without it.
TEST_P(Groups, ShrinkThatTimesOutCanBeCalledAgain) {
  std::atomic<int> over{0};
  Gate all_over;
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (group.rank() == 2) {
          all_over.Wait();
          return absl::OkStatus();
        }
        CallOptions soon;
        soon.timeout = absl::Seconds(1);
        EXPECT_THAT(group.Shrink({0, 1, 2}, soon),
                    StatusIs(kDeadlineExceeded, "rank 2"));
        if (++over == 2) all_over.Open();
        all_over.Wait();
        WEFT_RETURN_IF_ERROR(group.Shrink({1, 0}));
        const Tensor sum = Tensor::Ones({1});
        WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
        EXPECT_EQ(sum.item<float>(), 2);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
