#include "weft/rpc/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/memory/allocator.h"

namespace weft::rpc {
namespace {

std::shared_ptr<uint8_t> AllocateBody(size_t size) {
  auto* memory = static_cast<uint8_t*>(memory::HostAllocator().Allocate(size));
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<uint8_t>(memory, [size](uint8_t* begin) {
    memory::HostAllocator().Deallocate(begin, size);
  });
}

}  // namespace

Link::Link(std::shared_ptr<LinkOwner> owner, Clock& clock, int64_t max_bytes)
    : clock_(clock), max_bytes_(max_bytes), owner_(std::move(owner)) {}

void Link::Attach(std::shared_ptr<Connection> connection) {
  {
    MutexLock lock(mu_);
    if (!closed_) connection_ = std::move(connection);
  }
  if (connection != nullptr) {
    connection->Close(absl::CancelledError("closed before it was open"));
  }
  Drain();
}

void Link::Append(Outgoing frame) {
  MutexLock lock(mu_);
  if (!closed_) outbox_.push_back(std::move(frame));
}

void Link::Drain() {
  std::shared_ptr<Connection> connection;
  Slices message;
  bool close = false;
  bool overflows = false;
  absl::Status status;
  {
    MutexLock lock(mu_);
    if (closed_ || connection_ == nullptr) return;
    overflows = outbox_.size() > kMaxWaiting;
    if (!overflows) {
      if (writing_ || receiving_) return;
      message = TakeMessage();
      connection = connection_;
      writing_ = !message.empty();
      close = message.empty() && close_when_written_;
      status = close_status_;
    }
  }
  if (overflows) {
    End(absl::ResourceExhaustedError(absl::StrCat(
        "more than ", kMaxWaiting, " messages wait for a peer to read them")));
  } else if (!message.empty()) {
    // Fails only once the connection is closing: OnClosed follows.
    connection->Write(std::move(message));
  } else if (close) {
    connection->Close(std::move(status));
  }
}

void Link::End(absl::Status status, bool after_writing) {
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(mu_);
    if (closed_) return;
    if (after_writing) {
      close_when_written_ = true;
      close_status_ = status;
    } else {
      closed_ = true;
      outbox_.clear();
      bulk_.clear();
      connection = connection_;
    }
  }
  if (after_writing) return Drain();
  if (connection != nullptr) connection->Close(std::move(status));
}

void Link::OnWritten() {
  {
    MutexLock lock(mu_);
    writing_ = false;
  }
  Drain();
}

void Link::OnClosed(absl::Status status) {
  std::shared_ptr<Connection> connection;
  std::deque<Outgoing> outbox;
  std::deque<Bulk> bulk;
  {
    MutexLock lock(mu_);
    closed_ = true;
    connection = std::move(connection_);
    outbox.swap(outbox_);
    bulk.swap(bulk_);
  }
  assemblies_.clear();
  const std::shared_ptr<LinkOwner> owner = std::move(owner_);
  if (owner != nullptr) owner->OnLinkClosed(*this, std::move(status));
}

// ------------------------------------------------------------------- sending

Slices Link::TakeMessage() {
  BatchWriter batch;
  while (!outbox_.empty() && batch.size() < kBatchBytes) {
    AddOutgoing(outbox_.front(), &batch);
    outbox_.pop_front();
  }
  if (!bulk_.empty() && batch.size() < kBatchBytes) AddPiece(&batch);
  return std::move(batch).Finish();
}

void Link::AddOutgoing(const Outgoing& frame, BatchWriter* batch) {
  const auto add = [&](uint64_t id, const Slices& body, auto write) {
    const bool in_pieces = TotalSize(body) >= kInPieces;
    write(in_pieces);
    if (in_pieces) bulk_.push_back(Bulk{id, body, 0, 0});
  };
  if (const auto* request = std::get_if<RequestPtr>(&frame)) {
    add((*request)->id, (*request)->body, [&](bool in_pieces) {
      batch->Add(**request, clock_.Now(), in_pieces);
    });
  } else if (const auto* reply = std::get_if<ReplyPtr>(&frame)) {
    add((*reply)->id, (*reply)->body,
        [&](bool in_pieces) { batch->Add(**reply, in_pieces); });
  } else if (const auto* close = std::get_if<Close>(&frame)) {
    batch->Add(*close);
  } else if (const auto* hello = std::get_if<Hello>(&frame)) {
    batch->Add(*hello);
  } else {
    batch->Add(std::get<Welcome>(frame));
  }
}

