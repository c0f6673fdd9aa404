#include "weft/collectives/backends/same_device/shared_room.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/same_device/same_device_work.h"

namespace weft::collectives {
namespace {

// How often a wait for other ranks looks: at first, and at last.
constexpr absl::Duration kLeastPause = absl::Microseconds(5);
constexpr absl::Duration kMostPause = absl::Microseconds(200);
// How long rank 0 may take to put work on its stream.
constexpr absl::Duration kLongestPut = absl::Seconds(10);

constexpr int64_t kAlignment = 64;

constexpr int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// At least `number` from now on.
void Raise(std::atomic<uint64_t>& value, uint64_t number) {
  uint64_t known = value.load();
  while (known < number && !value.compare_exchange_weak(known, number)) {
  }
}

}  // namespace

// States of Head::closed.
constexpr uint32_t kOpen = 0, kClosing = 1, kClosed = 2;

struct SharedRoom::Head {
  RoomHandle handle;
  int32_t size;
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> is_putting;  // rank 0: work on its stream
  // The last operation after which rank 0 has recorded its event, and that it
  // has put on its stream without an error.
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> done;
  std::atomic<uint64_t> ended;  // by all ranks
  // Written by the one who closes it, before kClosed.
  int32_t code;
  uint32_t message_bytes;
  char message[512];
};

struct SharedRoom::SlotBlock {
  device::IpcHandle handle;
  int64_t offset;
  int64_t elements;
};

// Its blocks follow: inputs, then outputs.
struct SharedRoom::Slot {
  std::atomic<uint32_t> has_entered;
  device::IpcHandle event;
  std::atomic<uint64_t> ended;     // by this rank
  std::atomic<uint64_t> launched;  // what is below is that of this operation
  uint8_t verb;
  uint8_t dtype;
  uint8_t op;
  int32_t root;
  double factor;
  int32_t inputs;
  int32_t outputs;
};

int64_t SharedRoom::SlotBytes(int size) {
  return Aligned(sizeof(Slot)) +
         Aligned(2 * size * static_cast<int64_t>(sizeof(SlotBlock)));
}

int64_t SharedRoom::BytesFor(int size) {
  return Aligned(sizeof(Head)) + size * SlotBytes(size);
}

SharedRoom::Head& SharedRoom::head() const {
  return *reinterpret_cast<Head*>(memory_.data());
}

SharedRoom::Slot& SharedRoom::SlotOf(int rank) const {
  return *reinterpret_cast<Slot*>(memory_.data() + Aligned(sizeof(Head)) +
                                  rank * SlotBytes(size_));
}

SharedRoom::SlotBlock* SharedRoom::BlocksOf(int rank) const {
  return reinterpret_cast<SlotBlock*>(
      reinterpret_cast<std::byte*>(&SlotOf(rank)) + Aligned(sizeof(Slot)));
}

// ----- the memory

absl::StatusOr<memory::Segment> SharedRoom::MakeMemory(int size) {
  WEFT_ASSIGN_OR_RETURN(memory::Segment memory,
                        memory::Segment::Create(BytesFor(size), "weft room"));
  Head& head = *reinterpret_cast<Head*>(memory.data());
  std::random_device random;
  head.size = size;
  head.handle.pid = getpid();
  head.handle.fd = memory.fd();
  for (uint64_t& word : head.handle.nonce) {
    word = uint64_t{random()} << 32 | random();
  }
  return memory;
}

RoomHandle SharedRoom::HandleOf(const memory::Segment& memory) {
  return reinterpret_cast<const Head*>(memory.data())->handle;
}

absl::StatusOr<memory::Segment> SharedRoom::OpenMemory(const RoomHandle& handle,
                                                       int size) {
  WEFT_ASSIGN_OR_RETURN(const auto process,
                        device::PeerProcess::Open(handle.pid));
  WEFT_ASSIGN_OR_RETURN(const int fd, process->OpenDescriptor(handle.fd));
  WEFT_ASSIGN_OR_RETURN(memory::Segment memory,
                        memory::Segment::FromFd(fd, BytesFor(size)));
  const Head& head = *reinterpret_cast<const Head*>(memory.data());
  if (std::equal(std::begin(handle.nonce), std::end(handle.nonce),
                 std::begin(head.handle.nonce)) &&
      head.size == size) {
    return memory;
  }
  return absl::UnavailableError(
      absl::StrCat("the room of a shared device: wanted that of ", size,
                   " ranks in process ", handle.pid, " (descriptor ", handle.fd,
                   "), found another"));
}

// ----- one rank

absl::StatusOr<std::unique_ptr<SharedRoom>> SharedRoom::Enter(
    memory::Segment memory, int rank, int size, device::Stream stream) {
  device::Sharing* const sharing = device::Sharing::Of(stream.runtime());
  if (sharing == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(Name(stream.device()),
                     ": its memory cannot be opened by other processes"));
  }
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<device::PeerProcess> first,
                        device::PeerProcess::Open(HandleOf(memory).pid));
  std::unique_ptr<SharedRoom> room(new SharedRoom(
      std::move(memory), rank, size, stream, *sharing, std::move(first)));
  WEFT_ASSIGN_OR_RETURN(device::Sharing::SharedEvent event,
                        sharing->CreateSharedEvent(stream.device()));
  Slot& slot = room->SlotOf(rank);
  if (slot.has_entered.load() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " of the shared device is in this room"));
  }
  slot.event = event.handle;
  {
    MutexLock lock(room->mu_);
    room->own_event_ = std::move(event.event);
  }
  slot.has_entered.store(1);
  return room;
}

