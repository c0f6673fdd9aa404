#include "weft/transport/shm/ring_connection.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::transport {

namespace {

// Where the ring of `direction` begins in the memory.
int64_t OffsetOf(int direction) {
  return direction *
         static_cast<int64_t>(RingMemory::BytesFor(SharedRings::kCapacity));
}

}  // namespace

RingMemory SharedRings::Ring(int direction) const {
  return RingMemory::At(memory->data() + OffsetOf(direction), kCapacity);
}

RingPages SharedRings::Pages(int direction) const {
  const uint64_t first = OffsetOf(direction) + sizeof(RingWords);
  return RingPages(
      kCapacity, [memory = memory.get(), first](uint64_t begin, uint64_t end) {
        return memory->Allocate(first + begin, end - begin);
      });
}

MessageWriter SharedRings::MakeWriter() const {
  const int direction = is_offerer ? 0 : 1;
  return MessageWriter(Ring(direction), Pages(direction));
}

MessageReader SharedRings::MakeReader() const {
  const int direction = is_offerer ? 1 : 0;
  return MessageReader(Ring(direction), Pages(direction));
}

absl::StatusOr<memory::Segment> SharedRings::CreateMemory() {
  WEFT_ASSIGN_OR_RETURN(
      memory::Segment memory,
      memory::Segment::CreateInPart(kBytes, sizeof(RingWords), "weft-rings"));
  WEFT_RETURN_IF_ERROR(memory.Allocate(OffsetOf(1), sizeof(RingWords)));
  return memory;
}

absl::StatusOr<memory::Segment> SharedRings::MapMemory(int fd) {
  WEFT_ASSIGN_OR_RETURN(
      memory::Segment memory,
      memory::Segment::FromFdInPart(fd, kBytes, sizeof(RingWords)));
  WEFT_RETURN_IF_ERROR(memory.Allocate(OffsetOf(1), sizeof(RingWords)));
  return memory;
}

// What the owner of the connection has of it.
class RingConnection::End final : public Connection {
 public:
  // `name` and `role`: what the stream proves.
  End(std::shared_ptr<RingConnection> ring, std::string name, std::string role)
      : ring_(std::move(ring)),
        name_(std::move(name)),
        role_(std::move(role)) {}
  ~End() override { ring_->OnHandleDestroyed(); }

  Written Write(Slices message) override {
    return ring_->Write(std::move(message));
  }
  void RequestOnWritten() override { ring_->RequestOnWritten(); }
  void Close(absl::Status status) override { ring_->Close(std::move(status)); }
  absl::StatusOr<BodyMemory> UseBodyMemory() override {
    return ring_->UseBodyMemory();
  }
  std::string ProvenName() const override { return name_; }
  std::string ProvenRole() const override { return role_; }

 private:
  const std::shared_ptr<RingConnection> ring_;
  const std::string name_;
  const std::string role_;
};

RingConnection::RingConnection(SharedRings rings,
                               std::shared_ptr<net::MemoryWatch> watch)
    : rings_(std::move(rings)),
      watch_(std::move(watch)),
      reader_(rings_.MakeReader()),
      writer_(rings_.MakeWriter()) {}

absl::Status RingConnection::Start() {
  return watch_->AddMemory(shared_from_this());
}

std::unique_ptr<Connection> RingConnection::Attach(
    std::shared_ptr<Connection> stream) {
  auto end = std::make_unique<End>(shared_from_this(), stream->ProvenName(),
                                   stream->ProvenRole());
  bool switches = false;
  {
    MutexLock lock(mu_);
    if (!closed_) stream_ = std::move(stream);
    switches = switches_ || !rings_.is_offerer;
    if (!rings_.is_offerer) is_agreed_.store(true);
  }
  if (switches) SwitchToRings();
  return end;
}

// Nobody else holds the stream: it closes.
void RingConnection::OnHandleDestroyed() {
  std::shared_ptr<Connection> stream;
  {
    MutexLock lock(mu_);
    closed_ = true;
    stream.swap(stream_);
  }
  StopListening();
}

// After closed_ is set: a Write before that may have begun to wait for room.
void RingConnection::StopListening() {
  reads_ring_.store(false);
  is_waiting_for_room_.store(false);
}

