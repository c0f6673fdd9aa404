// What a program forgets on a device, each forgotten by hand: the simulated
// device shows it, and with the rule kept all seeds give the right number.

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/launch.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::Add;
using testing::Fill;
using testing::kPatience;
using testing::kSeeds;
using testing::MakeSimulated;
using weft::testing::StatusIs;

constexpr int64_t kElements = 64;
constexpr int64_t kBytes = kElements * sizeof(float);

// A program on one simulated device, which asserts that each call is OK.
class Program {
 public:
  explicit Program(uint64_t seed, bool poison = false)
      : runtime_(MakeSimulated(seed)),
        allocator_(*runtime_, Device::Simulated(0), Options(poison)) {}
  ~Program() { Ok(runtime_->Synchronize(Device::Simulated(0), kPatience)); }

  static void Ok(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
  }

  Stream NewStream() { return *runtime_->CreateStream(Device::Simulated(0)); }
  float* NewFloats() {
    return static_cast<float*>(
        *runtime_->Allocate(Device::Simulated(0), kBytes));
  }
  float* NewPinned() {
    return static_cast<float*>(*runtime_->AllocatePinned(kBytes));
  }
  float* FromCache(Stream stream) {
    return static_cast<float*>(*allocator_.Allocate(kBytes, stream));
  }
  void Fill(Stream stream, float* out, float value) {
    Ok(testing::Fill(stream, out, value, kElements));
  }
  void Add(Stream stream, float* out, const float* in) {
    Ok(testing::Add(stream, out, in, kElements));
  }
  void Copy(Stream stream, float* to, const float* from) {
    Ok(runtime_->CopyAsync(to, from, kBytes, stream));
  }
  // What is on `second` from now on runs after what is on `first` now.
  void Order(Stream first, Stream second) {
    Event event = *runtime_->CreateEvent(Device::Simulated(0));
    Ok(runtime_->RecordEvent(event, first));
    Ok(runtime_->StreamWaitEvent(second, event));
  }
  void Wait(Stream stream) { Ok(runtime_->Synchronize(stream, kPatience)); }
  // The first element on the device, after all that is on `stream`.
  float Read(Stream stream, const float* from) {
    float found = 0;
    Ok(runtime_->CopyAsync(&found, from, sizeof(found), stream));
    return found;
  }

  SimulatedRuntime& runtime() { return *runtime_; }
  CachingAllocator& allocator() { return allocator_; }

 private:
  static CachingAllocator::Options Options(bool poison) {
    CachingAllocator::Options options;
    options.poison = poison;
    return options;
  }

  std::unique_ptr<SimulatedRuntime> runtime_;
  CachingAllocator allocator_;
};

// In how many of the seeds `run(seed)` gives `right`.
int CountRight(float right, const std::function<float(uint64_t seed)>& run) {
  int count = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) count += run(seed) == right;
  return count;
}

// `run(keeps_rule, seed)` is right under all seeds if the rule is kept, and
// wrong under some if it is broken.
void ExpectShown(float right, const std::function<float(bool, uint64_t)>& run) {
  EXPECT_EQ(CountRight(right, [&](uint64_t seed) { return run(true, seed); }),
            kSeeds)
      << "wrong though the rule is kept";
  EXPECT_LT(CountRight(right, [&](uint64_t seed) { return run(false, seed); }),
            kSeeds)
      << "the broken rule is not seen";
}

TEST(BrokenRule, AStreamReadsWhatAnotherWritesWithoutAnEvent) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream writer = p.NewStream();
    const Stream reader = p.NewStream();
    float* const x = p.NewFloats();
    p.Fill(writer, x, 0.0f);
    p.Wait(writer);
    p.Fill(writer, x, 1.0f);
    if (keeps_rule) p.Order(writer, reader);
    return p.Read(reader, x);
  });
}

TEST(BrokenRule, AStreamWritesWhatAnotherReadsWithoutAnEvent) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream reader = p.NewStream();
    const Stream writer = p.NewStream();
    float* const x = p.NewFloats();
    float* const y = p.NewFloats();
    p.Fill(reader, x, 1.0f);
    p.Wait(reader);
    p.Copy(reader, y, x);
    if (keeps_rule) p.Order(reader, writer);
    p.Fill(writer, x, 2.0f);
    p.Wait(writer);
    return p.Read(reader, y);
  });
}

