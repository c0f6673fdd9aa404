// Two Runtimes that open each other's memory and events: here of one process,
// with a schedule each; collectives/backends/same_device has processes.

#include "weft/device/sharing.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/device/peer_process.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::Add;
using testing::Fill;
using testing::kPatience;
using testing::MakeSimulated;
using weft::testing::IsOkAndHolds;
using weft::testing::StatusIs;

constexpr Device kDevice = Device::Simulated(0);
constexpr int64_t kElements = 1000;

class SharingTest : public ::testing::TestWithParam<int> {
 protected:
  struct Side {
    explicit Side(uint64_t seed)
        : runtime(MakeSimulated(seed)),
          sharing(Sharing::Of(*runtime)),
          stream(*runtime->CreateStream(kDevice)),
          memory(static_cast<float*>(
              *runtime->Allocate(kDevice, kElements * sizeof(float)))) {}

    // The first element at `from`, once all that is on the stream has run.
    float Read(const float* from) const {
      float found = -7;
      WEFT_EXPECT_OK(runtime->CopyAsync(&found, from, sizeof found, stream));
      return found;
    }

    std::unique_ptr<SimulatedRuntime> runtime;
    Sharing* sharing;
    Stream stream;
    float* memory;
  };

  // `memory` of the one side for the other.
  float* Open(const Side& to, const Side& from) {
    const auto lent = from.sharing->Share(from.memory + 3);
    WEFT_EXPECT_OK(lent);
    EXPECT_EQ(lent->offset, static_cast<int64_t>(3 * sizeof(float)));
    const auto opened = to.sharing->OpenMemory(kDevice, lent->handle);
    WEFT_EXPECT_OK(opened);
    return static_cast<float*>(*opened);
  }

  Side a_{static_cast<uint64_t>(GetParam())};
  Side b_{static_cast<uint64_t>(GetParam()) + 100};
};

INSTANTIATE_TEST_SUITE_P(Seeds, SharingTest,
                         ::testing::Range(0, testing::kSeeds));

TEST_P(SharingTest, EachReadsAndWritesTheMemoryOfTheOther) {
  float* const of_b = Open(a_, b_);
  EXPECT_NE(of_b, b_.memory);
  WEFT_EXPECT_OK(Fill(b_.stream, b_.memory, 2.0f, kElements));
  EXPECT_EQ(b_.Read(b_.memory), 2.0f);
  WEFT_EXPECT_OK(Fill(a_.stream, a_.memory, 3.0f, kElements));
  WEFT_EXPECT_OK(Add(a_.stream, of_b, a_.memory, kElements));
  EXPECT_EQ(a_.Read(of_b), 5.0f);
  EXPECT_EQ(b_.Read(b_.memory + kElements - 1), 5.0f);
  WEFT_EXPECT_OK(a_.runtime->CopyAsync(a_.memory, of_b,
                                       kElements * sizeof(float), a_.stream));
  EXPECT_EQ(a_.Read(a_.memory), 5.0f);
  const auto location = a_.runtime->Locate(of_b);
  WEFT_ASSERT_OK(location);
  EXPECT_EQ(location->place, Location::Place::kDevice);
  EXPECT_EQ(location->device, kDevice);
}

// Without the wait the reader would run ahead under some seeds: below.
TEST_P(SharingTest, StreamWaitsForTheEventOfTheOther) {
  float* const of_b = Open(a_, b_);
  auto made = b_.sharing->CreateSharedEvent(kDevice);
  WEFT_ASSERT_OK(made);
  auto opened = a_.sharing->OpenEvent(kDevice, made->handle);
  WEFT_ASSERT_OK(opened);
  EXPECT_THAT(a_.runtime->Query(*opened), IsOkAndHolds(true));  // no record
  for (const float value : {2.0f, 3.0f, 4.0f}) {
    WEFT_EXPECT_OK(Fill(b_.stream, b_.memory, value, kElements));
    WEFT_EXPECT_OK(b_.runtime->RecordEvent(made->event, b_.stream));
    WEFT_EXPECT_OK(a_.runtime->StreamWaitEvent(a_.stream, *opened));
    WEFT_EXPECT_OK(Fill(a_.stream, a_.memory, 0.0f, kElements));
    WEFT_EXPECT_OK(Add(a_.stream, a_.memory, of_b, kElements));
    WEFT_EXPECT_OK(b_.runtime->Synchronize(b_.stream, kPatience));
    EXPECT_EQ(a_.Read(a_.memory), value);
    EXPECT_THAT(a_.runtime->Query(*opened), IsOkAndHolds(true));
    WEFT_EXPECT_OK(a_.runtime->Synchronize(*opened, kPatience));
  }
}