SharedRoom::SharedRoom(memory::Segment memory, int rank, int size,
                       device::Stream stream, device::Sharing& sharing,
                       std::shared_ptr<device::PeerProcess> first)
    : memory_(std::move(memory)),
      rank_(rank),
      size_(size),
      stream_(stream),
      sharing_(sharing),
      first_(std::move(first)) {}

SharedRoom::~SharedRoom() {
  // What hangs, or was given up, may still use what is open: then it stays so
  // until the Runtime ends.
  const absl::StatusOr<bool> is_idle = stream_.runtime().Query(stream_);
  if (!is_idle.ok() || !*is_idle) return;
  MutexLock lock(mu_);
  for (const auto& [handle, memory] : opened_) {
    sharing_.CloseMemory(memory).IgnoreError();
  }
}

std::vector<int> SharedRoom::Absent() const {
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r) {
    if (SlotOf(r).has_entered.load() == 0) absent.push_back(r);
  }
  return absent;
}

// ----- closing

void SharedRoom::CloseHead(const absl::Status& why) const {
  uint32_t expected = kOpen;
  if (!head().closed.compare_exchange_strong(expected, kClosing)) return;
  const absl::string_view message =
      why.message().substr(0, sizeof head().message);
  head().code = why.raw_code();
  head().message_bytes = static_cast<uint32_t>(message.size());
  std::memcpy(head().message, message.data(), message.size());
  head().closed.store(kClosed);
}

absl::Status SharedRoom::ClosedStatus() const {
  switch (head().closed.load()) {
    case kOpen:
      return absl::OkStatus();
    case kClosed: {
      const size_t bytes =
          std::min<size_t>(head().message_bytes, sizeof head().message);
      const auto code = static_cast<absl::StatusCode>(head().code);
      return absl::Status(
          code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code,
          absl::string_view(head().message, bytes));
    }
    default:
      return absl::CancelledError("another rank of the shared device ends it");
  }
}

void SharedRoom::AwaitFirst() const {
  const Instant deadline = SteadyClock().Now() + kLongestPut;
  while (head().is_putting.load() != 0 && !first_->has_ended() &&
         SteadyClock().Now() < deadline) {
    absl::SleepFor(kMostPause);
  }
}

