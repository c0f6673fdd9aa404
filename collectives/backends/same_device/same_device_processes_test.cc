// Ranks that are processes on one simulated device, each with a schedule of its
// own.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/children.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// What the children of one test meet by.
struct Directories {
  testing::TempDir sockets, keys;
};

// One process: its devices, and a group with the others.
struct Member {
  device::testing::SimulatedDevices devices;
  std::unique_ptr<ProcessGroup> group;

  explicit Member(uint64_t seed) : devices(seed, 2) {}
  Device device() { return {devices.context(), 0}; }
  Tensor Place(const Tensor& x) { return x.To(device()).Clone(); }
};

absl::StatusOr<std::unique_ptr<Member>> Join(int rank, int size, uint64_t seed,
                                             rendezvous::Store& store,
                                             const std::string& directory) {
  auto member = std::make_unique<Member>(seed * 8 + rank);
  HostOptions host;
  host.store = &store;
  host.rank = rank;
  host.size = size;
  host.directory = directory;
  host.arena_bytes = 1 << 20;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, ConnectHost(host));
  SameDeviceOptions options;
  options.host_bytes = 0;
  options.longest_end = absl::Milliseconds(500);
  WEFT_ASSIGN_OR_RETURN(
      options.device,
      SharedDevice::Create(member->devices.context().shared_from_this(), 0));
  WEFT_ASSIGN_OR_RETURN(backend,
                        ConnectSameDevice(options, std::move(backend)));
  GroupOptions group;
  group.timeout = kPatience;
  member->group = ProcessGroup::Create(std::move(backend), group);
  return member;
}

// A child's end: 0, or 1 and why on its standard error.
int EndOf(int rank, const absl::Status& status) {
  if (status.ok()) return 0;
  fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
  return 1;
}

using Body = std::function<absl::Status(Member& member, DirectoryStore& store)>;

Children Start(const Directories& directories, int size, uint64_t seed,
               const Body& body) {
  return Children(size, [&](int rank) {
    DirectoryStore store(directories.keys.path());
    auto member = Join(rank, size, seed, store, directories.sockets.path());
    if (!member.ok()) return EndOf(rank, member.status());
    const absl::Status status = body(**member, store);
    (*member)->group = nullptr;
    return EndOf(rank, status);
  });
}

// How often memory of a simulated device, or of a room, is mapped here.
int Mappings() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    found += absl::StrContains(line, "weft simulated device") ||
             absl::StrContains(line, "weft room");
  }
  return found;
}

TEST(SameDeviceProcesses, ReduceOnTheDeviceThatTheyShare) {
  Directories directories;
  Children children = Start(
      directories, 2, 1, [](Member& member, DirectoryStore&) -> absl::Status {
        ProcessGroup& group = *member.group;
        WANT_EQ(group.backend_name(), "same_device");
        const Tensor x = member.Place(Numbers(group.rank(), 1000));
        WEFT_RETURN_IF_ERROR(group.AllReduce(x));
        WANT_EQ(BytesOf(x.To(Device::Cpu())),
                BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(2, 1000))));
        // Rank 0 has the work of both, and neither any pinned memory for it.
        const std::vector<std::string> trace = member.devices.runtime().trace();
        bool has_reduced = false;
        for (const std::string& task : trace) {
          has_reduced |= absl::StartsWith(task, "Reduce on stream");
        }
        WANT_EQ(has_reduced, group.rank() == 0);
        return group.Barrier();
      });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(children.Wait(rank), 0);
}

// Under several orders of the tasks of each process.
TEST(SameDeviceProcesses, GiveWhatTheCpuGives) {
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Directories directories;
    Children children = Start(
        directories, 3, seed,
        [&](Member& member, DirectoryStore&) -> absl::Status {
          ProcessGroup& group = *member.group;
          const auto wanted = WantedOf(3);
          const int before = Mappings();
          WEFT_ASSIGN_OR_RETURN(
              const device::Stream stream,
              member.devices.runtime().CreateStream(member.device().id()));
          const device::StreamScope scope(stream);
          WEFT_ASSIGN_OR_RETURN(
              const auto found,
              CallAll(
                  group, [&](const Tensor& x) { return member.Place(x); },
                  seed % 2 == 0));
          WANT_EQ(found == wanted[group.rank()], true);
          // Around the ring, from device to device.
          const int left = (group.rank() + 2) % 3;
          const Tensor in = member.Place(Tensor::Zeros({1000}));
          const Tensor out = member.Place(Numbers(group.rank(), 1000));
          WEFT_RETURN_IF_ERROR(group.Exchange(
              {{PointToPoint::kReceive, in, left, 5},
               {PointToPoint::kSend, out, (group.rank() + 1) % 3, 5}}));
          WANT_EQ(BytesOf(in.To(Device::Cpu())), BytesOf(Numbers(left, 1000)));
          WEFT_ASSIGN_OR_RETURN(auto part, group.Split(group.rank() % 2));
          const Tensor ones = member.Place(Tensor::Ones({4}));
          WEFT_RETURN_IF_ERROR(part->AllReduce(ones));
          WANT_EQ(ones.To(Device::Cpu()).ToVector<float>()[3],
                  group.rank() == 1 ? 1.0f : 2.0f);
          WEFT_RETURN_IF_ERROR(group.Barrier());
          // All that was opened is closed with the groups.
          const int rank = group.rank();
          member.group = nullptr;
          part = nullptr;
          const int left_open = Mappings() - before;
          return left_open <= 0 ? absl::OkStatus()
                                : absl::InternalError(absl::StrCat(
                                      "rank ", rank, " has ", left_open,
                                      " mappings more than before"));
        });
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(children.Wait(rank), 0);
    EXPECT_TRUE(std::filesystem::is_empty(directories.sockets.path()));
  }
}

