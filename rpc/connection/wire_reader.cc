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

// A field of a message: its tag, and what reads it where it has just begun.
template <uint64_t kTagOfField, typename Take>
struct Field {
  static constexpr uint64_t kTag = kTagOfField;
  Take take;
};
template <int kNumber, uint64_t kType, typename Take>
Field<Tag(kNumber, kType), Take> FieldOf(Take take) {
  return {std::move(take)};
}
template <int kNumber, typename T>
auto Number(T* value) {
  return FieldOf<kNumber, kVarint>([value](Reader& r) { r.Number(value); });
}
template <int kNumber, typename T>
auto Fixed(T* value) {
  return FieldOf < kNumber,
         sizeof(T) == 8 ? kFixed64
                        : kFixed32 > ([value](Reader& r) { r.Fixed(value); });
}
template <int kNumber, typename T>
auto Text(T* text) {
  return FieldOf<kNumber, kBytes>([text](Reader& r) { r.Text(text); });
}
auto Body(Slices* slices) {
  return FieldOf<kBody, kBytes>([slices](Reader& r) { r.Shared(slices); });
}
// A message, or one of several, that a Read below takes.
template <int kNumber, typename T>
auto Message(T* message) {
  return FieldOf<kNumber, kBytes>([message](Reader& r) { Read(r, message); });
}
template <int kNumber, typename T>
auto Ids(T* ids) {
  return FieldOf<kNumber, kBytes>([ids](Reader& r) { ReadIntervals(r, ids); });
}

// Reads a message that ends where `end` bytes remain. Other fields than these
// are skipped.
template <typename... Fields>
void ReadUntil(size_t end, Reader& r, const Fields&... fields) {
  while (const uint64_t tag = r.Next(end)) {
    const bool is_known =
        ((tag == Fields::kTag && (fields.take(r), true)) || ...);
    if (!is_known) r.Skip();
  }
}
// The message that is the field which has just begun.
template <typename... Fields>
void ReadFields(Reader& r, const Fields&... fields) {
  ReadUntil(r.End(), r, fields...);
}

void Read(Reader& r, rendezvous::WorkerKey* key) {
  ReadFields(r, Number<1>(&key->id), Number<2>(&key->epoch));
}

void Read(Reader& r, Hello* hello) {
  hello->magic = hello->min_version = hello->max_version = 0;
  ReadFields(r, Fixed<1>(&hello->magic), Number<2>(&hello->min_version),
             Number<3>(&hello->max_version), Text<4>(&hello->job),
             Text<5>(&hello->build), Text<6>(&hello->name),
             Message<7>(&hello->from), Message<8>(&hello->to),
             Fixed<9>(&hello->registry), Number<10>(&hello->generation),
             Number<11>(&hello->resumes));
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
  ReadFields(r, Text<1>(&name), Text<2>(&function.signature),
             Fixed<3>(&function.digest));
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
  ReadFields(r, Number<1>(&code), Text<2>(&error), Number<3>(&welcome->version),
             Number<4>(&welcome->forgotten), Number<5>(&welcome->replaced),
             Fixed<6>(&welcome->registry), Text<7>(&welcome->build),
             Number<8>(&limits.calls), Number<9>(&limits.bytes),
             Number<10>(&limits.nested_calls), Message<11>(&functions),
             Number<12>(&has_functions));
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
  ReadFields(r, Text<1>(&one.kind), Body(&bytes));
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
  const auto name = [&request](Reader& reader) {
    reader.Text(&request.name);
    request.function = request.name.view();
  };
  const auto trace = [&request](Reader& reader) {
    ReadTrace(reader, &request.trace);
  };
  ReadFields(r, Number<1>(&request.id), FieldOf<2, kBytes>(name),
             Fixed<3>(&request.signature), Number<4>(&timeout_us),
             Number<5>(&request.depth), Text<6>(&request.chain),
             FieldOf<7, kBytes>(trace), Number<8>(&frame->body_bytes),
             Number<9>(&request.keeps_result),
             Number<10>(&request.ordered_queue),
             Message<11>(&request.attachments), Body(&request.body));
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
  ReadFields(r, Text<1>(&key), Text<2>(&value));
}

void Read(Reader& r, ReplyFrame* frame) {
  frame->reply = std::make_shared<Reply>();
  Reply& reply = *frame->reply;
  uint64_t code = 0;
  uint8_t refusal = 0;
  std::string error;
  Details details;
  ReadFields(r, Number<1>(&reply.id), Number<2>(&code), Text<3>(&error),
             Number<4>(&refusal), Message<5>(&details),
             Message<6>(&reply.attachments), Number<8>(&frame->body_bytes),
             Body(&reply.body));
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

template <typename Ids>
void ReadIntervals(Reader& r, Ids* ids) {
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
  ReadFields(r, Ids<1>(&ack->ids), Ids<2>(&ack->confirm));
}

void Read(Reader& r, Cancel* cancel) { ReadFields(r, Ids<1>(&cancel->ids)); }

void Read(Reader& r, Closed* closed) {
  ReadFields(r, Ids<1>(&closed->seen), Ids<2>(&closed->never));
}

void Read(Reader& r, Chunk* chunk) {
  ReadFields(r, Number<1>(&chunk->id), Number<2>(&chunk->in_memory),
             Body(&chunk->data));
  if (chunk->in_memory > 0 && !chunk->data.empty()) {
    r.Fail("a chunk that is here and in shared memory");
  }
  CheckId(r, chunk->id);
}

// Nothing: of another kind.
std::optional<Consumed> ReadConsumed(Reader& r) {
  uint8_t kind = 0;
  Consumed consumed;
  ReadFields(r, Number<1>(&kind), Number<4>(&consumed.position));
  if (kind == 0 || kind > kConsumed) {
    r.Fail(absl::StrCat("shared memory with the kind ", kind));
  }
  if (kind != kConsumed) return std::nullopt;
  return consumed;
}

// Reads a T and hands it on.
template <int kNumber, typename T>
auto FrameOf(absl::FunctionRef<absl::Status(Frame&&)> take) {
  return FieldOf<kNumber, kBytes>([take](Reader& r) {
    Frame frame(std::in_place_type<T>);
    Read(r, &std::get<T>(frame));
    if (r.status().ok()) r.Fail(take(std::move(frame)));
  });
}

}  // namespace

absl::Status ReadBatch(const Slices& message, Instant now,
                       absl::FunctionRef<absl::Status(Frame&&)> take) {
  Reader r(message, now);
  const auto take_consumed = [take](Reader& reader) {
    const std::optional<Consumed> consumed = ReadConsumed(reader);
    if (reader.status().ok() && consumed.has_value()) {
      reader.Fail(take(*consumed));
    }
  };
  ReadUntil(0, r, FrameOf<1, Hello>(take), FrameOf<2, Welcome>(take),
            FrameOf<3, RequestFrame>(take), FrameOf<4, ReplyFrame>(take),
            FrameOf<5, Ack>(take), FrameOf<7, Cancel>(take),
            FrameOf<8, Closed>(take), FrameOf<6, Chunk>(take),
            FieldOf<kMemory, kBytes>(take_consumed));
  return r.status();
}

}  // namespace weft::rpc