// Tasks of the other run only there: a wait for them takes time, and ends.
TEST_P(SharingTest, WaitForAnEventThatDoesNotComeEndsAtItsDeadline) {
  auto made = b_.sharing->CreateSharedEvent(kDevice);
  WEFT_ASSERT_OK(made);
  auto opened = a_.sharing->OpenEvent(kDevice, made->handle);
  WEFT_ASSERT_OK(opened);
  WEFT_EXPECT_OK(Fill(b_.stream, b_.memory, 2.0f, kElements));
  b_.runtime->SetHangs(b_.stream, true);
  WEFT_EXPECT_OK(b_.runtime->RecordEvent(made->event, b_.stream));
  WEFT_EXPECT_OK(a_.runtime->StreamWaitEvent(a_.stream, *opened));
  WEFT_EXPECT_OK(Fill(a_.stream, a_.memory, 5.0f, kElements));
  EXPECT_THAT(a_.runtime->Query(a_.stream), IsOkAndHolds(false));
  EXPECT_THAT(a_.runtime->Synchronize(a_.stream, absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "not done"));
  EXPECT_THAT(a_.runtime->Synchronize(*opened, absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "another process"));
  b_.runtime->SetHangs(b_.stream, false);
  WEFT_EXPECT_OK(b_.runtime->Synchronize(b_.stream, kPatience));
  EXPECT_EQ(a_.Read(a_.memory), 5.0f);
}

TEST_P(SharingTest, WhatADeviceOrARuntimeTakesAlongIsNotWaitedFor) {
  for (const bool is_lost : {true, false}) {
    Side other(GetParam() + 7);
    auto made = other.sharing->CreateSharedEvent(kDevice);
    WEFT_ASSERT_OK(made);
    auto opened = a_.sharing->OpenEvent(kDevice, made->handle);
    WEFT_ASSERT_OK(opened);
    WEFT_EXPECT_OK(Fill(other.stream, other.memory, 2.0f, kElements));
    other.runtime->SetHangs(other.stream, true);
    WEFT_EXPECT_OK(other.runtime->RecordEvent(made->event, other.stream));
    WEFT_EXPECT_OK(a_.runtime->StreamWaitEvent(a_.stream, *opened));
    WEFT_EXPECT_OK(Fill(a_.stream, a_.memory, 4.0f, kElements));
    if (is_lost) {
      other.runtime->LoseDevice(kDevice);
    } else {
      made->event = Event();
      other.runtime = nullptr;
    }
    EXPECT_EQ(a_.Read(a_.memory), 4.0f);
  }
}

// ----- what is no handle, or not any more

TEST_P(SharingTest, MemoryThatTheOtherHasFreedIsNoMemory) {
  float* const of_b = Open(a_, b_);
  const auto lent = b_.sharing->Share(b_.memory);
  WEFT_ASSERT_OK(lent);
  WEFT_EXPECT_OK(b_.runtime->Free(kDevice, b_.memory));
  EXPECT_THAT(a_.sharing->OpenMemory(kDevice, lent->handle).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "has freed"));
  EXPECT_THAT(b_.sharing->Share(b_.memory).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "Share"));
  WEFT_EXPECT_OK(Fill(a_.stream, of_b, 1.0f, kElements));
  EXPECT_THAT(a_.runtime->Synchronize(a_.stream, kPatience),
              StatusIs(absl::StatusCode::kInternal, "illegal address"));
}

