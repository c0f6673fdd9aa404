// The small parts of base, each on its own.

#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/bytes_builder.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/error.h"
#include "weft/base/failpoint.h"
#include "weft/base/fake_clock.h"
#include "weft/base/parker.h"
#include "weft/base/slice_reader.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

// What a thread cannot be started with: moving it there fails as the system
// does when it has no more.
struct Unstartable {
  Unstartable() = default;
  Unstartable(Unstartable&&) {
    throw std::system_error(
        std::make_error_code(std::errc::resource_unavailable_try_again));
  }
  void operator()() const {}
};

TEST(StartThread, SaysWhichLimitsMayHaveBeenReached) {
  EXPECT_THAT(StartThread("pool", Unstartable()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "pool: cannot start a thread: Resource temporarily "
                       "unavailable; raise `ulimit -u`, `ulimit -v`"));
}

enum class Colour { kRed = 7 };

TEST(CheckDeathTest, SaysWhereAndPrintsBothValues) {
  const int parts = 3;
  EXPECT_DEATH(WEFT_CHECK(parts == 4) << "rank " << 2,
               "parts_test.cc:.*check failed: parts == 4 rank 2");
  EXPECT_DEATH(WEFT_CHECK_EQ(parts, 4) << "more",
               "parts == 4 \\(3 vs 4\\) more");
  EXPECT_DEATH(WEFT_CHECK_NE(Colour::kRed, Colour::kRed), "7 vs 7");
}

TEST(Check, PassesOnceEvaluated) {
  int evaluations = 0;
  WEFT_CHECK_EQ(++evaluations, 1) << "not evaluated: " << ++evaluations;
  if (evaluations == 1)
    WEFT_CHECK(true);
  else
    ADD_FAILURE() << "took the else of an if that is not its own";
  EXPECT_EQ(evaluations, 1);
}

