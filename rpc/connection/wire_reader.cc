// ReadBatch: see wire.h.

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "weft/base/slice_reader.h"
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
using internal::kMaxId;
using internal::kMaxText;
using internal::kMemory;
using internal::kVarint;
using internal::Tag;

// Walks over the fields of a message. After the first thing that is wrong
// there are no more of them, and what is read is zero or empty.
class Reader {
 public:
  Reader(const Slices& slices, Instant now) : bytes_(slices), now_(now) {}

  // The first error.
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) { status_.Update(std::move(status)); }
  ABSL_ATTRIBUTE_NOINLINE void Fail(absl::string_view what) {
    Fail(absl::InvalidArgumentError(absl::StrCat("malformed batch: ", what)));
  }

  Instant now() const { return now_; }

  // The tag of the next field of a message that ends where `end` bytes remain;
  // 0 if there is none.
  uint64_t Next(size_t end) {
    if (!status_.ok() || bytes_.remaining() == end) return 0;
    const bool overruns = bytes_.remaining() < end;
    const uint64_t tag = Varint();
    type_ = tag & 7;
    size_ = type_ == kBytes ? Varint() : 0;
    if (overruns || size_ > bytes_.remaining() || tag < Tag(1, 0)) {
      FailField(overruns, tag);
    }
    return status_.ok() ? tag : 0;
  }
  // Where a message ends that is the field which has just begun.
  size_t End() const { return bytes_.remaining() - size_; }
  bool IsBefore(size_t end) const {
    return status_.ok() && bytes_.remaining() > end;
  }

  // Each reads the field which has just begun, but Varint: the next number.
  template <typename T>
  void Number(T* value) {
    const uint64_t number = Varint();
    *value = static_cast<T>(number);
    if constexpr (!std::is_same_v<T, bool>) {
      if (static_cast<uint64_t>(*value) != number) {
        Fail("a number out of its range");
      }
    }
  }
  template <typename T>
  void Fixed(T* value) {
    if (!bytes_.Copy(value, sizeof(T))) Fail("it ends within a field");
  }
  void Text(std::string* text) {
    if (!IsText()) return;
    text->resize(size_);
    bytes_.Copy(text->data(), size_);
  }
  void Text(Bytes* text) {
    if (IsText()) bytes_.Take(size_, text);
  }
  void Shared(Slices* slices) {
    slices->clear();
    bytes_.Share(size_, slices);
  }
  void Skip() {
    if (type_ == kVarint) {
      (void)Varint();
    } else if (type_ != kBytes && type_ != kFixed64 && type_ != kFixed32) {
      Fail(absl::StrCat("a field of the unknown type ", type_));
    } else if (!bytes_.Skip(type_ == kBytes     ? size_
                            : type_ == kFixed64 ? 8
                                                : 4)) {
      Fail("it ends within an unknown field");
    }
  }
  uint64_t Varint() {
    uint64_t value;
    return bytes_.Varint(&value) ? value : FailNumber();
  }

 private:
  // Out of the way of what is well-formed.
  ABSL_ATTRIBUTE_NOINLINE void FailField(bool overruns, uint64_t tag) {
    if (overruns) return Fail("a field overruns its frame");
    if (size_ > bytes_.remaining()) {
      Fail(absl::StrCat("a field announces ", size_, " bytes and ",
                        bytes_.remaining(), " are left"));
    }
    if (tag < Tag(1, 0)) Fail("a field without a number");
  }
  ABSL_ATTRIBUTE_NOINLINE uint64_t FailNumber() {
    Fail(bytes_.remaining() == 0 ? "it ends within a number"
                                 : "a number of more than 64 bits");
    return 0;
  }
  bool IsText() {
    if (size_ <= kMaxText) return true;
    Fail(absl::StrCat("a text of ", size_, " bytes"));
    return false;
  }

  SliceReader bytes_;
  const Instant now_;
  absl::Status status_;
  uint64_t type_ = 0;  // of the field
  uint64_t size_ = 0;  // of it, if that is kBytes
};

// Each Read takes the message that is the field which has just begun.

void Read(Reader& r, rendezvous::WorkerKey* key) {
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&key->id);
        break;
      case Tag(2, kVarint):
        r.Number(&key->epoch);
        break;
      default:
        r.Skip();
    }
  }
}