// Kills `killed` while all reduce one after the other: the others name it, and
// go on without it on the device.
void ExpectTheOthersGoOn(int killed, uint64_t seed, int at) {
  SCOPED_TRACE(absl::StrCat("rank ", killed, ", seed ", seed));
  constexpr int kRanks = 3;
  Directories directories;
  Children children = Start(
      directories, kRanks, seed,
      [&](Member& member, DirectoryStore& store) -> absl::Status {
        ProcessGroup& group = *member.group;
        const Tensor x = member.Place(Tensor::Zeros({30'000}));
        absl::Status status;
        Instant last = SteadyClock().Now();
        for (int i = 0; status.ok(); ++i) {
          if (group.rank() == killed && i == at) {
            WEFT_RETURN_IF_ERROR(store.Set("amid", "", kPatience).status());
          }
          last = SteadyClock().Now();
          status = group.AllReduceAsync(x).Wait(kPatience);
        }
        WANT_EQ(status.code(), absl::StatusCode::kUnavailable);
        const bool is_named =
            absl::StrContains(status.message(), absl::StrCat("rank ", killed));
        if (!is_named) return status;
        // Long before the operation's deadline.
        WANT_EQ(SteadyClock().Now() - last < absl::Seconds(20), true);
        std::vector<int> living;
        for (int r = 0; r < kRanks; ++r) {
          if (r != killed) living.push_back(r);
        }
        WEFT_RETURN_IF_ERROR(group.Shrink(living));
        WANT_EQ(group.backend_name(), "same_device");
        const Tensor sum = member.Place(Tensor::Ones({4}));
        WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
        WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
                std::vector<float>(4, 2));
        return group.Barrier();
      });
  DirectoryStore store(directories.keys.path());
  WEFT_ASSERT_OK(store.Wait("amid", 0, kPatience).status());
  kill(children.pid(killed), SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(children.Wait(rank), rank == killed ? 128 + SIGKILL : 0);
  }
}

TEST(SameDeviceProcesses, FirstRankThatIsKilledIsNamedAndTheOthersGoOn) {
  for (int seed = 0; seed < 3; ++seed) ExpectTheOthersGoOn(0, seed, 3 + seed);
}

TEST(SameDeviceProcesses, AnotherRankThatIsKilledIsNamedAndTheOthersGoOn) {
  for (int seed = 0; seed < 3; ++seed) ExpectTheOthersGoOn(1, seed, 3 + seed);
}

// The reduction waits on the device of rank 0 for a stream of the rank that is
// killed, which hangs.
TEST(SameDeviceProcesses, DeathOfARankWhoseStreamHangsFreesTheOthers) {
  Directories directories;
  Children children = Start(
      directories, 2, 4,
      [&](Member& member, DirectoryStore& store) -> absl::Status {
        ProcessGroup& group = *member.group;
        device::SimulatedRuntime& runtime = member.devices.runtime();
        const Tensor x = member.Place(Tensor::Ones({1000}));
        WANT_EQ(x.To(Device::Cpu()).ToVector<float>()[0], 1.0f);
        WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                              runtime.CreateStream(member.device().id()));
        const device::StreamScope scope(stream);
        Tensor own = x;
        if (group.rank() == 1) {
          runtime.SetHangs(stream, true);
          own = x.Clone();
        }
        Future<void> reduced = group.AllReduceAsync(own);
        if (group.rank() == 0) {
          const Instant until = SteadyClock().Now() + kPatience;
          while (runtime.pending_tasks() < 2 && SteadyClock().Now() < until) {
            absl::SleepFor(absl::Milliseconds(1));
          }
          WEFT_RETURN_IF_ERROR(store.Set("amid", "", kPatience).status());
        }
        const absl::Status status = reduced.Wait(kPatience);
        WANT_EQ(status.code(), absl::StatusCode::kUnavailable);
        WANT_EQ(absl::StrContains(status.message(), "rank 1"), true);
        // Its streams wait for nobody any more.
        return runtime.Synchronize(member.device().id(), kPatience);
      });
  DirectoryStore store(directories.keys.path());
  WEFT_ASSERT_OK(store.Wait("amid", 0, kPatience).status());
  kill(children.pid(1), SIGKILL);
  EXPECT_EQ(children.Wait(0), 0);
  EXPECT_EQ(children.Wait(1), 128 + SIGKILL);
}

}  // namespace
}  // namespace weft::collectives
