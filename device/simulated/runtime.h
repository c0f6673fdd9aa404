// SimulatedRuntime: devices that are this CPU, made to show what a program
// forgets. A program that passes on a GPU by luck fails here by a seed.
//
//   WEFT_ASSIGN_OR_RETURN(auto runtime, SimulatedRuntime::Create({.seed = 7}));
//
// What it shows, and how:
//   the host touches device memory        SIGSEGV at that address
//   a kernel or copy leaves its memory    kInternal, as CUDA's illegal address
//   two streams without an event          a wrong number, under some seeds
//   a pinned buffer used again too early  a wrong number, under some seeds
//   memory given back too early           kInternal; through CachingAllocator a
//                                         wrong number, under some seeds
//   memory read before it was written     NaN, or -1
// A kernel is a function of the host (Launch, device/launch.h), which finds its
// memory through DeviceMemory.
//
// When tasks run. There is no thread: a task runs on a thread that waits for
// something (Synchronize, Query, a copy to pageable memory), or that puts work
// on a stream while `max_pending_tasks` wait, or when the seed says so. Which
// task is next, the seed says (Schedule); only streams and events are
// respected. So with one calling thread the order is a function of the seed and
// of the calls. With several it depends on theirs.
//
// No time passes: where no task is ready, since a stream hangs, a wait ends at
// once with kDeadlineExceeded.
//
// After a device failed its tasks are dropped, and what waits for them on
// another device goes on.
//
// Thread-safety: thread-safe. Tasks run one at a time, each without a lock, and
// a task sees what the tasks before it wrote.

#ifndef WEFT_DEVICE_SIMULATED_RUNTIME_H_
#define WEFT_DEVICE_SIMULATED_RUNTIME_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/optional.h"
#include "weft/base/mutex.h"
#include "weft/device/first_failure.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/memory.h"
#include "weft/device/simulated/schedule.h"

namespace weft::device {

class SimulatedRuntime final : public Runtime {
 public:
  struct Options {
    int devices = 1;
    // Each device has so much; it is address space until it is allocated.
    int64_t memory_bytes = int64_t{256} << 20;
    uint64_t seed = 0;
    // With more than that, putting work on a stream runs one.
    int max_pending_tasks = 256;
    // How long a copy to pageable memory waits for what is before it.
    absl::Duration pageable_copy_timeout = absl::Minutes(5);
  };

  // kInvalidArgument for options that make no sense; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SimulatedRuntime>> Create(
      Options options);
  // Drops the tasks that have not run. No other thread may be in a call.
  ~SimulatedRuntime() override;

  // Faults. REQUIRES: `device` is one of this runtime.
  //
  // The next `count` calls of Allocate on it are kResourceExhausted.
  void FailAllocations(Device device, int count) ABSL_LOCKS_EXCLUDED(mu_);
  // The next kernel called `name` that comes to run on it fails, and with it
  // the device, for good.
  void FailKernel(Device device, std::string name) ABSL_LOCKS_EXCLUDED(mu_);
  // The device is gone: kUnavailable from now on.
  void LoseDevice(Device device) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the tasks of the stream make no progress.
  void SetHangs(Stream stream, bool hangs) ABSL_LOCKS_EXCLUDED(mu_);

  // Tasks that have not run.
  int64_t pending_tasks() const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks of pinned memory that were not freed.
  int64_t pinned_blocks() const ABSL_LOCKS_EXCLUDED(mu_);
  // The last 4096 tasks that ran, in their order: "Add on stream 1 of
  // simulated:0". For a test that fails under a seed.
  std::vector<std::string> trace() const ABSL_LOCKS_EXCLUDED(mu_);

  Device::Kind kind() const override { return Device::Kind::kSimulated; }
  int device_count() const override { return options_.devices; }
  absl::StatusOr<Properties> GetProperties(Device device) override;
  absl::StatusOr<MemoryUse> GetMemoryUse(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Health(Device device) override;
  absl::StatusOr<void*> Allocate(Device device, int64_t bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Free(Device device, void* memory) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FreePinned(void* memory) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Location> Locate(const void* address) override
      ABSL_LOCKS_EXCLUDED(mu_);
  using Runtime::CreateStream;
  absl::StatusOr<Stream> CreateStream(Device device, Priority priority) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Stream> DefaultStream(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Event> CreateEvent(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordEvent(Event& event, Stream stream) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StreamWaitEvent(Stream stream, const Event& event) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> Query(Stream stream) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> Query(const Event& event) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Synchronize(Stream stream, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Synchronize(const Event& event, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Synchronize(Device device, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyAsync(void* destination, const void* source, int64_t bytes,
                         Stream stream) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MemsetAsync(void* destination, uint8_t value, int64_t bytes,
                           Stream stream) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EnqueueHost(Stream stream, absl::string_view name,
                           HostKernel kernel) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status LaunchNative(Stream stream, absl::string_view name,
                            NativeLaunch launch) override;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  class KernelMemory;
  struct PinnedBlock;
  struct Simulated;  // a device
  struct End;        // of a copy
  struct Task {
    Stream stream;
    std::string name;
    bool is_kernel = false;  // that FailKernel may fail
    absl::AnyInvocable<absl::Status()> run;
  };

  explicit SimulatedRuntime(Options options);

  bool Knows(Device device) const;
  // Why a call for `what` on `device` cannot be made, or OK.
  absl::Status Admit(Device device, absl::string_view what) const;
  absl::Status Admit(Stream stream, absl::string_view what) const;
  absl::Status Admit(const Event& event, absl::string_view what) const;

  // `cause` is final for the device.
  void Fail(Device device, const absl::Status& cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Stream AddStream(Device device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::optional<Location> FindDevice(const void* address) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<PinnedBlock> FindPinned(const void* address) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<End> FindEnd(const void* address, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<char*> ReachEnd(const End& end, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Enqueue(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs the next task, if one is ready and no other thread runs one. Returns
  // whether it ran.
  bool RunNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs tasks until all of `marks` are done.
  absl::Status RunUntil(const std::vector<Schedule::Mark>& marks, Device device,
                        absl::Duration timeout, absl::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> QueryMark(Schedule::Mark mark, Device device,
                                 absl::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseEvent(Device device, uint64_t handle) override
      ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  // The devices, by index. What they hold is guarded by mu_, but for failure.
  std::vector<std::unique_ptr<Simulated>> devices_;
  mutable Mutex mu_;
  CondVar changed_;  // a task ended
  Schedule schedule_ ABSL_GUARDED_BY(mu_);
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mu_);  // by id
  std::unordered_map<int64_t, Task> tasks_ ABSL_GUARDED_BY(mu_);
  int64_t next_task_ ABSL_GUARDED_BY(mu_) = 0;
  // By handle; no mark if it was never recorded.
  std::unordered_map<uint64_t, absl::optional<Schedule::Mark>> events_
      ABSL_GUARDED_BY(mu_);
  uint64_t next_event_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<const char*, std::shared_ptr<PinnedBlock>> pinned_
      ABSL_GUARDED_BY(mu_);
  std::deque<std::string> trace_ ABSL_GUARDED_BY(mu_);
  bool is_running_ ABSL_GUARDED_BY(mu_) = false;
  // The thread that runs a task; none if no task runs.
  std::atomic<std::thread::id> runner_{std::thread::id()};
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_RUNTIME_H_
