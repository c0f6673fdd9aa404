#include "weft/rpc/connection/link.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/io/streaming_copy.h"
#include "weft/base/status_macros.h"
#include "weft/memory/allocator.h"

namespace weft::rpc {
namespace {

// A body of so many bytes is no longer in the caches once it is whole.
constexpr size_t kStreamedBytes = 4 << 20;

void CopySlices(const Slices& from, uint8_t* to) {
  for (const Bytes& slice : from) {
    std::memcpy(to, slice.data(), slice.size());
    to += slice.size();
  }
}

// Copies the names of `request`, so that the message that holds them, whose
// size is not bounded, is released. Returns the bytes that the copies take.
int64_t DetachNames(Request& request) {
  request.name = Bytes::Copy(request.name.view());
  request.function = request.name.view();
  return static_cast<int64_t>(request.name.size() + request.chain.size());
}

}  // namespace

Link::Link(std::shared_ptr<LinkOwner> owner, Clock& clock, int64_t max_bytes)
    : clock_(clock), max_bytes_(max_bytes), owner_(std::move(owner)) {}

void Link::Attach(std::shared_ptr<transport::Connection> connection) {
  {
    MutexLock lock(mu_);
    if (!closed_) connection_ = std::move(connection);
  }
  if (connection != nullptr) {
    connection->Close(absl::CancelledError("closed before it was open"));
  }
  Drain();
}

template <typename T>
bool Link::AppendControl(T control) {
  MutexLock lock(mu_);
  if (closed_) return false;
  control_intervals_ += IntervalsOf(control);
  control_.emplace_back(std::move(control));
  ++appended_;
  return MayLeave() || Overflows();
}

bool Link::Append(Ack ack) { return AppendControl(std::move(ack)); }
bool Link::Append(Cancel cancel) { return AppendControl(std::move(cancel)); }
bool Link::Append(Closed closed) { return AppendControl(std::move(closed)); }

template <typename T>
bool Link::AppendOutgoing(T frame, size_t body_bytes) {
  MutexLock lock(mu_);
  if (closed_) return false;
  unswept_bytes_ += body_bytes;
  if (unswept_bytes_ > heavy_bytes_) {
    is_heavy_.store(true, std::memory_order_relaxed);
  }
  outbox_.emplace_back(std::move(frame));
  ++appended_;
  return MayLeave() || Overflows();
}

bool Link::Append(RequestPtr request) {
  const size_t body_bytes = TotalSize(request->body);
  return AppendOutgoing(std::move(request), body_bytes);
}

bool Link::Append(ReplyPtr reply) {
  const size_t body_bytes = TotalSize(reply->body);
  return AppendOutgoing(std::move(reply), body_bytes);
}

bool Link::Append(std::unique_ptr<Hello> hello) {
  return AppendOutgoing(std::move(hello), 0);
}

bool Link::Append(std::unique_ptr<Welcome> welcome) {
  return AppendOutgoing(std::move(welcome), 0);
}

Link::Body Link::BodyOf(const Outgoing& frame) {
  if (const auto* request = std::get_if<RequestPtr>(&frame)) {
    return {(*request)->id, TotalSize((*request)->body)};
  }
  if (const auto* reply = std::get_if<ReplyPtr>(&frame)) {
    return {(*reply)->id, TotalSize((*reply)->body)};
  }
  return {};
}

// The next sweep comes when as much has been appended as is left now, so that
// each costs no more than what has come since the one before.
bool Link::Sweep(absl::FunctionRef<bool(uint64_t)> has_ended) {
  MutexLock lock(mu_);
  size_t left = 0;
  const auto first = std::stable_partition(
      outbox_.begin(), outbox_.end(), [&](const Outgoing& frame) {
        const Body body = BodyOf(frame);
        if (body.id != 0 && has_ended(body.id)) return false;
        left += body.bytes;
        return true;
      });
  outbox_.erase(first, outbox_.end());
  for (auto it = bulk_.begin(); it != bulk_.end();) {
    if (has_ended(it->id)) {
      cut_.push_back(it->id);
      it = bulk_.erase(it);
    } else {
      left += (it++)->left;
    }
  }
  unswept_bytes_ = 0;
  heavy_bytes_ = std::max(kHeavyBytes, left);
  is_heavy_.store(false, std::memory_order_relaxed);
  return !cut_.empty() && MayLeave();
}

bool Link::HasWork() const {
  return !control_.empty() || !outbox_.empty() || !bulk_.empty() ||
         !cut_.empty() || payload_rings_ != nullptr || close_when_written_;
}

void Link::Drain() { GoOn(nullptr); }

void Link::GoOn(bool Link::*ended) {
  for (int i = 1; WriteOne(&ended, /*is_last=*/i == kInOneGo); ++i) {
  }
}

bool Link::WriteOne(bool Link::** ended, bool is_last) {
  std::optional<Leaving> leaving;  // not made where nothing leaves
  bool overflows = false;
  {
    MutexLock lock(mu_);
    if (*ended != nullptr) this->** ended = false;
    if (closed_ || connection_ == nullptr || !HasWork()) return false;
    overflows = Overflows();
    if (!overflows && !MayLeave()) return false;
    leaving.emplace();
    if (!overflows) {
      TakeMessage(&*leaving);
      writing_ = !leaving->message.empty();
      if (!writing_ && (!bulk_.empty() || !close_when_written_)) return false;
    }
    leaving->connection = connection_;
  }
  if (leaving->message.empty()) {
    EndInstead(*leaving->connection, overflows);
    return false;
  }
  const bool is_done = Write(&*leaving);
  *ended = is_done ? &Link::writing_ : nullptr;
  // Without it bodies leave with the messages.
  if (leaving->wants_memory) OpenMemory(*leaving->connection).IgnoreError();
  if (is_done && is_last) {
    leaving->connection->RequestOnWritten();
    return false;
  }
  return is_done;
}

bool Link::Write(Leaving* leaving) {
  for (const Leaving::Copy& copy : leaving->copies) {
    CopySlices(copy.from, reinterpret_cast<uint8_t*>(copy.to));
  }
  // Refused only once the connection is closing: OnClosed follows.
  return leaving->connection->Write(std::move(leaving->message)) ==
         transport::Connection::Written::kDone;
}

void Link::EndInstead(transport::Connection& connection, bool overflows) {
  if (overflows) {
    return End(absl::ResourceExhaustedError(absl::StrCat(
        "more than ", kMaxWaiting, " messages wait for a peer to read them")));
  }
  absl::Status status;
  {
    MutexLock lock(mu_);
    status = close_status_;
  }
  connection.Close(std::move(status));
}

void Link::End(absl::Status status, bool after_writing) {
  std::shared_ptr<transport::Connection> connection;
  std::shared_ptr<PayloadRings> rings;  // unmapped without the lock
  {
    MutexLock lock(mu_);
    if (closed_) return;
    if (after_writing) {
      close_when_written_ = true;
      close_status_ = status;
    } else {
      closed_ = true;
      control_.clear();
      outbox_.clear();
      bulk_.clear();
      rings = std::move(payload_rings_);
      connection = connection_;
    }
  }
  if (after_writing) return Drain();
  if (connection != nullptr) connection->Close(std::move(status));
}

void Link::OnWritten() { GoOn(&Link::writing_); }

void Link::OnClosed(absl::Status status) {
  std::shared_ptr<transport::Connection> connection;
  std::deque<Outgoing> outbox;
  std::deque<Bulk> bulk;
  std::shared_ptr<PayloadRings> rings;  // unmapped without the lock
  {
    MutexLock lock(mu_);
    closed_ = true;
    rings = std::move(payload_rings_);
    connection = std::move(connection_);
    outbox.swap(outbox_);
    bulk.swap(bulk_);
  }
  assemblies_.clear();
  const auto owner = std::move(owner_);
  if (owner != nullptr) owner->OnLinkClosed(*this, std::move(status));
}

// ------------------------------------------------------------------- sending

void Link::TakeMessage(Leaving* leaving) {
  BatchWriter batch;
  leaving->rings = payload_rings_;
  control_intervals_ = 0;
  while (!control_.empty()) {
    std::visit([&](const auto& control) { batch.Add(control); },
               control_.front());
    control_.pop_front();
  }
  for (const uint64_t id : cut_) {
    Chunk end;
    end.id = id;
    batch.Add(end);
  }
  cut_.clear();
  while (!outbox_.empty() && batch.size() < kBatchBytes) {
    AddOutgoing(outbox_.front(), &batch, leaving);
    outbox_.pop_front();
  }
  if (outbox_.empty() && bulk_.empty()) appended_ = 0;
  size_t room =
      memory_state_ == MemoryState::kOpen ? kMemoryChunkBytes : kChunkBytes;
  while (!bulk_.empty() && room > 0 && batch.size() < kBatchBytes) {
    const size_t most = memory_state_ == MemoryState::kOpen
                            ? std::min(room, bulk_.front().memory_chunk)
                            : room;
    const bool is_last = bulk_.front().left <= most;
    const size_t taken = AddChunk(most, &batch, leaving);
    if (taken == 0) break;  // until the peer has consumed some
    room -= std::min(room, taken);
    if (!is_last) break;  // the peer copies it out meanwhile
  }
  AddConsumed(&batch);
  leaving->message = std::move(batch).Finish();
}

void Link::AddOutgoing(const Outgoing& frame, BatchWriter* batch,
                       Leaving* leaving) {
  if (const auto* request = std::get_if<RequestPtr>(&frame)) {
    const Request& r = **request;
    batch->Add(r, clock_.Now(), AddBody(r.id, r.body, leaving));
  } else if (const auto* reply = std::get_if<ReplyPtr>(&frame)) {
    const Reply& r = **reply;
    batch->Add(r, AddBody(r.id, r.body, leaving));
  } else if (const auto* hello = std::get_if<std::unique_ptr<Hello>>(&frame)) {
    batch->Add(**hello);
  } else if (const auto* welcome =
                 std::get_if<std::unique_ptr<Welcome>>(&frame)) {
    batch->Add(**welcome);
  }
}

bool Link::AddBody(uint64_t id, const Slices& body, Leaving* leaving) {
  const size_t size = TotalSize(body);
  if (size >= kInMemory && memory_state_ == MemoryState::kUntried) {
    memory_state_ = MemoryState::kAsked;
    leaving->wants_memory = true;
  }
  if (size < (memory_state_ == MemoryState::kOpen ? kInMemory : kInChunks)) {
    return false;
  }
  const size_t chunk = size < 2 * kMemoryChunkBytes
                           ? std::max(kLeastMemoryChunkBytes, size / 4)
                           : kMemoryChunkBytes;
  bulk_.push_back(Bulk{id, body, size, 0, 0, chunk});
  return true;
}

size_t Link::AddChunk(size_t room, BatchWriter* batch, Leaving* leaving) {
  Bulk& bulk = bulk_.front();
  size_t size = std::min(room, bulk.left);
  Chunk chunk;
  chunk.id = bulk.id;
  if (memory_state_ == MemoryState::kOpen) {
    const std::optional<transport::PayloadWriter::Place> place =
        payload_rings_->writer.Reserve(size);
    if (!place.has_value()) return 0;
    chunk.in_memory = size = place->size;
    leaving->copies.push_back(
        {payload_rings_->memory.out + place->offset, bulk.Take(size)});
  } else {
    chunk.data = bulk.Take(size);
  }
  batch->Add(chunk);
  // Several bodies take turns, so that none waits for the whole of another.
  Bulk rest = std::move(bulk);
  bulk_.pop_front();
  if (rest.left > 0) bulk_.push_back(std::move(rest));
  return size;
}

Slices Link::Bulk::Take(size_t bytes) {
  Slices taken;
  left -= bytes;
  while (bytes > 0) {
    const Bytes& from = body[slice];
    const size_t n = std::min(bytes, from.size() - offset);
    if (n > 0) taken.push_back(from.subspan(offset, n));
    bytes -= n;
    offset += n;
    if (offset == from.size()) {
      ++slice;
      offset = 0;
    }
  }
  return taken;
}

// Along with whatever leaves, or on its own where the peer may soon wait for
// it.
void Link::AddConsumed(BatchWriter* batch) {
  if (payload_rings_ == nullptr) return;
  transport::PayloadReader& reader = payload_rings_->reader;
  if (!reader.MustReport() && (batch->empty() || !reader.MayReport())) return;
  batch->Add(Consumed{reader.Report()});
}

// ------------------------------------------------------------- shared memory

absl::Status Link::OpenMemory(transport::Connection& connection) {
  absl::StatusOr<transport::BodyMemory> memory = connection.UseBodyMemory();
  MutexLock lock(mu_);
  if (closed_) return absl::CancelledError("the link has ended");
  if (memory_state_ == MemoryState::kOpen) return absl::OkStatus();
  memory_state_ = memory.ok() ? MemoryState::kOpen : MemoryState::kNone;
  WEFT_RETURN_IF_ERROR(memory.status());
  payload_rings_ = std::make_shared<PayloadRings>(*std::move(memory));
  return absl::OkStatus();
}

absl::Status Link::OnConsumed(const Consumed& consumed) {
  MutexLock lock(mu_);
  if (closed_) return absl::OkStatus();
  if (payload_rings_ == nullptr) {
    return absl::InvalidArgumentError(
        "the peer has consumed of memory that is not used");
  }
  return payload_rings_->writer.Release(consumed.position);
}

absl::StatusOr<std::shared_ptr<Link::PayloadRings>> Link::RingsOfPeer() {
  std::shared_ptr<transport::Connection> connection;
  {
    MutexLock lock(mu_);
    if (closed_) return absl::CancelledError("the link has ended");
    if (payload_rings_ != nullptr) return payload_rings_;
    connection = connection_;
  }
  const absl::Status opened =
      connection == nullptr ? absl::UnimplementedError("it is not open yet")
                            : OpenMemory(*connection);
  if (absl::IsUnimplemented(opened)) {
    return absl::InvalidArgumentError("a chunk in memory that is not shared");
  }
  WEFT_RETURN_IF_ERROR(opened);
  MutexLock lock(mu_);
  return payload_rings_;
}

// ----------------------------------------------------------------- receiving

void Link::OnMessage(Slices message) {
  const auto self = shared_from_this();
  {
    MutexLock lock(mu_);
    if (closed_) return;
    receiving_ = true;  // what this message causes leaves together
  }
  const absl::Status status =
      ReadBatch(message, clock_.Now(),
                [this](Frame&& frame) { return TakeFrame(std::move(frame)); });
  if (!status.ok()) return End(status);
  EndMessage();
}

void Link::EndMessage() {
  ++burst_messages_;
  if (in_burst_) return;
  if (alone_ > 0) {
    --alone_;
    return GoOn(&Link::receiving_);
  }
  std::shared_ptr<transport::Connection> connection;
  {
    MutexLock lock(mu_);
    if (closed_ || !HasWork()) {
      receiving_ = false;
      return;
    }
    connection = connection_;
  }
  burst_messages_ = 1;
  in_burst_ = connection != nullptr &&
              connection->RunAfterBurst(
                  [self = shared_from_this()] { self->EndBurst(); });
  if (in_burst_) {
    messages_without_burst_ = 0;
    return;
  }
  if (messages_without_burst_ == kMessagesWithoutBurst) {
    alone_ = kAloneAfterBurst;
  } else {
    ++messages_without_burst_;
  }
  GoOn(&Link::receiving_);
}

void Link::EndBurst() {
  in_burst_ = false;
  if (burst_messages_ == 1) alone_ = kAloneAfterBurst;
  GoOn(&Link::receiving_);
}

absl::Status Link::TakeFrame(Frame&& frame) {
  if (const auto* chunk = std::get_if<Chunk>(&frame)) {
    const auto it = assemblies_.find(chunk->id);
    return it == assemblies_.end() ? PassOver(frame) : Fill(it, *chunk);
  }
  if (const auto* consumed = std::get_if<Consumed>(&frame)) {
    return OnConsumed(*consumed);
  }
  if (const auto* request = std::get_if<RequestFrame>(&frame);
      request != nullptr && request->body_bytes > 0) {
    Assembly assembly;
    assembly.request = request->request;
    return Begin(frame, request->request->id, request->body_bytes,
                 std::move(assembly));
  }
  if (const auto* reply = std::get_if<ReplyFrame>(&frame);
      reply != nullptr && reply->body_bytes > 0) {
    Assembly assembly;
    assembly.reply = reply->reply;
    return Begin(frame, reply->reply->id, reply->body_bytes,
                 std::move(assembly));
  }
  return owner_->OnFrame(*this, std::move(frame));
}

absl::Status Link::Begin(const Frame& frame, uint64_t id, uint64_t size,
                         Assembly assembly) {
  WEFT_ASSIGN_OR_RETURN(const bool is_wanted, owner_->WantsBody(*this, frame));
  if (!is_wanted) return absl::OkStatus();
  const absl::Status room = Reserve(size, &assembly);
  if (!room.ok()) return owner_->OnNoRoom(*this, frame, room);
  assembling_bytes_ += assembly.cost;
  if (!assemblies_.emplace(id, std::move(assembly)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("call ", id, " begins a second body within the first"));
  }
  return absl::OkStatus();
}

void FreeBody::operator()(uint8_t* begin) const {
  memory::HostAllocator().Deallocate(begin, size);
}

absl::Status Link::Reserve(uint64_t size, Assembly* assembly) {
  int64_t overhead = kBodyOverheadBytes;
  if (assembly->request != nullptr) {
    overhead += DetachNames(*assembly->request) +
                TotalSize(assembly->request->attachments);
  } else {
    overhead += TotalSize(assembly->reply->attachments);
  }
  const int64_t room = max_bytes_ - assembling_bytes_ - overhead;
  if (room < 0 || size > static_cast<uint64_t>(room)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a body of ", size, " bytes is announced while ", assemblies_.size(),
        " others take ", assembling_bytes_, "; ", max_bytes_,
        " are admitted, with ", overhead, " beside the body",
        assembly->request == nullptr  // of replies that is no option
            ? ""
            : "; who serves raises the limit by --limits=rpc_bytes=VALUE"));
  }
  assembly->size = size;
  assembly->cost = static_cast<int64_t>(size) + overhead;
  assembly->memory = {
      static_cast<uint8_t*>(memory::HostAllocator().Allocate(size)),
      FreeBody{size}};
  if (assembly->memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a body of ", size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Link::PassOver(const Frame& frame) {
  WEFT_ASSIGN_OR_RETURN(const bool is_wanted, owner_->WantsBody(*this, frame));
  const Chunk& chunk = std::get<Chunk>(frame);
  if (is_wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of call ", chunk.id, ", which announced none"));
  }
  return CopyChunk(chunk, nullptr, /*is_large=*/false);
}

