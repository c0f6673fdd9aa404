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
// once with kDeadlineExceeded; but where a stream waits for an event of another
// process (Sharing), whose tasks run there.
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
#include "weft/device/sharing.h"
#include "weft/device/simulated/memory.h"
#include "weft/device/simulated/peer_memory.h"
#include "weft/device/simulated/schedule.h"

namespace weft::device {

class SimulatedRuntime final : public Runtime, public Sharing {
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

  absl::StatusOr<Lent> Share(const void* address) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> OpenMemory(Device device,
                                   const IpcHandle& handle) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CloseMemory(void* memory) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<SharedEvent> CreateSharedEvent(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Event> OpenEvent(Device device,
                                  const IpcHandle& handle) override
      ABSL_LOCKS_EXCLUDED(mu_);

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

  struct FoundMemory {
    const TaskMemory* memory = nullptr;  // null: it is no device memory
    Device device = {};
    std::shared_ptr<PeerMemory> peer = nullptr;  // whose it is, if another's
  };
  // Of another process, for the tasks of one device.
  struct OpenedMemory {
    std::shared_ptr<PeerMemory> memory;
    Device device;
    int uses = 0;
  };
  // An event that processes share.
  struct SharedRecord {
    SharedEventSlot* slot = nullptr;
    int number = -1;                   // of the slot; -1: another process's
    std::shared_ptr<PeerMemory> peer;  // that process's
    int stream = -1;                   // on which it is recorded
  };
  // A stream of the schedule alone, with one task that waits for a record of
  // another process; what waits for it waits for its mark.
  struct Gate {
    int stream = -1;
    Schedule::Mark mark;
    Device device;  // of the stream that waits
    std::shared_ptr<PeerMemory> peer;
    SharedEventSlot* slot = nullptr;
    uint64_t record = 0;
    bool is_open = false;
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
  FoundMemory FindMemory(const void* address) const
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

  // Of sharing.cc. That of another process, opened at most once for a device.
  absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeer(
      Device device, const SimulatedHandle& handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next five: nothing, or true, for an event that is not shared.
  absl::Status RecordShared(uint64_t handle, Stream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseShared(Device device, uint64_t handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WaitForPeer(Stream stream, uint64_t handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsOverAtPeer(uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitPeer(const Event& event, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the streams go on whose waits for other processes are over.
  void OpenGates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Deadline NextLookAtPeers();

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
  std::unordered_map<uint64_t, SharedRecord> shared_events_
      ABSL_GUARDED_BY(mu_);  // those of events_ that processes share
  std::vector<OpenedMemory> opened_ ABSL_GUARDED_BY(mu_);
  std::vector<Gate> gates_ ABSL_GUARDED_BY(mu_);      // that are not passed
  std::vector<int> free_gates_ ABSL_GUARDED_BY(mu_);  // their streams
  std::map<const char*, std::shared_ptr<PinnedBlock>> pinned_
      ABSL_GUARDED_BY(mu_);
  std::deque<std::string> trace_ ABSL_GUARDED_BY(mu_);
  bool is_running_ ABSL_GUARDED_BY(mu_) = false;
  // The thread that runs a task; none if no task runs.
  std::atomic<std::thread::id> runner_{std::thread::id()};
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SIMULATED_RUNTIME_H_
