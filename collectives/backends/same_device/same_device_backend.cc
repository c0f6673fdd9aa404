#include "weft/collectives/backends/same_device/same_device_backend.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_backend.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/same_device/device_place.h"
#include "weft/collectives/backends/same_device/reduce_call.h"
#include "weft/collectives/backends/same_device/same_device_communicator.h"
#include "weft/collectives/backends/same_device/same_device_room.h"
#include "weft/collectives/backends/same_device/same_device_work.h"
#include "weft/collectives/backends/same_device/shared_room.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"
#include "weft/memory/segment.h"

void WeftCollectivesHasSameDevice() {}

namespace weft::collectives {
namespace {

// What each rank tells the others when the group is made.
struct Card {
  char token[32] = {};   // SharedDevice::token
  char place[128] = {};  // DevicePlaceOf; empty: other processes cannot open it
  RoomHandle room;       // rank 0's, for ranks of several processes
};

class SameDeviceMover final : public DeviceMover {
 public:
  explicit SameDeviceMover(SameDeviceOptions options)
      : options_(std::move(options)) {}

  absl::string_view name() const override { return "same_device"; }
  absl::string_view title() const override { return "the shared device"; }
  const std::shared_ptr<device::Context>& context() const override {
    return options_.device->context();
  }
  int device() const override { return options_.device->index(); }
  int64_t host_bytes() const override { return options_.host_bytes; }
  absl::Duration longest_end() const override { return options_.longest_end; }
  bool moves_host_tensors() const override {
    return options_.moves_host_tensors;
  }
  bool Moves(const Operation& operation) const override {
    return IsOfSameDevice(operation.verb);
  }
  // The ranks tell each other over the group of the host which device they
  // share: those of one process, and one SharedDevice, meet in a room of the
  // group's name, those that have one each in a room that rank 0 has made.
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Connect(
      Backend& host, uint64_t& next, device::Stream stream,
      const DeviceWait& wait) override;
  absl::StatusOr<CommunicatorId> MakeId() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Begin(
      const Begun& options) override ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<DeviceMover> OfSubgroup(const SubgroupSpec& spec,
                                          int rank) const override;

 private:
  std::unique_ptr<DeviceCommunicator> MakeCommunicator(
      std::unique_ptr<RankOfRoom> room, device::Stream stream, int rank) const {
    return std::make_unique<SameDeviceCommunicator>(context(), std::move(room),
                                                    stream, rank);
  }
  // The room of all ranks, each of which is of a process of its own. `memory`:
  // rank 0's.
  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MeetProcesses(
      Backend& host, const RoomHandle& handle,
      absl::StatusOr<memory::Segment> memory, device::Stream stream,
      const DeviceWait& wait) const;