TEST_P(SharingTest, MemoryOfTheOtherEndsWithItsAllocation) {
  float* const of_b = Open(a_, b_);
  WEFT_EXPECT_OK(Fill(a_.stream, of_b, 1.0f, 2 * 4096));
  EXPECT_THAT(a_.runtime->Synchronize(a_.stream, kPatience),
              StatusIs(absl::StatusCode::kInternal, "leave the allocation"));
}

TEST_P(SharingTest, MemoryIsClosedOnceForEachTimeItWasOpened) {
  float* const first = Open(a_, b_);
  EXPECT_EQ(Open(a_, b_), first);
  WEFT_EXPECT_OK(a_.sharing->CloseMemory(first));
  WEFT_EXPECT_OK(b_.runtime->MemsetAsync(b_.memory, 0, 4, b_.stream));
  EXPECT_EQ(b_.Read(b_.memory), 0.0f);
  EXPECT_EQ(a_.Read(first), 0.0f);
  WEFT_EXPECT_OK(a_.sharing->CloseMemory(first));
  EXPECT_THAT(a_.sharing->CloseMemory(first),
              StatusIs(absl::StatusCode::kInvalidArgument, "CloseMemory"));
  WEFT_EXPECT_OK(Fill(a_.stream, first, 1.0f, kElements));
  EXPECT_THAT(a_.runtime->Synchronize(a_.stream, kPatience),
              StatusIs(absl::StatusCode::kInternal, "illegal address"));
}

TEST_P(SharingTest, WhatIsNoHandleIsRefused) {
  auto event = b_.sharing->CreateSharedEvent(kDevice);
  const auto lent = b_.sharing->Share(b_.memory);
  WEFT_ASSERT_OK(event);
  WEFT_ASSERT_OK(lent);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(a_.sharing->OpenMemory(kDevice, event->handle).status(),
              StatusIs(invalid, "wanted a handle of memory"));
  EXPECT_THAT(a_.sharing->OpenEvent(kDevice, lent->handle).status(),
              StatusIs(invalid, "wanted a handle of an event"));
  EXPECT_THAT(a_.sharing->OpenEvent(kDevice, IpcHandle()).status(),
              StatusIs(invalid, "found something else"));
  EXPECT_THAT(
      a_.sharing->OpenMemory(Device::Simulated(1), lent->handle).status(),
      StatusIs(invalid, "no device simulated:1"));
  event->event = Event();
  b_.runtime = nullptr;
  EXPECT_THAT(a_.sharing->OpenMemory(kDevice, lent->handle).status(),
              StatusIs(absl::StatusCode::kUnavailable, "process"));
}

TEST_P(SharingTest, SharedEventIsRecordedOnOneStreamByItsMaker) {
  auto made = b_.sharing->CreateSharedEvent(kDevice);
  WEFT_ASSERT_OK(made);
  auto opened = a_.sharing->OpenEvent(kDevice, made->handle);
  WEFT_ASSERT_OK(opened);
  EXPECT_THAT(a_.runtime->RecordEvent(*opened, a_.stream),
              StatusIs(absl::StatusCode::kInvalidArgument, "another process"));
  WEFT_EXPECT_OK(b_.runtime->RecordEvent(made->event, b_.stream));
  EXPECT_THAT(
      b_.runtime->RecordEvent(made->event, *b_.runtime->CreateStream(kDevice)),
      StatusIs(absl::StatusCode::kInvalidArgument, "on one stream"));
}

TEST(PeerProcess, IsSeenToEnd) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  const auto process = PeerProcess::Open(child);
  WEFT_ASSERT_OK(process);
  EXPECT_FALSE((*process)->has_ended());
  EXPECT_THAT((*process)->OpenDescriptor(1 << 20).status(),
              StatusIs(absl::StatusCode::kUnavailable, "descriptor"));
  kill(child, SIGKILL);
  siginfo_t ended;
  EXPECT_EQ(waitid(P_PID, child, &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE((*process)->has_ended());  // though nobody has waited for it
  waitpid(child, nullptr, 0);
  EXPECT_THAT(PeerProcess::Open(child).status(),
              StatusIs(absl::StatusCode::kUnavailable, "process"));
}

}  // namespace
}  // namespace weft::device
