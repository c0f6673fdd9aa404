// device_bench: what memory, streams and copies of a device cost.
//
//   device_bench                      cuda:0
//   device_bench --device=simulated   for the program itself; no times of worth
//   device_bench --goals              rows, as bench/goals.h says: V1 to V3,
//                                     which need no GPU
//   device_bench --goals=V1,V2
//
// Rows of a Markdown table: the median of several rounds, and the best.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/bench/device_goals.h"
#include "weft/bench/goals.h"
#include "weft/bench/must.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/cuda/runtime.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device {
namespace {

using ::weft::bench::Must;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int kRounds = 7;

// Microseconds of one of `count` repetitions: median and best of the rounds.
struct Figure {
  double median = 0;
  double best = 0;
};
Figure Measure(int count, const std::function<void()>& body) {
  body();
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const Instant begin = SteadyClock().Now();
    for (int i = 0; i < count; ++i) body();
    rounds.push_back(absl::ToDoubleMicroseconds(SteadyClock().Now() - begin) /
                     count);
  }
  std::sort(rounds.begin(), rounds.end());
  return {rounds[kRounds / 2], rounds[0]};
}

class Bench {
 public:
  Bench(Runtime& runtime, Device device)
      : runtime_(runtime),
        device_(device),
        stream_(Must(runtime.CreateStream(device))) {}

  void Run() {
    const Properties is = Must(runtime_.GetProperties(device_));
    std::printf("%s: %s, %lld MiB, compute %d.%d\n\n", Name(device_).c_str(),
                is.name.c_str(), static_cast<long long>(is.memory_bytes >> 20),
                is.compute_major, is.compute_minor);
    std::printf("| what | median | best |\n|---|---:|---:|\n");
    Memory();
    Streams();
    Copies();
  }

 private:
  void Say(const std::string& what, Figure figure) {
    std::printf("| %s, us | %.3f | %.3f |\n", what.c_str(), figure.median,
                figure.best);
    std::fflush(stdout);
  }
  void SayRate(const std::string& what, int64_t bytes, Figure figure) {
    std::printf("| %s, GB/s | %.2f | %.2f |\n", what.c_str(),
                static_cast<double>(bytes) / figure.median / 1e3,
                static_cast<double>(bytes) / figure.best / 1e3);
    std::fflush(stdout);
  }
  void Await() { Must(runtime_.Synchronize(stream_, kPatience)); }

  void Memory() {
    for (const int64_t bytes : {int64_t{1} << 20, int64_t{64} << 20}) {
      Say(absl::StrCat("Runtime::Allocate and Free of ", bytes >> 20, " MiB"),
          Measure(20, [&] {
            Must(runtime_.Free(device_,
                               Must(runtime_.Allocate(device_, bytes))));
          }));
    }
    CachingAllocator allocator(runtime_, device_, {});
    for (const int64_t bytes : {int64_t{512}, int64_t{1} << 20}) {
      Say(absl::StrCat("CachingAllocator::Allocate and Free of ", bytes, " B"),
          Measure(200000, [&] {
            allocator.Free(Must(allocator.Allocate(bytes, stream_)));
          }));
    }
    Say("AllocatePinned and FreePinned of 1 MiB", Measure(20, [&] {
          Must(runtime_.FreePinned(Must(runtime_.AllocatePinned(1 << 20))));
        }));
  }