void Read(Reader& r, Hello* hello) {
  hello->magic = hello->min_version = hello->max_version = 0;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kFixed32):
        r.Fixed(&hello->magic);
        break;
      case Tag(2, kVarint):
        r.Number(&hello->min_version);
        break;
      case Tag(3, kVarint):
        r.Number(&hello->max_version);
        break;
      case Tag(4, kBytes):
        r.Text(&hello->job);
        break;
      case Tag(5, kBytes):
        r.Text(&hello->build);
        break;
      case Tag(6, kBytes):
        r.Text(&hello->name);
        break;
      case Tag(7, kBytes):
        Read(r, &hello->from);
        break;
      case Tag(8, kBytes):
        Read(r, &hello->to);
        break;
      case Tag(9, kFixed64):
        r.Fixed(&hello->registry);
        break;
      case Tag(10, kVarint):
        r.Number(&hello->generation);
        break;
      case Tag(11, kVarint):
        r.Number(&hello->resumes);
        break;
      default:
        r.Skip();
    }
  }
}

// A code that no status has counts as kUnknown.
absl::Status ToStatus(uint64_t code, absl::string_view message) {
  if (code > 16) code = static_cast<uint64_t>(absl::StatusCode::kUnknown);
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

// One of them.
void Read(Reader& r, FunctionTable* functions) {
  std::string name;
  FunctionSignature function;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        r.Text(&name);
        break;
      case Tag(2, kBytes):
        r.Text(&function.signature);
        break;
      case Tag(3, kFixed64):
        r.Fixed(&function.digest);
        break;
      default:
        r.Skip();
    }
  }
  if (functions->size() == kMaxFunctions) return r.Fail("too many functions");
  functions->emplace(std::move(name), std::move(function));
}

void Read(Reader& r, Welcome* welcome) {
  FunctionTable functions;
  uint64_t code = 0;
  std::string error;
  bool has_functions = false;
  Limits& limits = welcome->limits;
  limits.calls = limits.bytes = limits.nested_calls = 0;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&code);
        break;
      case Tag(2, kBytes):
        r.Text(&error);
        break;
      case Tag(3, kVarint):
        r.Number(&welcome->version);
        break;
      case Tag(4, kVarint):
        r.Number(&welcome->forgotten);
        break;
      case Tag(5, kVarint):
        r.Number(&welcome->replaced);
        break;
      case Tag(6, kFixed64):
        r.Fixed(&welcome->registry);
        break;
      case Tag(7, kBytes):
        r.Text(&welcome->build);
        break;
      case Tag(8, kVarint):
        r.Number(&limits.calls);
        break;
      case Tag(9, kVarint):
        r.Number(&limits.bytes);
        break;
      case Tag(10, kVarint):
        r.Number(&limits.nested_calls);
        break;
      case Tag(11, kBytes):
        Read(r, &functions);
        break;
      case Tag(12, kVarint):
        r.Number(&has_functions);
        break;
      default:
        r.Skip();
    }
  }
  if (limits.calls < 0 || limits.bytes < 0 || limits.nested_calls < 0) {
    r.Fail("a limit below 0");
  }
  if (has_functions) welcome->functions = std::move(functions);
  welcome->status = ToStatus(code, error);
}

ABSL_ATTRIBUTE_NOINLINE void FailId(Reader& r, uint64_t id) {
  r.Fail(absl::StrCat("a call with the id ", id));
}

void CheckId(Reader& r, uint64_t id) {
  if (id < 1 || id >= kMaxId) FailId(r, id);
}

// A body comes with its frame or in chunks, not both ways.
void CheckBody(Reader& r, const Slices& body, uint64_t body_bytes) {
  if (body_bytes > 0 && !body.empty()) {
    r.Fail("a body that is here and yet to come");
  }
}

void ReadTrace(Reader& r, telemetry::TraceContext* trace) {
  std::string text;
  r.Text(&text);
  absl::StatusOr<telemetry::TraceContext> parsed =
      telemetry::ParseTraceparent(text);
  if (!parsed.ok()) return r.Fail(parsed.status());
  *trace = *parsed;
}