  const SameDeviceOptions options_;
  // Whether the ranks are of several processes; set by Connect.
  std::atomic<bool> is_apart_{false};
  Mutex mu_;
  // Those whose id was made, and that have not begun.
  std::map<std::string, memory::Segment> rooms_ ABSL_GUARDED_BY(mu_);
};

std::string TextOf(const CommunicatorId& id) {
  return std::string(id.bytes, sizeof id.bytes);
}

absl::StatusOr<CommunicatorId> SameDeviceMover::MakeId() {
  if (!is_apart_) return options_.device->MakeId();
  WEFT_ASSIGN_OR_RETURN(memory::Segment memory, SharedRoom::MakeMemory(2));
  const RoomHandle handle = SharedRoom::HandleOf(memory);
  CommunicatorId id;
  static_assert(sizeof handle <= sizeof id.bytes);
  memcpy(id.bytes, &handle, sizeof handle);
  MutexLock lock(mu_);
  rooms_.emplace(TextOf(id), std::move(memory));
  return id;
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> SameDeviceMover::Begin(
    const Begun& options) {
  if (!is_apart_) {
    WEFT_ASSIGN_OR_RETURN(
        std::shared_ptr<SameDeviceRoom> room,
        options_.device->Enter(TextOf(options.id), options.rank, options.size));
    return MakeCommunicator(std::make_unique<RankOfThreads>(
                                std::move(room), options.rank, options.stream),
                            options.stream, options.rank);
  }
  RoomHandle handle;
  memcpy(static_cast<void*>(&handle), options.id.bytes, sizeof handle);
  absl::StatusOr<memory::Segment> memory = absl::InternalError("not made");
  if (options.rank == 0) {
    MutexLock lock(mu_);
    const auto made = rooms_.extract(TextOf(options.id));
    if (!made.empty()) memory = std::move(made.mapped());
  } else {
    memory = SharedRoom::OpenMemory(handle, options.size);
  }
  WEFT_RETURN_IF_ERROR(memory.status());
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<SharedRoom> room,
                        SharedRoom::Enter(*std::move(memory), options.rank,
                                          options.size, options.stream));
  return MakeCommunicator(std::move(room), options.stream, options.rank);
}

// The card of each rank.
absl::StatusOr<std::vector<Card>> TellAll(Backend& host, uint64_t number,
                                          Instant deadline, Card own) {
  std::vector<Card> cards(host.size());
  const auto block_of = [](Card& card) {
    return Block{reinterpret_cast<std::byte*>(&card),
                 static_cast<int64_t>(sizeof(Card))};
  };
  Operation step;
  step.verb = Verb::kAllGather;
  step.dtype = DType::kU8;
  step.sequence = number;
  step.deadline = deadline;
  step.detail = "same_device";
  step.inputs = {block_of(own)};
  for (Card& card : cards) step.outputs.push_back(block_of(card));
  WEFT_RETURN_IF_ERROR(host.Run(step));
  return cards;
}

Card CardOf(const SharedDevice& shared,
            const absl::StatusOr<memory::Segment>& room) {
  Card card;
  const auto write = [](const std::string& text, auto& to) {
    memcpy(to, text.data(), std::min(text.size(), sizeof to));
  };
  write(shared.token(), card.token);
  device::Context& context = *shared.context();
  const absl::StatusOr<std::string> place =
      DevicePlaceOf(context.runtime(), context.device(shared.index()));
  if (place.ok()) write(*place, card.place);
  if (room.ok()) card.room = SharedRoom::HandleOf(*room);
  return card;
}

absl::string_view PlaceOf(const Card& card) {
  return absl::string_view(card.place, strnlen(card.place, sizeof card.place));
}

// Whether each is of another process than all others: false if all are of one.
// kUnimplemented: neither; kFailedPrecondition: they are not on one device.
absl::StatusOr<bool> AreApart(const std::vector<Card>& cards) {
  const auto token_of = [&](size_t r) {
    return std::string(cards[r].token, sizeof cards[r].token);
  };
  std::map<std::string, size_t> first;  // rank, by token
  for (size_t r = 0; r < cards.size(); ++r) first.try_emplace(token_of(r), r);
  if (first.size() == 1) return false;
  for (size_t r = 0; r < cards.size(); ++r) {
    const size_t with = first.at(token_of(r));
    if (with == r) continue;
    auto other = first.begin();
    if (other->second == with) ++other;
    return absl::UnimplementedError(absl::StrCat(
        "ranks ", with, " and ", r, " have one SharedDevice, and rank ",
        other->second, " has another: wanted one for all, as threads of a ",
        "process have, or one for each, as processes have"));
  }
  for (size_t r = 0; r < cards.size(); ++r) {
    const absl::string_view own = PlaceOf(cards[r]);
    if (!own.empty() && own == PlaceOf(cards[0])) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", own.empty() ? r : 0, " is on ",
        own.empty() ? "a device whose memory no other process can open"
                    : PlaceOf(cards[0]),
        own.empty() ? "" : absl::StrCat(", and rank ", r, " on ", own),
        ": wanted all on one device of a machine, of one user and pid "
        "namespace; others take the host backend, or nccl"));
  }
  return true;
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>>
SameDeviceMover::MeetProcesses(Backend& host, const RoomHandle& handle,
                               absl::StatusOr<memory::Segment> memory,
                               device::Stream stream,
                               const DeviceWait& wait) const {
  constexpr absl::Duration kLookAtRanks = absl::Milliseconds(5);
  if (host.rank() != 0) memory = SharedRoom::OpenMemory(handle, host.size());
  WEFT_RETURN_IF_ERROR(memory.status());
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedRoom> room,
      SharedRoom::Enter(*std::move(memory), host.rank(), host.size(), stream));
  // Once all are in it, each may go on, and break the group: to be left by
  // Shrink.
  for (std::vector<int> absent = room->Absent(); !absent.empty();
       absent = room->Absent()) {
    absl::Status why = wait.check == nullptr ? absl::OkStatus() : wait.check();
    if (why.ok()) why = host.CheckRanks();
    if (why.ok() && wait.clock.Now() >= wait.deadline) {
      why = absl::DeadlineExceededError(
          absl::StrCat("rank ", absl::StrJoin(absent, ", "),
                       " has not come into the room of the shared device"));
    }
    if (!why.ok() && !room->Absent().empty()) return why;
    absl::SleepFor(kLookAtRanks);
  }
  return MakeCommunicator(std::move(room), stream, host.rank());
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> SameDeviceMover::Connect(
    Backend& host, uint64_t& next, device::Stream stream,
    const DeviceWait& wait) {
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<SameDeviceRoom> room,
      options_.device->Enter(options_.name, host.rank(), host.size()));
  absl::StatusOr<memory::Segment> memory =
      absl::InternalError("rank 0 makes it");
  if (host.rank() == 0) memory = SharedRoom::MakeMemory(host.size());
  const absl::StatusOr<std::vector<Card>> cards =
      TellAll(host, next++, wait.deadline, CardOf(*options_.device, memory));
  // A rank that has heard all may break the group before this one has: it is
  // there, to be left by Shrink.
  if (!cards.ok() && !room->is_complete()) return cards.status();
  if (cards.ok()) {
    WEFT_ASSIGN_OR_RETURN(is_apart_, AreApart(*cards));
  }
  if (is_apart_) {
    return MeetProcesses(host, (*cards)[0].room, std::move(memory), stream,
                         wait);
  }
  return MakeCommunicator(
      std::make_unique<RankOfThreads>(std::move(room), host.rank(), stream),
      stream, host.rank());
}

