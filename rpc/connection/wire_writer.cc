// BatchWriter: see wire.h.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/connection/wire_format.h"

namespace weft::rpc {
namespace {

using internal::kBody;
using internal::kBytes;
using internal::kConsumed;
using internal::kFixed32;
using internal::kFixed64;
using internal::kMaxDetails;
using internal::kMaxText;
using internal::kMemory;
using internal::kVarint;
using internal::Tag;

// As proto3 does, these leave out what is 0 or empty.
void PutNumber(BytesBuilder* out, int number, uint64_t value) {
  if (value == 0) return;
  out->Varint(Tag(number, kVarint));
  out->Varint(value);
}

template <typename T>
void PutFixed(BytesBuilder* out, int number, T value) {
  if (value == 0) return;
  out->Varint(Tag(number, sizeof(T) == 8 ? kFixed64 : kFixed32));
  out->Append(&value, sizeof(T));
}

void PutText(BytesBuilder* out, int number, absl::string_view text) {
  if (text.empty()) return;
  out->Varint(Tag(number, kBytes));
  out->Varint(text.size());
  out->Append(text);
}

// A message within one, of what `put()` writes.
template <typename Put>
void PutMessage(BytesBuilder* out, int number, Put put) {
  out->Varint(Tag(number, kBytes));
  const size_t start = out->BeginSized();
  put();
  out->EndSized(start);
}

template <typename Intervals>
void PutIntervals(BytesBuilder* out, int number, const Intervals& intervals) {
  if (intervals.empty()) return;
  PutMessage(out, number, [&] {
    for (const Interval interval : intervals) {
      out->Varint(interval.first);
      out->Varint(interval.last);
    }
  });
}

void PutKey(BytesBuilder* out, int number, rendezvous::WorkerKey key) {
  PutMessage(out, number, [&] {
    PutNumber(out, 1, key.id);
    PutNumber(out, 2, key.epoch);
  });
}

}  // namespace

void BatchWriter::Add(const Hello& hello) {
  const size_t start = Begin(1);
  PutFixed(&chunk_, 1, hello.magic);
  PutNumber(&chunk_, 2, hello.min_version);
  PutNumber(&chunk_, 3, hello.max_version);
  PutText(&chunk_, 4, hello.job);
  PutText(&chunk_, 5, hello.build);
  PutText(&chunk_, 6, hello.name);
  PutKey(&chunk_, 7, hello.from);
  PutKey(&chunk_, 8, hello.to);
  PutFixed(&chunk_, 9, hello.registry);
  PutNumber(&chunk_, 10, hello.generation);
  PutNumber(&chunk_, 11, hello.resumes);
  End(start);
}

void BatchWriter::Add(const Welcome& welcome) {
  const size_t start = Begin(2);
  PutNumber(&chunk_, 1, static_cast<uint64_t>(welcome.status.code()));
  PutText(&chunk_, 2, welcome.status.message());
  PutNumber(&chunk_, 3, welcome.version);
  PutNumber(&chunk_, 4, welcome.forgotten);
  PutNumber(&chunk_, 5, welcome.replaced);
  PutFixed(&chunk_, 6, welcome.registry);
  PutText(&chunk_, 7, welcome.build);
  PutNumber(&chunk_, 8, welcome.limits.calls);
  PutNumber(&chunk_, 9, welcome.limits.bytes);
  PutNumber(&chunk_, 10, welcome.limits.nested_calls);
  if (welcome.functions.has_value()) {
    for (const auto& [name, function] : *welcome.functions) {
      PutMessage(&chunk_, 11, [&, &name = name, &function = function] {
        PutText(&chunk_, 1, name);
        PutText(&chunk_, 2, function.signature);
        PutFixed(&chunk_, 3, function.digest);
      });
    }
    PutNumber(&chunk_, 12, 1);
  }
  End(start);
}

void BatchWriter::Add(const Request& request, Instant now, bool body_follows) {
  const size_t start = Begin(3);
  PutNumber(&chunk_, 1, request.id);
  PutText(&chunk_, 2, request.function);
  PutFixed(&chunk_, 3, request.signature);
  const int64_t us = absl::ToInt64Microseconds(request.deadline - now);
  PutNumber(&chunk_, 4, std::max<int64_t>(us, 0));
  PutNumber(&chunk_, 5, request.depth);
  PutText(&chunk_, 6, request.chain);
  if (request.trace.is_valid()) {
    PutText(&chunk_, 7, telemetry::FormatTraceparent(request.trace));
  }
  if (body_follows) PutNumber(&chunk_, 8, TotalSize(request.body));
  PutNumber(&chunk_, 9, request.keeps_result);
  PutNumber(&chunk_, 10, request.ordered_queue);
  PutAttachments(11, request.attachments);
  End(start, body_follows ? nullptr : &request.body);
}

void BatchWriter::Add(const Reply& reply, bool body_follows) {
  const size_t start = Begin(4);
  PutNumber(&chunk_, 1, reply.id);
  if (!reply.status.ok()) {
    PutNumber(&chunk_, 2, static_cast<uint64_t>(reply.status.code()));
    PutText(&chunk_, 3, reply.status.message().substr(0, kMaxText));
    PutNumber(&chunk_, 4, static_cast<uint64_t>(reply.refusal));
    PutDetails(reply.status);
  }
  PutAttachments(6, reply.attachments);
  if (body_follows) PutNumber(&chunk_, 8, TotalSize(reply.body));
  End(start, body_follows ? nullptr : &reply.body);
}

// Leaves out details that a reader would refuse.
void BatchWriter::PutDetails(const absl::Status& status) {
  // In the same order in each run of a simulation, which a Status does not do.
  std::map<std::string, std::string> details;
  status.ForEachPayload([&](absl::string_view key, const absl::Cord& value) {
    if (key.size() + value.size() >= kMaxText) return;
    details.emplace(key, value);
  });
  size_t written = 0;
  for (const auto& detail : details) {
    if (written++ == kMaxDetails) break;
    PutMessage(&chunk_, 5, [&] {
      PutText(&chunk_, 1, detail.first);
      PutText(&chunk_, 2, detail.second);
    });
  }
}

void BatchWriter::PutAttachments(int number,
                                 const FrozenAttachments& attachments) {
  for (const FrozenAttachment& one : attachments) {
    PutMessage(&chunk_, number, [&] {
      PutText(&chunk_, 1, one.kind);
      PutText(&chunk_, kBody, one.bytes.view());
    });
  }
}

void BatchWriter::Add(const Ack& ack) {
  const size_t start = Begin(5);
  PutIntervals(&chunk_, 1, ack.ids);
  PutIntervals(&chunk_, 2, ack.confirm);
  End(start);
}

void BatchWriter::Add(const Cancel& cancel) {
  const size_t start = Begin(7);
  PutIntervals(&chunk_, 1, cancel.ids);
  End(start);
}

void BatchWriter::Add(const Closed& closed) {
  const size_t start = Begin(8);
  PutIntervals(&chunk_, 1, closed.seen);
  PutIntervals(&chunk_, 2, closed.never);
  End(start);
}

void BatchWriter::Add(const Chunk& chunk) {
  const size_t start = Begin(6);
  PutNumber(&chunk_, 1, chunk.id);
  PutNumber(&chunk_, 2, chunk.in_memory);
  End(start, &chunk.data);
}

void BatchWriter::Add(const Consumed& consumed) {
  const size_t start = Begin(kMemory);
  PutNumber(&chunk_, 1, uint64_t{kConsumed});
  PutNumber(&chunk_, 4, consumed.position);
  End(start);
}

size_t BatchWriter::Begin(int number) {
  chunk_.Varint(Tag(number, kBytes));
  return chunk_.BeginSized();
}

void BatchWriter::End(size_t start, const Slices* body) {
  const size_t body_size = body == nullptr ? 0 : TotalSize(*body);
  if (body_size > 0) {
    chunk_.Varint(Tag(kBody, kBytes));
    chunk_.Varint(body_size);
  }
  chunk_.EndSized(start, body_size);
  if (body_size == 0) return;
  for (const Bytes& slice : *body) {
    if (slice.size() < kByReference) {
      chunk_.Append(slice.data(), slice.size());
      continue;
    }
    Flush();
    flushed_ += slice.size();
    slices_.push_back(slice);
  }
}

void BatchWriter::Flush() {
  if (chunk_.empty()) return;
  flushed_ += chunk_.size();
  slices_.push_back(chunk_.Take());
}

Slices BatchWriter::Finish() && {
  Flush();
  return std::move(slices_);
}

}  // namespace weft::rpc