// One of them.
void Read(Reader& r, FrozenAttachments* attachments) {
  if (attachments->size() == FrozenAttachment::kMostOfAMessage) {
    return r.Fail("too many attachments");
  }
  FrozenAttachment& one = attachments->emplace_back();
  Slices bytes;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        r.Text(&one.kind);
        break;
      case Tag(kBody, kBytes):
        r.Shared(&bytes);
        break;
      default:
        r.Skip();
    }
  }
  // A copy: the batch that it came with is not held for it.
  one.bytes = Bytes::Copy(Flatten(bytes).view());
  if (one.kind.empty() || one.kind.size() > FrozenAttachment::kMostKindBytes) {
    r.Fail("an attachment without a kind");
  }
  if (TotalSize(*attachments) >
      static_cast<int64_t>(FrozenAttachment::kMostBytes)) {
    r.Fail("attachments that are too large");
  }
}

void Read(Reader& r, RequestFrame* frame) {
  frame->request = std::make_shared<Request>();
  Request& request = *frame->request;
  uint64_t timeout_us = 0;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&request.id);
        break;
      case Tag(2, kBytes):
        r.Text(&request.name);
        request.function = request.name.view();
        break;
      case Tag(3, kFixed64):
        r.Fixed(&request.signature);
        break;
      case Tag(4, kVarint):
        r.Number(&timeout_us);
        break;
      case Tag(5, kVarint):
        r.Number(&request.depth);
        break;
      case Tag(6, kBytes):
        r.Text(&request.chain);
        break;
      case Tag(7, kBytes):
        ReadTrace(r, &request.trace);
        break;
      case Tag(8, kVarint):
        r.Number(&frame->body_bytes);
        break;
      case Tag(9, kVarint):
        r.Number(&request.keeps_result);
        break;
      case Tag(10, kVarint):
        r.Number(&request.ordered_queue);
        break;
      case Tag(11, kBytes):
        Read(r, &request.attachments);
        break;
      case Tag(kBody, kBytes):
        r.Shared(&request.body);
        break;
      default:
        r.Skip();
    }
  }
  // Far beyond any limit, and still far from overflow.
  timeout_us = std::min<uint64_t>(timeout_us, int64_t{1} << 50);
  request.began = r.now();
  request.deadline = request.began + absl::Microseconds(timeout_us);
  if (request.depth < 0) r.Fail("a depth below 0");
  CheckId(r, request.id);
  CheckBody(r, request.body, frame->body_bytes);
}

using Details = std::vector<std::pair<std::string, std::string>>;

// One of them.
void Read(Reader& r, Details* details) {
  if (details->size() == kMaxDetails) {
    return r.Fail(absl::StrCat("more than ", kMaxDetails, " details"));
  }
  auto& [key, value] = details->emplace_back();
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        r.Text(&key);
        break;
      case Tag(2, kBytes):
        r.Text(&value);
        break;
      default:
        r.Skip();
    }
  }
}

void Read(Reader& r, ReplyFrame* frame) {
  frame->reply = std::make_shared<Reply>();
  Reply& reply = *frame->reply;
  uint64_t code = 0;
  uint8_t refusal = 0;
  std::string error;
  Details details;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&reply.id);
        break;
      case Tag(2, kVarint):
        r.Number(&code);
        break;
      case Tag(3, kBytes):
        r.Text(&error);
        break;
      case Tag(4, kVarint):
        r.Number(&refusal);
        break;
      case Tag(5, kBytes):
        Read(r, &details);
        break;
      case Tag(6, kBytes):
        Read(r, &reply.attachments);
        break;
      case Tag(8, kVarint):
        r.Number(&frame->body_bytes);
        break;
      case Tag(kBody, kBytes):
        r.Shared(&reply.body);
        break;
      default:
        r.Skip();
    }
  }
  if (code != 0) reply.status = ToStatus(code, error);
  for (auto& [key, value] : details) {
    reply.status.SetPayload(key, absl::Cord(value));
  }
  if (refusal <= static_cast<uint8_t>(Refusal::kAttachments)) {
    reply.refusal = static_cast<Refusal>(refusal);
  }
  if (code != 0 && frame->body_bytes > 0) r.Fail("an error that has a body");
  if (code != 0 && !reply.attachments.empty()) {
    r.Fail("an error that has attachments");
  }
  CheckId(r, reply.id);
  CheckBody(r, reply.body, frame->body_bytes);
}