void SharedRoom::Close(const absl::Status& why) {
  CloseHead(why);
  AwaitFirst();
  MutexLock lock(mu_);
  // A device that failed runs nothing any more.
  Follow().IgnoreError();
}

// ----- an operation

absl::Status SharedRoom::LayDown(const Operation& operation) {
  Slot& slot = SlotOf(rank_);
  slot.verb = static_cast<uint8_t>(operation.verb);
  slot.dtype = static_cast<uint8_t>(operation.dtype);
  slot.op = static_cast<uint8_t>(operation.reduction.op);
  slot.root = operation.root;
  slot.factor = operation.reduction.factor;
  slot.inputs = static_cast<int32_t>(operation.inputs.size());
  slot.outputs = static_cast<int32_t>(operation.outputs.size());
  SlotBlock* to = BlocksOf(rank_);
  for (const Blocks* const blocks : {&operation.inputs, &operation.outputs}) {
    for (const Block& block : *blocks) {
      to->elements = block.elements;
      if (block.elements > 0) {
        WEFT_ASSIGN_OR_RETURN(const device::Sharing::Lent lent,
                              sharing_.Share(block.memory));
        to->handle = lent.handle;
        to->offset = lent.offset;
      }
      ++to;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SharedRoom::Launch(const Operation& operation) {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(ClosedStatus());
  if (operation.inputs.size() > static_cast<size_t>(size_) ||
      operation.outputs.size() > static_cast<size_t>(size_)) {
    return absl::InternalError(
        absl::StrCat(Describe(operation), ": more blocks than ranks"));
  }
  // Rank 0 records its event behind the work of all.
  if (rank_ == 0) {
    operation_ = operation;
  } else {
    WEFT_RETURN_IF_ERROR(LayDown(operation));
    WEFT_RETURN_IF_ERROR(stream_.runtime().RecordEvent(own_event_, stream_));
  }
  SlotOf(rank_).launched.store(++launched_);
  if (rank_ == 0) PutIfAllAreThere();
  return launched_;
}

absl::StatusOr<Blocks> SharedRoom::PickUpBlocks(int rank, int from, int count) {
  Blocks blocks;
  for (int i = from; i < from + count; ++i) {
    const SlotBlock found = BlocksOf(rank)[i];  // the other may write to it
    Block block;
    block.elements = found.elements;
    if (found.elements < 0 || found.offset < 0) {
      return absl::InternalError(absl::StrCat(
          "rank ", rank, " of the shared device has brought a block of ",
          found.elements, " elements at ", found.offset));
    }
    if (found.elements > 0) {
      void*& base = opened_[found.handle];
      if (base == nullptr) {
        const absl::StatusOr<void*> opened =
            sharing_.OpenMemory(stream_.device(), found.handle);
        if (!opened.ok()) {
          return absl::Status(
              opened.status().code(),
              absl::StrCat("the memory of rank ", rank, " of the shared device",
                           ": ", opened.status().message()));
        }
        base = *opened;
      }
      block.memory = static_cast<std::byte*>(base) + found.offset;
    }
    blocks.push_back(block);
  }
  return blocks;
}

absl::StatusOr<Operation> SharedRoom::PickUp(int rank) {
  const Slot& slot = SlotOf(rank);
  Operation made;
  made.verb = static_cast<Verb>(slot.verb);
  made.dtype = static_cast<DType>(slot.dtype);
  made.reduction.op = static_cast<ReduceOp>(slot.op);
  made.reduction.factor = slot.factor;
  made.root = slot.root;
  const int inputs = slot.inputs, outputs = slot.outputs;
  const bool is_transfer =
      made.verb == Verb::kSend || made.verb == Verb::kReceive;
  if ((made.verb != operation_.verb && !is_transfer) ||
      made.dtype != operation_.dtype || inputs < 0 || inputs > size_ ||
      outputs < 0 || outputs > size_) {
    return absl::InternalError(absl::StrCat(
        "rank ", rank, " of the shared device has brought ", Name(made.verb),
        ", where rank 0 has ", Name(operation_.verb)));
  }
  WEFT_ASSIGN_OR_RETURN(made.inputs, PickUpBlocks(rank, 0, inputs));
  WEFT_ASSIGN_OR_RETURN(made.outputs, PickUpBlocks(rank, inputs, outputs));
  return made;
}

absl::StatusOr<const device::Event*> SharedRoom::EventOf(int rank) {
  device::Event& event = events_[rank];
  if (!event.is_valid()) {
    WEFT_ASSIGN_OR_RETURN(
        event, sharing_.OpenEvent(stream_.device(), SlotOf(rank).event));
  }
  return &event;
}

absl::Status SharedRoom::Put() {
  device::Runtime& runtime = stream_.runtime();
  std::vector<Operation> others(size_);
  std::vector<const Operation*> all = {&operation_};
  for (int r = 1; r < size_; ++r) {
    WEFT_ASSIGN_OR_RETURN(others[r], PickUp(r));
    all.push_back(&others[r]);
  }
  for (int r = 1; r < size_; ++r) {
    WEFT_ASSIGN_OR_RETURN(const device::Event* const begun, EventOf(r));
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(stream_, *begun));
  }
  const absl::Status worked = PutWorkOfAll(stream_, all);
  // Also where some of it failed: the rest uses the blocks of all.
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(own_event_, stream_));
  head().recorded.store(launched_);
  return worked;
}

void SharedRoom::PutIfAllAreThere() {
  if (head().done.load() >= launched_) return;
  for (int r = 1; r < size_; ++r) {
    if (SlotOf(r).launched.load() < launched_) return;
  }
  // Whoever closes the room looks at is_putting after that, and this rank looks
  // whether it is closed after is_putting: one of the two sees the other.
  head().is_putting.store(1);
  if (head().closed.load() == kOpen) {
    const absl::Status put = Put();
    if (put.ok()) {
      head().done.store(launched_);
    } else {
      CloseHead(put);
    }
  }
  head().is_putting.store(0);
}

absl::Status SharedRoom::Follow() {
  if (rank_ == 0 || followed_ == launched_ ||
      head().recorded.load() < launched_) {
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const device::Event* const ended, EventOf(0));
  WEFT_RETURN_IF_ERROR(stream_.runtime().StreamWaitEvent(stream_, *ended));
  followed_ = launched_;
  return absl::OkStatus();
}

absl::StatusOr<bool> SharedRoom::IsReady() {
  {
    MutexLock lock(mu_);
    if (rank_ == 0) PutIfAllAreThere();
    WEFT_RETURN_IF_ERROR(Follow());
    if (head().done.load() >= launched_) return true;
    if (head().closed.load() == kOpen) return false;
  }
  AwaitFirst();  // it may have begun before the room was closed
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(Follow());
  if (head().done.load() >= launched_) return true;
  return ClosedStatus();
}

absl::StatusOr<bool> SharedRoom::AwaitReady(absl::Duration longest) {
  const Instant deadline = SteadyClock().Now() + longest;
  for (absl::Duration pause = kLeastPause;;
       pause = std::min(2 * pause, kMostPause)) {
    const absl::StatusOr<bool> is_ready = IsReady();
    if (!is_ready.ok() || *is_ready) return is_ready;
    if (SteadyClock().Now() >= deadline) return false;
    absl::SleepFor(pause);
  }
}

bool SharedRoom::HasEnded(uint64_t number) {
  // Operations end in their order on each rank, but are asked for in any.
  Raise(SlotOf(rank_).ended, number);
  if (rank_ == 0) {
    for (int r = 1; r < size_; ++r) {
      if (SlotOf(r).ended.load() < number) return false;
    }
    Raise(head().ended, number);
  }
  return head().ended.load() >= number;
}

std::vector<int> SharedRoom::Missing() {
  MutexLock lock(mu_);
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    if (SlotOf(r).launched.load() < launched_) missing.push_back(r);
  }
  return missing;
}

}  // namespace weft::collectives