TEST(BrokenRule, AnEventIsRecordedBeforeTheWrite) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream writer = p.NewStream();
    const Stream reader = p.NewStream();
    float* const x = p.NewFloats();
    p.Fill(writer, x, 0.0f);
    if (!keeps_rule) p.Order(writer, reader);
    p.Fill(writer, x, 1.0f);
    if (keeps_rule) p.Order(writer, reader);
    return p.Read(reader, x);
  });
}

// Met by others on GPUs: a copy from pageable memory looks as if it were over
// when it returns, since its source may be used again.
TEST(BrokenRule, APageableCopyRunsBesideAStreamThatDoesNotWaitForIt) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream copies = p.NewStream();
    const Stream computes = p.NewStream();
    float* const x = p.NewFloats();
    p.Fill(copies, x, 0.0f);
    p.Wait(copies);
    {
      const std::vector<float> pageable(kElements, 1.0f);
      p.Copy(copies, x, pageable.data());
    }
    if (keeps_rule) p.Order(copies, computes);
    float* const y = p.NewFloats();
    p.Copy(computes, y, x);
    return p.Read(computes, y);
  });
}

TEST(BrokenRule, PinnedMemoryIsWrittenBeforeItsCopyRan) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream stream = p.NewStream();
    float* const x = p.NewFloats();
    float* const pinned = p.NewPinned();
    pinned[0] = 1.0f;
    p.Copy(stream, x, pinned);
    if (keeps_rule) p.Wait(stream);
    pinned[0] = 2.0f;
    return p.Read(stream, x);
  });
}

TEST(BrokenRule, PinnedMemoryIsReadBeforeItsCopyRan) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed);
    const Stream stream = p.NewStream();
    float* const x = p.NewFloats();
    float* const pinned = p.NewPinned();
    p.Fill(stream, x, 1.0f);
    p.Copy(stream, pinned, x);
    if (keeps_rule) p.Wait(stream);
    return pinned[0];
  });
}

TEST(BrokenRule, MemoryIsReadThatNobodyWrote) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Program p(seed);
    const Stream stream = p.NewStream();
    float* const x = p.NewFloats();
    float* const y = p.NewFloats();
    p.Fill(stream, y, 1.0f);
    p.Add(stream, y, x);
    EXPECT_TRUE(std::isnan(p.Read(stream, y)));
  }
}

// The block goes to the next who asks on its stream, while another reads it.
float ReuseWithout(bool keeps_rule, uint64_t seed) {
  Program p(seed);
  const Stream owner = p.NewStream();
  const Stream other = p.NewStream();
  float* const sum = p.NewFloats();
  p.Fill(other, sum, 0.0f);
  float* const x = p.FromCache(owner);
  p.Fill(owner, x, 1.0f);
  p.Order(owner, other);
  p.Add(other, sum, x);
  if (keeps_rule) p.allocator().RecordStream(x, other);
  p.allocator().Free(x);
  float* const next = p.FromCache(owner);
  p.Fill(owner, next, 2.0f);
  p.Wait(owner);
  const float found = p.Read(other, sum);
  p.allocator().Free(next);
  return found;
}

TEST(BrokenRule, ABlockIsGivenBackWithoutRecordStream) {
  ExpectShown(1.0f, ReuseWithout);
}

TEST(BrokenRule, APoisonedBlockIsReadAfterItWasGivenBack) {
  ExpectShown(1.0f, [](bool keeps_rule, uint64_t seed) {
    Program p(seed, /*poison=*/true);
    const Stream owner = p.NewStream();
    const Stream other = p.NewStream();
    float* const sum = p.NewFloats();
    p.Fill(other, sum, 0.0f);
    float* const x = p.FromCache(owner);
    p.Fill(owner, x, 1.0f);
    p.Order(owner, other);
    p.Add(other, sum, x);
    if (keeps_rule) p.allocator().RecordStream(x, other);
    p.allocator().Free(x);  // nobody takes it, and yet
    p.Wait(owner);
    return p.Read(other, sum);
  });
}

// ----- what is seen under each seed

