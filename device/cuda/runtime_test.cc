// What is of CUDA alone: why there is none, and a device that failed. The suite
// of all Runtimes is device/runtime_test.cc.

#include "weft/device/cuda/runtime.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::Fill;
using ::testing::HasSubstr;
using testing::Trap;
using weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr Device kDevice = Device::Cuda(0);

TEST(CudaRuntime, SaysWhyThereIsNone) {
  const auto runtime = CreateCudaRuntime();
  if (runtime.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(absl::IsUnavailable(runtime.status()) ||
              absl::IsUnimplemented(runtime.status()))
      << runtime.status();
  EXPECT_THAT(std::string(runtime.status().message()), HasSubstr("CUDA"));
}

// The last test: it leaves a context of which nothing can be had.
TEST(CudaRuntimeZ, NamesTheKernelThatFailedInEachLaterCallAndGoesOn) {
  auto made = CreateCudaRuntime();
  if (!made.ok()) GTEST_SKIP() << "no GPU: " << made.status();
  Runtime& runtime = **made;
  WEFT_ASSERT_OK_AND_ASSIGN(const Stream stream, runtime.CreateStream(kDevice));
  WEFT_ASSERT_OK_AND_ASSIGN(Event event, runtime.CreateEvent(kDevice));
  WEFT_ASSERT_OK_AND_ASSIGN(void* const memory, runtime.Allocate(kDevice, 64));
  auto* const x = static_cast<float*>(memory);
  WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 16));
  WEFT_ASSERT_OK(runtime.Synchronize(stream, kPatience));
  WEFT_ASSERT_OK(Trap(stream));
  const absl::Status first = runtime.Synchronize(stream, kPatience);
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kInternal, "cudaError"));
  const std::vector<std::pair<const char*, absl::Status>> later = {
      {"Health", runtime.Health(kDevice)},
      {"Allocate", runtime.Allocate(kDevice, 64).status()},
      {"GetMemoryUse", runtime.GetMemoryUse(kDevice).status()},
      {"CreateStream", runtime.CreateStream(kDevice).status()},
      {"CreateEvent", runtime.CreateEvent(kDevice).status()},
      {"RecordEvent", runtime.RecordEvent(event, stream)},
      {"StreamWaitEvent", runtime.StreamWaitEvent(stream, event)},
      {"Query stream", runtime.Query(stream).status()},
      {"Query event", runtime.Query(event).status()},
      {"Synchronize", runtime.Synchronize(kDevice, kPatience)},
      {"MemsetAsync", runtime.MemsetAsync(x, 0, 4, stream)},
      {"CopyAsync", runtime.CopyAsync(x, x + 8, 4, stream)},
      {"Fill", Fill(stream, x, 0.0f, 1)},
      {"Free", runtime.Free(kDevice, x)}};
  for (const auto& [what, status] : later) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                 std::string(first.message())))
        << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr("failed before"))
        << what;
  }
}

}  // namespace
}  // namespace weft::device