std::shared_ptr<DeviceMover> SameDeviceMover::OfSubgroup(
    const SubgroupSpec& spec, int /*rank*/) const {
  SameDeviceOptions options = options_;
  // Two groups that a Split makes may have one name.
  options.name = absl::StrCat(SubgroupName(options_.name, spec.name), " of ",
                              absl::StrJoin(spec.members, ","));
  return std::make_shared<SameDeviceMover>(std::move(options));
}

absl::Status Check(const SameDeviceOptions& options, const Backend* host) {
  constexpr char kCall[] = "ConnectSameDevice";
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        kCall, ": no shared device is given (SameDeviceOptions::device)"));
  }
  if (host == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        kCall, ": wants a group of the host of the same ranks, found none"));
  }
  if (host->size() > internal::kMostSharers) {
    return absl::UnimplementedError(
        absl::StrCat(kCall, ": wants at most ", internal::kMostSharers,
                     " ranks on one device, found ", host->size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectSameDevice(
    SameDeviceOptions options, std::unique_ptr<Backend> host) {
  if (const absl::Status checked = Check(options, host.get()); !checked.ok()) {
    if (host != nullptr) host->Abort(checked);
    return checked;
  }
  const Instant deadline =
      host->driver().clock().Now() + options.connect_timeout;
  const std::string call =
      absl::StrCat("ConnectSameDevice, rank ", host->rank(), " of ",
                   host->size(), " of group ", options.name);
  const auto check = options.check_wait;
  return ConnectDeviceBackend(
      call, std::make_shared<SameDeviceMover>(std::move(options)),
      std::move(host), deadline, check);
}

}  // namespace weft::collectives