template <typename Intervals>
void ReadIntervals(Reader& r, Intervals* ids) {
  const size_t end = r.End();
  while (r.IsBefore(end)) {
    Interval interval;
    interval.first = r.Varint();
    interval.last = r.Varint();
    CheckId(r, interval.first);
    CheckId(r, interval.last);
    if (interval.first > interval.last) r.Fail("an interval that is none");
    if (ids->size() == kMaxIntervals) r.Fail("too many intervals");
    ids->push_back(interval);
  }
}

void Read(Reader& r, Ack* ack) {
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        ReadIntervals(r, &ack->ids);
        break;
      case Tag(2, kBytes):
        ReadIntervals(r, &ack->confirm);
        break;
      default:
        r.Skip();
    }
  }
}

void Read(Reader& r, Cancel* cancel) {
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        ReadIntervals(r, &cancel->ids);
        break;
      default:
        r.Skip();
    }
  }
}

void Read(Reader& r, Closed* closed) {
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kBytes):
        ReadIntervals(r, &closed->seen);
        break;
      case Tag(2, kBytes):
        ReadIntervals(r, &closed->never);
        break;
      default:
        r.Skip();
    }
  }
}

void Read(Reader& r, Chunk* chunk) {
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&chunk->id);
        break;
      case Tag(2, kVarint):
        r.Number(&chunk->in_memory);
        break;
      case Tag(kBody, kBytes):
        r.Shared(&chunk->data);
        break;
      default:
        r.Skip();
    }
  }
  if (chunk->in_memory > 0 && !chunk->data.empty()) {
    r.Fail("a chunk that is here and in shared memory");
  }
  CheckId(r, chunk->id);
}

// Nothing: of another kind.
std::optional<Consumed> ReadConsumed(Reader& r) {
  uint8_t kind = 0;
  Consumed consumed;
  const size_t end = r.End();
  while (const uint64_t tag = r.Next(end)) {
    switch (tag) {
      case Tag(1, kVarint):
        r.Number(&kind);
        break;
      case Tag(4, kVarint):
        r.Number(&consumed.position);
        break;
      default:
        r.Skip();
    }
  }
  if (kind == 0 || kind > kConsumed) {
    r.Fail(absl::StrCat("shared memory with the kind ", kind));
  }
  if (kind != kConsumed) return std::nullopt;
  return consumed;
}

// Reads the field as a T and hands it on.
template <typename T>
void TakeFrame(Reader& r, absl::FunctionRef<absl::Status(Frame&&)> take) {
  Frame frame(std::in_place_type<T>);
  Read(r, &std::get<T>(frame));
  if (r.status().ok()) r.Fail(take(std::move(frame)));
}

void TakeConsumed(Reader& r, absl::FunctionRef<absl::Status(Frame&&)> take) {
  const std::optional<Consumed> consumed = ReadConsumed(r);
  if (r.status().ok() && consumed.has_value()) r.Fail(take(*consumed));
}

}  // namespace

absl::Status ReadBatch(const Slices& message, Instant now,
                       absl::FunctionRef<absl::Status(Frame&&)> take) {
  Reader r(message, now);
  while (const uint64_t tag = r.Next(0)) {
    switch (tag) {
      case Tag(1, kBytes):
        TakeFrame<Hello>(r, take);
        break;
      case Tag(2, kBytes):
        TakeFrame<Welcome>(r, take);
        break;
      case Tag(3, kBytes):
        TakeFrame<RequestFrame>(r, take);
        break;
      case Tag(4, kBytes):
        TakeFrame<ReplyFrame>(r, take);
        break;
      case Tag(5, kBytes):
        TakeFrame<Ack>(r, take);
        break;
      case Tag(7, kBytes):
        TakeFrame<Cancel>(r, take);
        break;
      case Tag(8, kBytes):
        TakeFrame<Closed>(r, take);
        break;
      case Tag(6, kBytes):
        TakeFrame<Chunk>(r, take);
        break;
      case Tag(kMemory, kBytes):
        TakeConsumed(r, take);
        break;
      default:
        r.Skip();
    }
  }
  return r.status();
}

}  // namespace weft::rpc