void RingConnection::Observe(std::shared_ptr<ConnectionObserver> observer) {
  observer_ = std::move(observer);
}

void RingConnection::Discard() {
  OnClosed(absl::CancelledError("nobody observes the connection"));
}

absl::StatusOr<BodyMemory> RingConnection::UseBodyMemory() {
  std::shared_ptr<memory::Segment> memory;
  {
    MutexLock lock(mu_);
    if (is_agreed_.load()) memory = rings_.memory;
  }
  if (memory == nullptr) {
    return absl::UnimplementedError("this connection shares no memory");
  }
  // Only the end that allocates them counts the pages.
  if (!memory->is_allocated()) {
    MemoryBudget::Reservation reserved;
    if (rings_.reserve_bodies != nullptr) {
      WEFT_ASSIGN_OR_RETURN(reserved, rings_.reserve_bodies());
    }
    // The rest of the rings' too: by that the other end sees that it is done.
    WEFT_RETURN_IF_ERROR(memory->Allocate(0, SharedRings::kBytes));
    MutexLock lock(mu_);
    reserved_bodies_ = std::move(reserved);
  }
  std::byte* const first = memory->data() + SharedRings::kRingBytes;
  std::byte* const second = first + BodyMemory::kBytes;
  if (rings_.is_offerer) return BodyMemory{first, second, std::move(memory)};
  return BodyMemory{second, first, std::move(memory)};
}

// ------------------------------------------------------------------- writing

RingConnection::Written RingConnection::Write(Slices message) {
  absl::Status status;
  bool is_done = false;
  bool wakes = false;
  std::shared_ptr<Connection> stream;
  {
    MutexLock lock(mu_);
    if (closed_ || !writer_.is_idle() || (stream_is_busy_ && !writes_ring_)) {
      return Written::kRefused;
    }
    if (writes_ring_) {
      status = WriteToRing(std::move(message));
      is_done = writer_.is_idle();
      wakes = writer_.MustWake();
    } else {
      stream_is_busy_ = true;
      stream = stream_;
    }
  }
  if (stream != nullptr) return WriteToStream(*stream, std::move(message));
  if (wakes) rings_.peer.Ring();
  if (!status.ok()) {
    Close(std::move(status));
    return Written::kRefused;
  }
  return is_done ? Written::kDone : Written::kUnderWay;
}

absl::Status RingConnection::WriteToRing(Slices message) {
  if (const size_t size = TotalSize(message); size > kMaxRingMessageBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", size, " bytes, of at most ",
                     kMaxRingMessageBytes, " within the host"));
  }
  writer_.Begin(std::move(message));
  WEFT_RETURN_IF_ERROR(writer_.Go());
  if (!writer_.is_idle()) WaitForRoom();
  return absl::OkStatus();
}

void RingConnection::WaitForRoom() {
  is_waiting_for_room_.store(true);
  rings_.own.Ring();  // who polls may sleep, and not for this
}

// As if the last message had not found room.
void RingConnection::RequestOnWritten() {
  MutexLock lock(mu_);
  if (!closed_) WaitForRoom();
}

RingConnection::Written RingConnection::WriteToStream(Connection& stream,
                                                      Slices message) {
  const Written written = stream.Write(std::move(message));
  if (written == Written::kUnderWay) return written;
  bool switches = false;
  {
    MutexLock lock(mu_);
    stream_is_busy_ = false;
    switches = switches_;
  }
  if (switches) SwitchToRings();
  return written;
}

// Messages written to the ring before the empty message was sent are not read
// before it has arrived.
void RingConnection::SwitchToRings() {
  std::shared_ptr<Connection> stream;
  {
    MutexLock lock(mu_);
    switches_ = true;
    if (closed_ || stream_ == nullptr || stream_is_busy_ || writes_ring_) {
      return;
    }
    writes_ring_ = stream_is_busy_ = true;
    stream = stream_;
  }
  stream->Write({});
}

void RingConnection::OnWritten() {
  bool switches = false;
  {
    MutexLock lock(mu_);
    stream_is_busy_ = false;
    if (writes_ring_) return;  // that was the empty one
    switches = switches_;
  }
  if (switches) SwitchToRings();
  if (observer_ != nullptr) observer_->OnWritten();
}