TEST(BrokenRule, AKernelUsesDeviceMemoryThatWasGivenBack) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto runtime = MakeSimulated(seed);
    const Device device = Device::Simulated(0);
    const Stream stream = *runtime->CreateStream(device);
    auto* const x = static_cast<float*>(*runtime->Allocate(device, kBytes));
    WEFT_ASSERT_OK(runtime->Free(device, x));
    // Under some seeds it fails as soon as it is put there.
    (void)Fill(stream, x, 1.0f, kElements);
    EXPECT_THAT(runtime->Synchronize(stream, kPatience),
                StatusIs(absl::StatusCode::kInternal, "illegal address"));
  }
}

TEST(BrokenRule, DeviceMemoryIsGivenBackBeforeItsWorkRan) {
  int seen = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto runtime = MakeSimulated(seed);
    const Device device = Device::Simulated(0);
    const Stream stream = *runtime->CreateStream(device);
    void* const x = *runtime->Allocate(device, kBytes);
    WEFT_ASSERT_OK(runtime->MemsetAsync(x, 0, kBytes, stream));
    WEFT_ASSERT_OK(runtime->Free(device, x));
    // Not the same memory, even if it were at the same address.
    void* const next = *runtime->Allocate(device, kBytes);
    const absl::Status status = runtime->Synchronize(stream, kPatience);
    if (status.ok()) continue;  // it ran as soon as it was there
    ++seen;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                 "was given back before the copy ran"));
    (void)runtime->Free(device, next);
  }
  EXPECT_GT(seen, 0);
}

TEST(BrokenRule, PinnedMemoryIsGivenBackBeforeItsCopyRan) {
  int seen = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto runtime = MakeSimulated(seed);
    const Device device = Device::Simulated(0);
    const Stream stream = *runtime->CreateStream(device);
    void* const x = *runtime->Allocate(device, kBytes);
    void* const pinned = *runtime->AllocatePinned(kBytes);
    WEFT_ASSERT_OK(runtime->CopyAsync(x, pinned, kBytes, stream));
    WEFT_ASSERT_OK(runtime->FreePinned(pinned));
    const absl::Status status = runtime->Synchronize(stream, kPatience);
    if (status.ok()) continue;
    ++seen;
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInternal, "pinned memory at"));
  }
  EXPECT_GT(seen, 0);
}

// `use` gets a stream and two blocks; the device fails with `message`.
void ExpectIllegal(
    const std::string& message,
    const std::function<void(Stream, float* device, float* host)>& use) {
  const auto runtime = MakeSimulated(0, 2);
  const Device device = Device::Simulated(0);
  const Stream stream = *runtime->CreateStream(device);
  auto* const x = static_cast<float*>(*runtime->Allocate(device, kBytes));
  std::vector<float> pageable(kElements);
  use(stream, x, pageable.data());
  EXPECT_THAT(runtime->Synchronize(stream, kPatience),
              StatusIs(absl::StatusCode::kInternal, message));
}

TEST(BrokenRule, AKernelReadsPageableMemory) {
  ExpectIllegal("neither device memory nor pinned",
                [](Stream stream, float* x, float* host) {
                  (void)Add(stream, x, host, kElements);
                });
}

TEST(BrokenRule, AKernelWritesBeyondItsMemory) {
  ExpectIllegal("260 bytes at", [](Stream stream, float* x, float*) {
    (void)Fill(stream, x, 0.0f, kElements + 1);
  });
}

TEST(BrokenRule, AKernelReadsTheMemoryOfAnotherDevice) {
  ExpectIllegal("memory of simulated:1, which simulated:0 cannot reach",
                [](Stream stream, float* x, float*) {
                  const auto other =
                      stream.runtime().Allocate(Device::Simulated(1), kBytes);
                  (void)Add(stream, x, static_cast<float*>(*other), kElements);
                });
}

TEST(BrokenRule, ACopyLeavesItsMemory) {
  const auto runtime = MakeSimulated(0);
  const Stream stream = *runtime->DefaultStream(Device::Simulated(0));
  void* const x = *runtime->Allocate(Device::Simulated(0), kBytes);
  const std::vector<char> host(kBytes + 1);
  EXPECT_THAT(runtime->CopyAsync(x, host.data(), kBytes + 1, stream),
              StatusIs(absl::StatusCode::kInvalidArgument, "257 bytes at"));
}