  void Streams() {
    void* const memory = Must(runtime_.Allocate(device_, 4096));
    Event event = Must(runtime_.CreateEvent(device_));
    const Stream other = Must(runtime_.CreateStream(device_));
    Say("MemsetAsync of 4 KiB, put on a stream", Measure(1000, [&] {
          Must(runtime_.MemsetAsync(memory, 1, 4096, stream_));
        }));
    Await();
    Say("the same and Synchronize", Measure(200, [&] {
          Must(runtime_.MemsetAsync(memory, 1, 4096, stream_));
          Await();
        }));
    Say("RecordEvent",
        Measure(1000, [&] { Must(runtime_.RecordEvent(event, stream_)); }));
    Say("RecordEvent and StreamWaitEvent on another", Measure(1000, [&] {
          Must(runtime_.RecordEvent(event, stream_));
          Must(runtime_.StreamWaitEvent(other, event));
        }));
    Say("MemsetAsync, event, MemsetAsync on another stream, Synchronize",
        Measure(200, [&] {
          Must(runtime_.MemsetAsync(memory, 1, 4096, stream_));
          Must(runtime_.RecordEvent(event, stream_));
          Must(runtime_.StreamWaitEvent(other, event));
          Must(runtime_.MemsetAsync(memory, 2, 4096, other));
          Must(runtime_.Synchronize(other, kPatience));
        }));
    Say("Query of a stream that is idle",
        Measure(1000, [&] { Must(runtime_.Query(stream_).status()); }));
    Say("Locate of a device address",
        Measure(1000, [&] { Must(runtime_.Locate(memory).status()); }));
    Must(runtime_.Free(device_, memory));
  }

  void Copies() {
    constexpr int64_t kLargest = int64_t{64} << 20;
    void* const device = Must(runtime_.Allocate(device_, kLargest));
    void* const second = Must(runtime_.Allocate(device_, kLargest));
    void* const pinned = Must(runtime_.AllocatePinned(kLargest));
    const std::unique_ptr<void, void (*)(void*)> pageable(std::malloc(kLargest),
                                                          std::free);
    std::memset(pinned, 1, kLargest);
    std::memset(pageable.get(), 1, kLargest);
    for (const int64_t bytes :
         {int64_t{64} << 10, int64_t{1} << 20, kLargest}) {
      const int count = bytes == kLargest ? 5 : 50;
      const auto rate = [&](const char* what, void* to, const void* from) {
        SayRate(absl::StrCat(what, ", ", bytes >> 10, " KiB"), bytes,
                Measure(count, [&] {
                  Must(runtime_.CopyAsync(to, from, bytes, stream_));
                  Await();
                }));
      };
      rate("pinned to device", device, pinned);
      rate("device to pinned", pinned, device);
      rate("pageable to device", device, pageable.get());
      rate("device to pageable", pageable.get(), device);
      rate("device to device (bytes copied)", second, device);
    }
    Must(runtime_.FreePinned(pinned));
    Must(runtime_.Free(device_, device));
    Must(runtime_.Free(device_, second));
  }

  Runtime& runtime_;
  const Device device_;
  const Stream stream_;
};

int Main(int argc, char** argv) {
  std::string wanted = "cuda", goals;
  CLI::App app("What memory, streams and copies of a device cost.");
  app.add_option("--device", wanted, "cuda[:N] or simulated");
  CLI::Option* const wants_goals =
      app.add_option("--goals", goals,
                     "Print goals' rows: V1,V2,V3; empty: all")
          ->expected(0, 1);
  CLI11_PARSE(app, argc, argv);
  if (wants_goals->count() > 0) {
    bench::GoalReport report(absl::StrSplit(goals, ','));
    bench::AddDeviceGoals(report);
    report.Finish();
    return 0;
  }
  const absl::StatusOr<Device> device = ParseDevice(wanted);
  if (!device.ok() || device->is_cpu()) {
    std::fprintf(stderr,
                 "device_bench: --device=%s: wanted cuda[:N] or "
                 "simulated\n",
                 wanted.c_str());
    return 2;
  }
  std::unique_ptr<Runtime> runtime;
  if (device->kind == Device::Kind::kCuda) {
    absl::StatusOr<std::unique_ptr<Runtime>> cuda = CreateCudaRuntime();
    if (!cuda.ok()) {
      std::fprintf(stderr, "device_bench: %s\n",
                   std::string(cuda.status().message()).c_str());
      return 3;
    }
    runtime = *std::move(cuda);
  } else {
    runtime = Must(SimulatedRuntime::Create({}));
  }
  Bench(*runtime, *device).Run();
  return 0;
}

}  // namespace
}  // namespace weft::device

int main(int argc, char** argv) { return weft::device::Main(argc, argv); }