absl::Status Link::Fill(AssemblyMap::iterator it, const Chunk& chunk) {
  Assembly& assembly = it->second;
  const size_t size =
      chunk.in_memory > 0 ? chunk.in_memory : TotalSize(chunk.data);
  if (size == 0) {  // nobody waits for it any more
    assembling_bytes_ -= assembly.cost;
    assemblies_.erase(it);
    return absl::OkStatus();
  }
  if (size > assembly.size - assembly.filled) {
    return absl::InvalidArgumentError(
        absl::StrCat("call ", chunk.id, " sends more than the ", assembly.size,
                     " bytes that it announced"));
  }
  WEFT_RETURN_IF_ERROR(CopyChunk(chunk, assembly.memory.get() + assembly.filled,
                                 /*is_large=*/assembly.size >= kStreamedBytes));
  assembly.filled += size;
  if (assembly.filled < assembly.size) return absl::OkStatus();
  Assembly whole = std::move(assembly);
  assemblies_.erase(it);
  assembling_bytes_ -= whole.cost;
  const auto finish = [&](auto& message) {
    const uint8_t* const begin = whole.memory.get();
    message.body = {Bytes::Wrap(begin, whole.size, std::move(whole.memory))};
    message.is_private = true;
  };
  if (whole.request != nullptr) {
    finish(*whole.request);
    return owner_->OnFrame(*this, RequestFrame{std::move(whole.request), 0});
  }
  finish(*whole.reply);
  return owner_->OnFrame(*this, ReplyFrame{std::move(whole.reply), 0});
}

absl::Status Link::CopyChunk(const Chunk& chunk, uint8_t* to, bool is_large) {
  if (chunk.in_memory == 0) {
    if (to != nullptr) CopySlices(chunk.data, to);
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const auto rings, RingsOfPeer());
  size_t offset = 0;
  {
    MutexLock lock(mu_);
    if (closed_) return absl::CancelledError("the link has ended");
    WEFT_ASSIGN_OR_RETURN(offset, rings->reader.Take(chunk.in_memory));
  }
  if (to == nullptr) {
    // Consumed all the same.
  } else if (is_large) {
    StreamingCopy(to, rings->memory.in + offset, chunk.in_memory);
  } else {
    std::memcpy(to, rings->memory.in + offset, chunk.in_memory);
  }
  MutexLock lock(mu_);
  rings->reader.Consume();
  return absl::OkStatus();
}

}  // namespace weft::rpc