TEST(BrokenRule, AKernelCallsItsRuntime) {
  const auto runtime = MakeSimulated(0);
  const Stream stream = *runtime->DefaultStream(Device::Simulated(0));
  absl::Status status;
  WEFT_ASSERT_OK(Launch(
      stream, "CallsBack",
      [&](const DeviceMemory&) {
        status = runtime->Synchronize(stream, kPatience);
        return absl::OkStatus();
      },
      [](void*) { return absl::OkStatus(); }));
  WEFT_ASSERT_OK(runtime->Synchronize(stream, kPatience));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "a task of a device called its Runtime"));
}

// ----- the host touches device memory

const volatile void* expected_address = nullptr;

void ExitByAddress(int, siginfo_t* fault, void*) {
  _exit(fault->si_addr == const_cast<const void*>(expected_address) ? 42 : 43);
}

// What a child process exits with that touches `address`: 42 if that is a
// SIGSEGV at just this address.
int TouchInChild(volatile float* address, bool writes) {
  const pid_t child = fork();
  if (child == 0) {
    expected_address = address;
    struct sigaction action = {};
    action.sa_sigaction = ExitByAddress;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    if (writes) *address = 1.0f;
    const float read = *address;
    _exit(read == 1.0f ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(BrokenRule, TheHostTouchesDeviceMemory) {
  Program p(0);
  const Stream stream = p.NewStream();
  float* const x = p.NewFloats();
  p.Fill(stream, x, 1.0f);
  p.Wait(stream);
  EXPECT_EQ(TouchInChild(x, /*writes=*/false), 42);
  EXPECT_EQ(TouchInChild(x + kElements - 1, /*writes=*/true), 42);
  float* const cached = p.FromCache(stream);
  EXPECT_EQ(TouchInChild(cached, /*writes=*/true), 42);
  p.allocator().Free(cached);
  EXPECT_EQ(TouchInChild(cached, /*writes=*/false), 42);
  EXPECT_EQ(p.Read(stream, x), 1.0f);  // the rule kept: through a copy
}

TEST(BrokenRule, TheHostTouchesMemoryOfAnotherProcess) {
  const auto other = testing::MakeSimulated(0);
  const auto own = testing::MakeSimulated(1);
  const auto memory = other->Allocate(Device::Simulated(0), 4096);
  WEFT_ASSERT_OK(memory);
  const auto lent = other->Share(*memory);
  WEFT_ASSERT_OK(lent);
  const auto opened = own->OpenMemory(Device::Simulated(0), lent->handle);
  WEFT_ASSERT_OK(opened);
  auto* const x = static_cast<float*>(*opened);
  EXPECT_EQ(TouchInChild(x, /*writes=*/false), 42);
  EXPECT_EQ(TouchInChild(x, /*writes=*/true), 42);
}

// A stream that reads what the stream of another process has still to write.
TEST(BrokenRule, AStreamDoesNotWaitForThatOfAnotherProcess) {
  constexpr Device kDevice = Device::Simulated(0);
  int wrong = 0;
  for (int seed = 0; seed < 20; ++seed) {
    const auto other = testing::MakeSimulated(seed);
    const auto own = testing::MakeSimulated(seed + 100);
    const Stream writer = *other->CreateStream(kDevice);
    const Stream reader = *own->CreateStream(kDevice);
    auto* const memory = static_cast<float*>(*other->Allocate(kDevice, 4096));
    WEFT_ASSERT_OK(testing::Fill(writer, memory, 1.0f, 1));
    WEFT_ASSERT_OK(other->Synchronize(writer, kPatience));
    const auto lent = other->Share(memory);
    WEFT_ASSERT_OK(lent);
    const auto opened = own->OpenMemory(kDevice, lent->handle);
    WEFT_ASSERT_OK(opened);
    WEFT_ASSERT_OK(testing::Fill(writer, memory, 2.0f, 1));
    float found = 0;
    WEFT_ASSERT_OK(own->CopyAsync(&found, *opened, sizeof found, reader));
    wrong += found == 1.0f;
  }
  EXPECT_GT(wrong, 0);
}

TEST(BrokenRule, TheHostMayTouchPinnedMemory) {
  Program p(0);
  EXPECT_EQ(TouchInChild(p.NewPinned(), /*writes=*/true), 0);
}

}  // namespace
}  // namespace weft::device
