// Devices by name, the current device and stream of a thread, and failures that
// are kept, as device.h, current.h and first_failure.h say.

#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "weft/device/current.h"
#include "weft/device/device.h"
#include "weft/device/first_failure.h"
#include "weft/device/launch.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::device::CurrentDevice;
using ::weft::device::CurrentStream;
using ::weft::device::Device;
using ::weft::device::DeviceScope;
using ::weft::device::FirstFailure;
using ::weft::device::ParseDevice;
using ::weft::device::Stream;
using ::weft::device::StreamScope;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// --- Names. ------------------------------------------------------------------

TEST(DeviceNames, AreReadAsTheyAreWritten) {
  for (const Device device :
       {Device::Cpu(), Device::Cuda(0), Device::Cuda(7), Device::Cuda(1234567),
        Device::Simulated(0), Device::Simulated(12),
        Device::Cuda(std::numeric_limits<int>::max())}) {
    EXPECT_THAT(ParseDevice(Name(device)), IsOkAndHolds(device));
    std::ostringstream out;
    out << device;
    EXPECT_EQ(out.str(), Name(device));
  }
  EXPECT_EQ(Name(Device::Cpu()), "cpu");
  EXPECT_EQ(Name(Device::Simulated(3)), "simulated:3");
}

TEST(DeviceNames, WithoutANumberMean0) {
  EXPECT_THAT(ParseDevice("cuda"), IsOkAndHolds(Device::Cuda(0)));
  EXPECT_THAT(ParseDevice("simulated"), IsOkAndHolds(Device::Simulated(0)));
  EXPECT_THAT(ParseDevice("cpu"), IsOkAndHolds(Device::Cpu()));
}

TEST(DeviceNames, ThatAreNoneAreRefusedWithWhatIsAccepted) {
  for (const absl::string_view text : {"",
                                       " ",
                                       ":",
                                       ":0",
                                       "cuda:",
                                       "cuda:-1",
                                       "cuda:+1",
                                       "cuda: 1",
                                       "cuda:1 ",
                                       " cuda",
                                       "cuda ",
                                       "CUDA",
                                       "Cpu",
                                       "cpu:0",
                                       "cpu:",
                                       "cuda:0x1",
                                       "cuda:1e1",
                                       "cuda:1.0",
                                       "cuda:1:2",
                                       "cuda::1",
                                       "cuda1",
                                       "cuda0",
                                       "gpu",
                                       "gpu:0",
                                       "simulated:",
                                       "simulated:-0",
                                       "simulated:a",
                                       "simulate",
                                       "cuda:2147483648",
                                       "cuda:4294967296",
                                       "cuda:18446744073709551616",
                                       "cuda:99999999999999999999999",
                                       "meta",
                                       "mps:0"}) {
    EXPECT_THAT(ParseDevice(text), StatusIs(kInvalid, "cuda")) << text;
  }
  EXPECT_THAT(ParseDevice(absl::string_view("cpu\0", 4)), StatusIs(kInvalid));
  EXPECT_THAT(ParseDevice(absl::string_view("cuda:1\0", 7)),
              StatusIs(kInvalid));
  EXPECT_THAT(ParseDevice(std::string(1 << 20, '9')), StatusIs(kInvalid));
  EXPECT_THAT(ParseDevice("cuda:" + std::string(1 << 20, '9')),
              StatusIs(kInvalid));
}

TEST(DeviceNames, OfDifferentDevicesDiffer) {
  EXPECT_NE(Device::Cuda(0), Device::Simulated(0));
  EXPECT_NE(Device::Cuda(0), Device::Cuda(1));
  EXPECT_NE(Device::Cpu(), Device::Cuda(0));
  EXPECT_EQ(Device(), Device::Cpu());
  EXPECT_TRUE(Device().is_cpu());
}

// --- Scopes. -----------------------------------------------------------------

class Scopes : public ::testing::Test {
 protected:
  std::unique_ptr<device::SimulatedRuntime> runtime_ = MakeSimulated(1, 2);
  const Device zero_ = Device::Simulated(0);
  const Device one_ = Device::Simulated(1);
  Stream NewStream(Device device) { return *runtime_->CreateStream(device); }
  Stream Current(Device device) {
    const auto found = CurrentStream(*runtime_, device);
    EXPECT_THAT(found, IsOk());
    return found.ok() ? *found : Stream();
  }
};

TEST_F(Scopes, WithoutAnyItIsTheCpuAndTheDefaultStream) {
  EXPECT_EQ(CurrentDevice(), Device::Cpu());
  EXPECT_EQ(Current(zero_), *runtime_->DefaultStream(zero_));
  EXPECT_EQ(Current(one_), *runtime_->DefaultStream(one_));
}

TEST_F(Scopes, StreamOfADeviceThatIsNoneIsAnError) {
  for (const Device device : {Device::Simulated(2), Device::Simulated(-1),
                              Device::Cuda(0), Device::Cpu()}) {
    EXPECT_THAT(CurrentStream(*runtime_, device), StatusIs(kInvalid));
    const DeviceScope scope(device);
    EXPECT_EQ(CurrentDevice(), device);
    EXPECT_THAT(CurrentStream(*runtime_, device), StatusIs(kInvalid));
  }
}