void Link::AddPiece(BatchWriter* batch) {
  Bulk& bulk = bulk_.front();
  Piece piece;
  piece.id = bulk.id;
  size_t room = kPieceBytes;
  while (room > 0 && bulk.slice < bulk.body.size()) {
    const Bytes& slice = bulk.body[bulk.slice];
    const size_t n = std::min(room, slice.size() - bulk.offset);
    if (n > 0) piece.data.push_back(slice.subspan(bulk.offset, n));
    room -= n;
    bulk.offset += n;
    if (bulk.offset == slice.size()) {
      ++bulk.slice;
      bulk.offset = 0;
    }
  }
  batch->Add(piece);
  // Several bodies take turns, so that none waits for the whole of another.
  Bulk rest = std::move(bulk);
  bulk_.pop_front();
  if (rest.slice < rest.body.size()) bulk_.push_back(std::move(rest));
}

// ----------------------------------------------------------------- receiving

void Link::OnMessage(Slices message) {
  const std::shared_ptr<Link> self = shared_from_this();
  {
    MutexLock lock(mu_);
    if (closed_) return;
    receiving_ = true;  // what this message causes leaves together
  }
  const absl::Status status =
      ReadBatch(message, clock_.Now(),
                [this](Frame frame) { return TakeFrame(std::move(frame)); });
  {
    MutexLock lock(mu_);
    receiving_ = false;
  }
  if (status.ok()) return Drain();
  End(status);
}

absl::Status Link::TakeFrame(Frame frame) {
  if (auto* request = std::get_if<RequestFrame>(&frame);
      request != nullptr && request->body_bytes > 0) {
    return Begin(request->request, nullptr, request->request->id,
                 request->body_bytes);
  }
  if (auto* reply = std::get_if<ReplyFrame>(&frame);
      reply != nullptr && reply->body_bytes > 0) {
    return Begin(nullptr, reply->reply, reply->reply->id, reply->body_bytes);
  }
  if (const auto* piece = std::get_if<Piece>(&frame)) return Fill(*piece);
  return owner_->OnFrame(*this, std::move(frame));
}

absl::Status Link::Begin(std::shared_ptr<Request> request,
                         std::shared_ptr<Reply> reply, uint64_t id,
                         uint64_t size) {
  if (size > static_cast<uint64_t>(max_bytes_ - assembling_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a body of ", size, " bytes is announced while ", assembling_bytes_,
        " are being received; ", max_bytes_, " are admitted"));
  }
  Assembly assembly;
  assembly.request = std::move(request);
  assembly.reply = std::move(reply);
  assembly.size = size;
  assembly.memory = AllocateBody(size);
  if (assembly.memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a body of ", size, " bytes"));
  }
  if (!assemblies_.emplace(id, std::move(assembly)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("call ", id, " begins a second body within the first"));
  }
  assembling_bytes_ += static_cast<int64_t>(size);
  return absl::OkStatus();
}

absl::Status Link::Fill(const Piece& piece) {
  const auto it = assemblies_.find(piece.id);
  if (it == assemblies_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of call ", piece.id, ", which announced none"));
  }
  Assembly& assembly = it->second;
  if (TotalSize(piece.data) > assembly.size - assembly.filled) {
    return absl::InvalidArgumentError(
        absl::StrCat("call ", piece.id, " sends more than the ", assembly.size,
                     " bytes that it announced"));
  }
  for (const Bytes& slice : piece.data) {
    std::memcpy(assembly.memory.get() + assembly.filled, slice.data(),
                slice.size());
    assembly.filled += slice.size();
  }
  if (assembly.filled < assembly.size) return absl::OkStatus();
  Assembly whole = std::move(assembly);
  assemblies_.erase(it);
  assembling_bytes_ -= static_cast<int64_t>(whole.size);
  const auto finish = [&](auto& message) {
    message.body = {Bytes::Wrap(whole.memory.get(), whole.size, whole.memory)};
    message.is_private = true;
  };
  if (whole.request != nullptr) {
    finish(*whole.request);
    return owner_->OnFrame(*this, RequestFrame{std::move(whole.request), 0});
  }
  finish(*whole.reply);
  return owner_->OnFrame(*this, ReplyFrame{std::move(whole.reply), 0});
}

}  // namespace weft::rpc