TEST(CatchToStatus, TurnsEachExceptionIntoItsCode) {
  EXPECT_THAT(CatchToStatus([] { ThrowInvalidArgument("dim ", 3); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "dim 3"));
  EXPECT_THAT(CatchToStatus([]() -> int { throw std::bad_alloc(); }),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(CatchToStatus([]() -> absl::StatusOr<int> {
                throw std::runtime_error("odd");
              }),
              StatusIs(absl::StatusCode::kInternal, "odd"));
  EXPECT_THAT(CatchToStatus([] { throw 42; }),
              StatusIs(absl::StatusCode::kInternal));
}

// Neither copied without thought nor made without arguments.
struct Overdrawn {
  Overdrawn(int account, double by) : account(account), by(by) {}
  int account;
  double by;
};

[[maybe_unused]] const bool kRegistered =
    RegisterThrown([]() -> std::optional<absl::Status> {
      try {
        throw;
      } catch (const Overdrawn& thrown) {
        return absl::OutOfRangeError(absl::StrCat("account ", thrown.account));
      } catch (...) {
        return std::nullopt;
      }
    });

TEST(CatchToStatus, AsksTheTranslatorOfARegisteredType) {
  EXPECT_THAT(CatchToStatus([] { throw Overdrawn(7, 0.5); }),
              StatusIs(absl::StatusCode::kOutOfRange, "account 7"));
  EXPECT_THAT(CatchToStatus([] { throw std::runtime_error("odd"); }),
              StatusIs(absl::StatusCode::kInternal, "odd"));
}

TEST(CatchToStatus, PassesResultsThrough) {
  EXPECT_THAT(CatchToStatus([] {}), IsOk());
  EXPECT_THAT(CatchToStatus([] { return 4; }), IsOkAndHolds(4));
  EXPECT_THAT(CatchToStatus([]() -> absl::StatusOr<int> { return 5; }),
              IsOkAndHolds(5));
  EXPECT_THAT(CatchToStatus([] { return absl::NotFoundError("x"); }),
              StatusIs(absl::StatusCode::kNotFound, "x"));
}

TEST(StatusMacros, ReturnTheFirstError) {
  auto sum = [](const absl::StatusOr<int>& a,
                const absl::Status& b) -> absl::StatusOr<int> {
    WEFT_ASSIGN_OR_RETURN(const int value, a);
    WEFT_RETURN_IF_ERROR(b);
    return value + 1;
  };
  EXPECT_THAT(sum(1, absl::OkStatus()), IsOkAndHolds(2));
  EXPECT_THAT(sum(absl::NotFoundError("a"), absl::OkStatus()),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(sum(1, absl::AbortedError("b")),
              StatusIs(absl::StatusCode::kAborted));
}

TEST(Instant, SaturatesInsteadOfWrapping) {
  const Instant now = Instant::FromNanoseconds(5);
  EXPECT_EQ(now + absl::InfiniteDuration(), Instant::Infinite());
  EXPECT_EQ(Instant::Infinite() - absl::Hours(1), Instant::Infinite());
  EXPECT_EQ(Instant::Infinite() - now, absl::InfiniteDuration());
  EXPECT_LT(now - absl::InfiniteDuration(), now);
  EXPECT_EQ((now + absl::Seconds(1)) - now, absl::Seconds(1));
}

TEST(Clock, TheSteadyOneDoesNotGoBackAndTheFakeStands) {
  const Instant before = SteadyClock().Now();
  EXPECT_GE(SteadyClock().Now(), before);
  FakeClock fake;
  const Instant start = fake.Now();
  EXPECT_EQ(fake.Now(), start);
  fake.Advance(absl::Seconds(3));
  EXPECT_EQ(fake.Now() - start, absl::Seconds(3));
}

TEST(Bytes, SubrangesShareTheirBuffer) {
  const Bytes whole = Bytes::Own(std::string("abcdef"));
  const Bytes part = whole.subspan(2, 3);
  EXPECT_EQ(std::string(part.view()), "cde");
  EXPECT_EQ(part.data(), whole.data() + 2);
  EXPECT_EQ(whole.subspan(4, 100).size(), 2u);
  EXPECT_TRUE(whole.subspan(6).empty());
}

TEST(Bytes, KeepTheirOwnerAliveAndCountElementsInBytes) {
  Bytes bytes = Bytes::Own(std::vector<int32_t>{1, 2}).subspan(4);
  int32_t second;
  ASSERT_EQ(bytes.size(), sizeof(second));
  std::memcpy(&second, bytes.data(), sizeof(second));
  EXPECT_EQ(second, 2);

  auto owner = std::make_shared<std::string>("wrapped");
  Bytes wrapped = Bytes::Wrap(owner->data(), owner->size(), owner);
  EXPECT_EQ(owner.use_count(), 2);
  wrapped = Bytes();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(BytesBuilder, GrowthKeepsContents) {
  BytesBuilder builder;
  EXPECT_TRUE(builder.Take().empty());
  std::string written;
  for (int i = 0; i < 100; ++i) {
    const std::string text(i, static_cast<char>(i));
    builder.Append(text);
    builder.Varint(i);
    written += text + static_cast<char>(i);
  }
  EXPECT_EQ(builder.size(), written.size());
  EXPECT_EQ(builder.Take().view(), written);
  EXPECT_TRUE(builder.empty());
  builder.Append("again");
  EXPECT_EQ(builder.Take().view(), "again");
}

TEST(BytesBuilder, WritesLengthPrefixes) {
  BytesBuilder builder;
  builder.Append("a");
  size_t start = builder.BeginSized();
  builder.Append("bc");
  builder.EndSized(start);
  EXPECT_EQ(builder.Take().view(), "a\2bc");
  start = builder.BeginSized();
  builder.Append("bc");
  builder.EndSized(start, /*more=*/125);
  EXPECT_EQ(builder.Take().view(),
            "\x7F"
            "bc");
  builder.Append("a");
  start = builder.BeginSized();
  builder.Append("bc");
  builder.EndSized(start, /*more=*/126);
  EXPECT_EQ(builder.Take().view(),
            "a\x80\x01"
            "bc");
}

// `bytes` one to a slice, with empty ones between.
Slices Scattered(absl::string_view bytes) {
  Slices slices;
  for (size_t i = 0; i < bytes.size(); ++i) {
    slices.push_back(Bytes());
    slices.push_back(Bytes::Copy(bytes.substr(i, 1)));
  }
  return slices;
}

TEST(SliceReader, ReadsTheSameAcrossSlicesAsWithinOne) {
  BytesBuilder builder;
  for (const uint64_t number : {uint64_t{0}, uint64_t{300}, UINT64_MAX}) {
    builder.Varint(number);
  }
  builder.Append("texts and more");
  const Bytes whole = builder.Take();
  for (const Slices& slices : {Slices{whole}, Scattered(whole.view())}) {
    SliceReader reader(slices);
    for (const uint64_t wanted : {uint64_t{0}, uint64_t{300}, UINT64_MAX}) {
      uint64_t number = 1;
      ASSERT_TRUE(reader.Varint(&number));
      EXPECT_EQ(number, wanted);
    }
    std::string text(5, '\0');
    ASSERT_TRUE(reader.Copy(text.data(), text.size()));
    EXPECT_EQ(text, "texts");
    EXPECT_EQ(reader.position(), whole.size() - 9);
    ASSERT_TRUE(reader.Skip(5));
    Slices rest;
    ASSERT_TRUE(reader.Share(4, &rest));
    EXPECT_EQ(Flatten(rest).view(), "more");
    EXPECT_EQ(reader.remaining(), 0);
  }
}

TEST(SliceReader, ReadsNothingThatIsNotThere) {
  const Slices slices = Scattered("\x80\x80");
  SliceReader reader(slices);
  char bytes[3];
  Slices shared;
  EXPECT_FALSE(reader.Copy(bytes, 3));
  EXPECT_FALSE(reader.Skip(3));
  EXPECT_FALSE(reader.Share(3, &shared));
  EXPECT_EQ(reader.Peek(2), nullptr);
  EXPECT_EQ(reader.remaining(), 2);
  uint64_t number;
  EXPECT_FALSE(reader.Varint(&number)) << "it ends within";
  const Slices large = {Bytes::Copy(std::string(9, '\xff') + "\x02")};
  SliceReader of_large(large);
  EXPECT_FALSE(of_large.Varint(&number)) << "65 bits";
}

TEST(Bytes, FlattenCopiesOnlyIfItMust) {
  const Slices two = {Bytes::Copy("ab"), Bytes::Copy("cd")};
  EXPECT_EQ(TotalSize(two), 4u);
  EXPECT_EQ(Flatten(two), Bytes::Copy("abcd"));
  EXPECT_EQ(Flatten({two[0]}).data(), two[0].data());
  EXPECT_TRUE(Flatten({}).empty());
}

TEST(Parker, KeepsOnePermit) {
  Parker parker;
  parker.Unpark();
  parker.Unpark();
  parker.Park();
  EXPECT_FALSE(parker.ParkUntil(SteadyClock().Now() + absl::Milliseconds(1)));
}

TEST(Parker, WakesTheThreadThatParks) {
  Parker ping, pong;
  int value = 0;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      ping.Park();
      ++value;  // seen by the other side without a lock
      pong.Unpark();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    ping.Unpark();
    ASSERT_TRUE(pong.ParkUntil(SteadyClock().Now() + absl::Seconds(20)));
    ASSERT_EQ(value, i + 1);
  }
  other.join();
}

TEST(Waitable, UnparksEachWaiterUnlessRemoved) {
  struct Flag : Waitable {
    void Raise() {
      MutexLock lock(mu_);
      MarkReady();
    }
  } flag;
  Parker early, removed, late;
  flag.AddWaiter(&early);
  flag.AddWaiter(&removed);
  flag.RemoveWaiter(&removed);
  flag.Raise();
  flag.AddWaiter(&late);
  const Instant past = SteadyClock().Now();
  EXPECT_TRUE(early.ParkUntil(past));
  EXPECT_FALSE(removed.ParkUntil(past));
  EXPECT_TRUE(late.ParkUntil(past));
}

TEST(Cancel, GivesItsTokensTheReason) {
  CancelSource source;
  CancelToken token = source.token();
  std::string seen;
  auto registration = token.OnCancel(
      [&](const absl::Status& why) { seen = std::string(why.message()); });
  EXPECT_FALSE(token.IsCancelled());
  EXPECT_THAT(token.status(), IsOk());
  EXPECT_TRUE(source.Cancel(absl::DeadlineExceededError("late")));
  EXPECT_FALSE(source.Cancel());
  EXPECT_EQ(seen, "late");
  EXPECT_THAT(token.status(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  bool told_at_once = false;
  auto another =
      token.OnCancel([&](const absl::Status&) { told_at_once = true; });
  EXPECT_TRUE(told_at_once);
}

TEST(Cancel, DefaultTokenIsNever) {
  CancelToken token;
  auto registration = token.OnCancel([](const absl::Status&) { FAIL(); });
  EXPECT_FALSE(token.IsCancelled());
}

TEST(Cancel, ACallbackTakenBackDoesNotRun) {
  CancelSource source;
  CancelToken::Registration first, inside;
  bool ran = false;
  first = source.token().OnCancel([&](const absl::Status&) {
    inside.Reset();
    first.Reset();  // itself: must not wait for itself
  });
  inside = source.token().OnCancel([&](const absl::Status&) { ran = true; });
  source.Cancel();
  EXPECT_FALSE(ran);
}

// After Reset the callback's captures may die, on whatever thread it runs.
TEST(Cancel, ResetWaitsForACallbackThatRuns) {
  for (int round = 0; round < 200; ++round) {
    CancelSource source;
    auto alive = std::make_unique<int>(0);
    auto registration = source.token().OnCancel(
        [p = alive.get()](const absl::Status&) { ++*p; });
    std::thread canceller([&] { source.Cancel(); });
    registration.Reset();
    alive.reset();
    canceller.join();
    EXPECT_TRUE(source.token().IsCancelled());
  }
}

absl::Status PassPlace() { return WEFT_FAILPOINT("parts_test/place"); }

TEST(Failpoint, DoesNothingUnlessArmed) {
  EXPECT_THAT(PassPlace(), IsOk());
  ScopedFailpoint other("parts_test/other", "error(ABORTED)");
  EXPECT_THAT(PassPlace(), IsOk());
}

TEST(Failpoint, FollowsItsActionsInOrder) {
  ScopedFailpoint place("parts_test/place",
                        "1*off->2*error(UNAVAILABLE,gone)->delay(1ms)");
  EXPECT_THAT(PassPlace(), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(PassPlace(),
                StatusIs(absl::StatusCode::kUnavailable, "place': gone"));
  }
  EXPECT_THAT(PassPlace(), IsOk());
  EXPECT_EQ(place.hits(), 4);
}

TEST(Failpoint, BlocksUntilItIsDisarmedOrArmedAnew) {
  ScopedFailpoint place("parts_test/place", "block");
  for (const bool anew : {true, false}) {
    std::atomic<bool> may_pass{false};
    std::thread passes([&] {
      EXPECT_THAT(PassPlace(), IsOk());
      EXPECT_TRUE(may_pass);
    });
    EXPECT_TRUE(testing::Becomes([&] { return place.hits() == 1; }));
    may_pass = true;
    if (anew) {
      EXPECT_THAT(ArmFailpoint("parts_test/place", "1*block"), IsOk());
    } else {
      DisarmFailpoint("parts_test/place");
    }
    passes.join();
  }
}

TEST(Failpoint, IsDisarmedAtTheEndOfScope) {
  { ScopedFailpoint place("parts_test/place", "error(INTERNAL)"); }
  EXPECT_THAT(PassPlace(), IsOk());
  EXPECT_EQ(internal::failpoints_armed, 0);
}

TEST(Failpoint, RefusesMalformedText) {
  for (const char* actions : {"", "explode", "error", "error(NOPE)", "0*off",
                              "x*off", "delay(1)", "block(1s)"}) {
    EXPECT_THAT(ArmFailpoint("parts_test/place", actions),
                StatusIs(absl::StatusCode::kInvalidArgument, "wants"))
        << actions;
  }
  EXPECT_THAT(ArmFailpoints("=off"),
              StatusIs(absl::StatusCode::kInvalidArgument, "name=action"));
  EXPECT_THAT(PassPlace(), IsOk());
}

TEST(FailpointDeathTest, CrashesAsKillDoes) {
  EXPECT_EXIT(
      {
        ScopedFailpoint place("parts_test/place", "crash");
        PassPlace().IgnoreError();
      },
      ::testing::KilledBySignal(SIGKILL), "crash");
}

TEST(Failpoint, ListArmsSeveral) {
  ASSERT_THAT(ArmFailpoints("parts_test/place=1*error(ABORTED);a=off"), IsOk());
  EXPECT_THAT(PassPlace(), StatusIs(absl::StatusCode::kAborted));
  DisarmFailpoint("parts_test/place");
  DisarmFailpoint("a");
  EXPECT_EQ(internal::failpoints_armed, 0);
}

// This program again, as another process, for what is read before main.
absl::StatusOr<int> ExitCodeWith(const std::string& failpoints) {
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<testing::Process> process,
      testing::Process::Start(
          {{"/proc/self/exe",
            "--gtest_filter=Failpoint.DoesNothingUnlessArmed"},
           {"WEFT_FAILPOINTS=" + failpoints, "XML_OUTPUT_FILE=/dev/null"}}));
  return process->Wait(absl::Seconds(20));
}

TEST(Failpoint, IsArmedByTheEnvironment) {
  EXPECT_THAT(ExitCodeWith("parts_test/elsewhere=crash"), IsOkAndHolds(0));
  EXPECT_THAT(ExitCodeWith("parts_test/place=error(ABORTED)"), IsOkAndHolds(1));
  EXPECT_THAT(ExitCodeWith("parts_test/place=crash"),
              IsOkAndHolds(128 + SIGKILL));
  EXPECT_THAT(ExitCodeWith("nonsense"), IsOkAndHolds(2));
}

}  // namespace
}  // namespace weft