TEST_F(Scopes, InnermostOfEachDeviceCounts) {
  const Stream a = NewStream(zero_), b = NewStream(zero_), c = NewStream(one_);
  const StreamScope outer(a);
  EXPECT_EQ(CurrentDevice(), zero_);
  EXPECT_EQ(Current(zero_), a);
  EXPECT_EQ(Current(one_), *runtime_->DefaultStream(one_));
  {
    const StreamScope other(c);
    EXPECT_EQ(CurrentDevice(), one_);
    EXPECT_EQ(Current(zero_), a);
    EXPECT_EQ(Current(one_), c);
    {
      const DeviceScope device(zero_);
      EXPECT_EQ(CurrentDevice(), zero_);
      EXPECT_EQ(Current(zero_), a);  // a DeviceScope names no stream
      EXPECT_EQ(Current(one_), c);
      const StreamScope inner(b);
      EXPECT_EQ(Current(zero_), b);
      const StreamScope same(b);
      EXPECT_EQ(Current(zero_), b);
      const DeviceScope cpu(Device::Cpu());
      EXPECT_EQ(CurrentDevice(), Device::Cpu());
      EXPECT_EQ(Current(zero_), b);
    }
    EXPECT_EQ(CurrentDevice(), one_);
    EXPECT_EQ(Current(zero_), a);
  }
  EXPECT_EQ(CurrentDevice(), zero_);
}

TEST_F(Scopes, DefaultStreamCanBeMadeCurrentAgain) {
  const StreamScope outer(NewStream(zero_));
  const Stream standard = *runtime_->DefaultStream(zero_);
  const StreamScope inner(standard);
  EXPECT_EQ(Current(zero_), standard);
}

TEST_F(Scopes, StreamOfAnotherRuntimeIsNotThisOnes) {
  const auto other = MakeSimulated(1, 2);
  const Stream mine = NewStream(zero_);
  const StreamScope outer(mine);
  const StreamScope inner(*other->CreateStream(zero_));
  EXPECT_EQ(Current(zero_), mine);
  EXPECT_EQ(CurrentDevice(), zero_);
}

TEST_F(Scopes, CarryNothingToOtherThreads) {
  const StreamScope scope(NewStream(one_));
  std::thread([&] {
    EXPECT_EQ(CurrentDevice(), Device::Cpu());
    EXPECT_EQ(Current(one_), *runtime_->DefaultStream(one_));
    const DeviceScope own(zero_);
    EXPECT_EQ(CurrentDevice(), zero_);
  }).join();
  EXPECT_EQ(CurrentDevice(), one_);
}

TEST_F(Scopes, EndWithAnException) {
  try {
    const DeviceScope a(zero_);
    const StreamScope b(NewStream(one_));
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(CurrentDevice(), Device::Cpu());
}

TEST_F(Scopes, TenThousandDeep) {
  std::vector<std::unique_ptr<DeviceScope>> scopes;
  for (int i = 0; i < 10000; ++i) {
    scopes.push_back(std::make_unique<DeviceScope>(Device::Simulated(i % 2)));
    EXPECT_EQ(CurrentDevice(), Device::Simulated(i % 2));
  }
  while (!scopes.empty()) scopes.pop_back();
  EXPECT_EQ(CurrentDevice(), Device::Cpu());
}

TEST(ScopesDeathTest, StreamThatNamesNoneEndsTheProgram) {
  EXPECT_DEATH(StreamScope{Stream()}, "");
}

TEST(Launching, OnAStreamThatNamesNoneIsRefused) {
  EXPECT_THAT(device::Launch(
                  Stream(), "k",
                  [](const device::DeviceMemory&) { return absl::OkStatus(); },
                  [](void*) { return absl::OkStatus(); }),
              StatusIs(kInvalid));
}

TEST(Launching, OnASimulatedStreamRunsTheHostsFunctionOnly) {
  const auto runtime = MakeSimulated(1);
  const Stream stream = *runtime->CreateStream(Device::Simulated(0));
  int host = 0, native = 0;
  WEFT_EXPECT_OK(device::Launch(
      stream, "k",
      [&](const device::DeviceMemory&) {
        ++host;
        return absl::OkStatus();
      },
      [&](void*) {
        ++native;
        return absl::OkStatus();
      }));
  WEFT_EXPECT_OK(runtime->Synchronize(stream, absl::Seconds(10)));
  EXPECT_EQ(host, 1);
  EXPECT_EQ(native, 0);
}

// --- Failures that are kept. -------------------------------------------------

TEST(FirstFailures, FirstOneWinsAndIsGivenToEachLaterCall) {
  FirstFailure failure;
  EXPECT_FALSE(failure.has_failed());
  EXPECT_THAT(failure.Get(), IsOk());
  failure.Set(absl::UnavailableError("first"));
  failure.Set(absl::InternalError("second"));
  EXPECT_TRUE(failure.has_failed());
  EXPECT_THAT(failure.Get(), StatusIs(absl::StatusCode::kUnavailable, "first"));
  const absl::Status refused = failure.Refuse("cuda:0: Allocate(64 bytes)");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, "first"));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable,
                                "cuda:0: Allocate(64 bytes)"));
}

TEST(FirstFailures, OfManyThreadsIsOne) {
  for (int round = 0; round < 50; ++round) {
    FirstFailure failure;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&failure, t] {
        failure.Set(absl::InternalError(std::string(1, 'a' + t)));
        EXPECT_FALSE(failure.Get().ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string first(failure.Get().message());
    EXPECT_EQ(failure.Get().message(), first);
    EXPECT_EQ(first.size(), 1u);
  }
}

}  // namespace
}  // namespace weft::outside