void RingConnection::GoOnWriting() {
  absl::Status status;
  bool is_done = false;
  bool wakes = false;
  {
    MutexLock lock(mu_);
    if (closed_ || !writer_.HasRoom()) return;
    status = writer_.Go();
    is_done = writer_.is_idle();
    wakes = writer_.MustWake();
    if (is_done || !status.ok()) is_waiting_for_room_.store(false);
  }
  if (wakes) rings_.peer.Ring();
  if (!status.ok()) return Close(std::move(status));
  if (is_done) observer_->OnWritten();
}

void RingConnection::Close(absl::Status status) {
  std::shared_ptr<Connection> stream;
  {
    MutexLock lock(mu_);
    closed_ = true;
    stream = stream_;
  }
  StopListening();
  if (stream != nullptr) stream->Close(std::move(status));
}

// ------------------------------------------------------------------- reading

void RingConnection::OnMessage(Slices message) {
  const bool is_first = !std::exchange(answered_, true);
  if (is_first) rings_.offer = net::Descriptor();  // taken, or not wanted
  if (TotalSize(message) > 0 && !reads_ring_.load()) {
    // The first word of one who was called and took nothing.
    if (is_first && rings_.is_offerer) DoWithoutRings();
    return observer_->OnMessage(std::move(message));
  }
  if (reads_ring_.load() || (rings_.is_offerer && !is_first)) {
    return Close(absl::InvalidArgumentError(
        "a message on the stream after the connection left it, or that leaves "
        "it unasked"));
  }
  is_agreed_.store(true);
  reads_ring_.store(true);
  rings_.own.Ring();  // there may be something already
  SwitchToRings();
}

bool RingConnection::HasWork() {
  if (reads_ring_.load(std::memory_order_relaxed) && reader_.HasMore()) {
    return true;
  }
  if (!is_waiting_for_room_.load()) return false;
  MutexLock lock(mu_);
  return writer_.HasRoom();
}

// A poller may have begun to look before DoWithoutRings().
bool RingConnection::BeginSleep() {
  {
    MutexLock lock(mu_);
    if (rings_.memory == nullptr) return false;
    reader_.BeginSleep();
    if (is_waiting_for_room_.load()) writer_.BeginSleep();
  }
  return HasWork();
}

void RingConnection::EndSleep() {
  slept_.store(true);
  MutexLock lock(mu_);
  if (rings_.memory == nullptr) return;
  reader_.EndSleep();
  writer_.EndSleep();
}

// Its core, if another, wakes while the message that came is handled: for the
// reply, or for the request that follows one.
void RingConnection::WakePeer() {
  bool wakes;
  {
    MutexLock lock(mu_);
    wakes = writer_.ReaderIsOnAnotherCore() && writer_.MustWake();
  }
  if (wakes) rings_.peer.Ring();
}

void RingConnection::Handle() {
  if (is_waiting_for_room_.load()) GoOnWriting();
  if (reads_ring_.load()) ReadOne();
}

bool RingConnection::ReadOne() {
  absl::StatusOr<std::optional<Bytes>> message = reader_.Read();
  if (reader_.MustWake()) rings_.peer.Ring();
  if (!message.ok()) {
    Close(message.status());
    return false;
  }
  if (!message->has_value()) return false;
  if (slept_.load(std::memory_order_relaxed)) {
    slept_.store(false);
    WakePeer();
  }
  observer_->OnMessage({**std::move(message)});
  return true;
}

// Their memory is then free for another connection.
void RingConnection::DoWithoutRings() {
  watch_->RemoveMemory(this);
  std::shared_ptr<memory::Segment> memory;  // unmapped without the lock
  MutexLock lock(mu_);
  memory.swap(rings_.memory);
}

// All messages that the other end wrote before it ended are in the ring.
void RingConnection::OnClosed(absl::Status status) {
  if (reads_ring_.load()) {
    reader_.StopAtWritten();
    while (reads_ring_.load() && ReadOne()) {
    }
  }
  OnHandleDestroyed();
  watch_->RemoveMemory(this);
  rings_.offer = net::Descriptor();
  const auto observer = std::exchange(observer_, nullptr);
  if (observer != nullptr) observer->OnClosed(std::move(status));
}

}  // namespace weft::transport
