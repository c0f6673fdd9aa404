#include "weft/rpc/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {
namespace {

// Protobuf's wire types.
constexpr uint64_t kVarint = 0;
constexpr uint64_t kFixed64 = 1;
constexpr uint64_t kBytes = 2;
constexpr uint64_t kFixed32 = 5;

constexpr int kBody = 15;
constexpr int kRing = 14;
constexpr uint64_t kMaxId = uint64_t{1} << 62;
constexpr size_t kMaxText = 64 << 10;
constexpr size_t kMaxDetails = 16;  // payloads of a status

// ------------------------------------------------------------------ writing

void PutVarint(std::string* out, uint64_t value) {
  char bytes[10];
  size_t size = 0;
  while (value >= 0x80) {
    bytes[size++] = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  bytes[size++] = static_cast<char>(value);
  out->append(bytes, size);
}

void PutTag(std::string* out, int number, uint64_t type) {
  PutVarint(out, static_cast<uint64_t>(number) << 3 | type);
}

// As proto3 does, these leave out what is 0 or empty.
void PutNumber(std::string* out, int number, uint64_t value) {
  if (value == 0) return;
  PutTag(out, number, kVarint);
  PutVarint(out, value);
}

template <typename T>
void PutFixed(std::string* out, int number, T value) {
  if (value == 0) return;
  PutTag(out, number, sizeof(T) == 8 ? kFixed64 : kFixed32);
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void PutText(std::string* out, int number, absl::string_view text) {
  if (text.empty()) return;
  PutTag(out, number, kBytes);
  PutVarint(out, text.size());
  out->append(text.data(), text.size());
}

void PutKey(std::string* out, int number, rendezvous::WorkerKey key) {
  std::string fields;
  PutNumber(&fields, 1, key.id);
  PutNumber(&fields, 2, key.epoch);
  PutText(out, number, fields);
}

// ------------------------------------------------------------------ reading

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed batch: ", what));
}

// Walks over slices.
class Reader {
 public:
  explicit Reader(const Slices& slices)
      : slices_(slices), remaining_(TotalSize(slices)) {
    Skip(0);
  }

  size_t remaining() const { return remaining_; }

  absl::Status Varint(uint64_t* value) {
    // Most are one byte.
    if (remaining_ > 0 && slices_[slice_][offset_] < 0x80) {
      *value = slices_[slice_][offset_];
      Skip(1);
      return absl::OkStatus();
    }
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (remaining_ == 0) return Bad("it ends within a number");
      const uint8_t byte = slices_[slice_][offset_];
      Skip(1);
      if (shift == 63 && byte > 1) break;
      *value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return absl::OkStatus();
    }
    return Bad("a number of more than 64 bits");
  }

  template <typename T>
  absl::Status Fixed(T* value) {
    return Copy(value, sizeof(T));
  }

  absl::Status Text(size_t size, std::string* text) {
    if (size > kMaxText) return Bad(absl::StrCat("a text of ", size, " bytes"));
    if (size > remaining_) return Bad("it ends within a text");
    text->resize(size);
    return Copy(text->data(), size);
  }

  absl::Status Shared(size_t size, Slices* slices) {
    if (size > remaining_) return Bad("it ends within a body");
    slices->clear();
    while (size > 0) {
      const Bytes& slice = slices_[slice_];
      const size_t n = std::min(size, slice.size() - offset_);
      slices->push_back(slice.subspan(offset_, n));
      size -= n;
      Skip(n);
    }
    return absl::OkStatus();
  }

  absl::Status SkipField(uint64_t type, size_t size) {
    uint64_t ignored;
    switch (type) {
      case kVarint:
        return Varint(&ignored);
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      default:
        break;
    }
    if (size > remaining_) return Bad("it ends within an unknown field");
    Skip(size);
    return absl::OkStatus();
  }

 private:
  absl::Status Copy(void* to, size_t size) {
    if (size > remaining_) return Bad("it ends within a field");
    auto* out = static_cast<uint8_t*>(to);
    while (size > 0) {
      const Bytes& slice = slices_[slice_];
      const size_t n = std::min(size, slice.size() - offset_);
      std::memcpy(out, slice.data() + offset_, n);
      out += n;
      size -= n;
      Skip(n);
    }
    return absl::OkStatus();
  }

  void Skip(size_t size) {
    remaining_ -= size;
    offset_ += size;
    while (slice_ < slices_.size() && offset_ >= slices_[slice_].size()) {
      offset_ -= slices_[slice_].size();
      ++slice_;
    }
  }

  const Slices& slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  size_t remaining_;
};

// One field: its number, its type, and its length if that is kBytes.
struct Field {
  uint64_t number = 0;
  uint64_t type = 0;
  size_t size = 0;

  bool Is(uint64_t n, uint64_t t) const { return number == n && type == t; }
};

absl::Status ReadField(Reader* reader, Field* field) {
  uint64_t tag;
  WEFT_RETURN_IF_ERROR(reader->Varint(&tag));
  field->number = tag >> 3;
  field->type = tag & 7;
  field->size = 0;
  switch (field->type) {
    case kVarint:
    case kFixed64:
    case kFixed32:
      return absl::OkStatus();
    case kBytes: {
      uint64_t size;
      WEFT_RETURN_IF_ERROR(reader->Varint(&size));
      if (size > reader->remaining()) {
        return Bad(absl::StrCat("a field announces ", size, " bytes and ",
                                reader->remaining(), " are left"));
      }
      field->size = size;
      return absl::OkStatus();
    }
    default:
      return Bad(absl::StrCat("a field of the unknown type ", field->type));
  }
}

// Calls `read(field)`, which returns nullopt for one that it does not know,
// for each field of the next `size` bytes.
absl::Status ReadFields(
    Reader* reader, size_t size,
    absl::FunctionRef<std::optional<absl::Status>(const Field&)> read) {
  const size_t end = reader->remaining() - size;
  while (reader->remaining() > end) {
    Field field;
    WEFT_RETURN_IF_ERROR(ReadField(reader, &field));
    std::optional<absl::Status> known = read(field);
    WEFT_RETURN_IF_ERROR(
        known.has_value() ? *known : reader->SkipField(field.type, field.size));
    if (reader->remaining() < end) return Bad("a field overruns its frame");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadNumber(Reader* reader, T* value) {
  uint64_t number;
  WEFT_RETURN_IF_ERROR(reader->Varint(&number));
  *value = static_cast<T>(number);
  if constexpr (!std::is_same_v<T, bool>) {
    if (static_cast<uint64_t>(*value) != number) {
      return Bad("a number out of its range");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadKey(Reader* reader, size_t size, rendezvous::WorkerKey* key) {
  return ReadFields(reader, size,
                    [&](const Field& f) -> std::optional<absl::Status> {
                      if (f.Is(1, kVarint)) return ReadNumber(reader, &key->id);
                      if (f.Is(2, kVarint))
                        return ReadNumber(reader, &key->epoch);
                      return std::nullopt;
                    });
}

absl::Status ReadHello(Reader* r, size_t size, Hello* hello) {
  hello->magic = hello->min_version = hello->max_version = 0;
  return ReadFields(r, size,
                    [&](const Field& f) -> std::optional<absl::Status> {
                      if (f.Is(1, kFixed32)) return r->Fixed(&hello->magic);
                      if (f.Is(2, kVarint))
                        return ReadNumber(r, &hello->min_version);
                      if (f.Is(3, kVarint))
                        return ReadNumber(r, &hello->max_version);
                      if (f.Is(4, kBytes)) return r->Text(f.size, &hello->job);
                      if (f.Is(5, kBytes))
                        return r->Text(f.size, &hello->build);
                      if (f.Is(6, kBytes)) return r->Text(f.size, &hello->name);
                      if (f.Is(7, kBytes))
                        return ReadKey(r, f.size, &hello->from);
                      if (f.Is(8, kBytes))
                        return ReadKey(r, f.size, &hello->to);
                      if (f.Is(9, kFixed64)) return r->Fixed(&hello->registry);
                      if (f.Is(10, kVarint)) return ReadNumber(r, &hello->life);
                      if (f.Is(11, kVarint))
                        return ReadNumber(r, &hello->resumes);
                      return std::nullopt;
                    });
}

// A code that no status has counts as kUnknown.
absl::Status ToStatus(uint64_t code, absl::string_view message) {
  if (code > 16) code = static_cast<uint64_t>(absl::StatusCode::kUnknown);
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

absl::Status ReadFunction(Reader* r, size_t size, FunctionTable* functions) {
  std::string name;
  FunctionSignature function;
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kBytes)) return r->Text(f.size, &name);
        if (f.Is(2, kBytes)) return r->Text(f.size, &function.signature);
        if (f.Is(3, kFixed64)) return r->Fixed(&function.digest);
        return std::nullopt;
      }));
  if (functions->size() == kMaxFunctions) return Bad("too many functions");
  functions->emplace(std::move(name), std::move(function));
  return absl::OkStatus();
}

absl::Status ReadWelcome(Reader* r, size_t size, Welcome* welcome) {
  auto functions = std::make_shared<FunctionTable>();
  uint64_t code = 0;
  std::string error;
  bool has_functions = false;
  Limits& limits = welcome->limits;
  limits.calls = limits.bytes = limits.nested_calls = 0;
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kVarint)) return ReadNumber(r, &code);
        if (f.Is(2, kBytes)) return r->Text(f.size, &error);
        if (f.Is(3, kVarint)) return ReadNumber(r, &welcome->version);
        if (f.Is(4, kVarint)) return ReadNumber(r, &welcome->forgotten);
        if (f.Is(5, kVarint)) return ReadNumber(r, &welcome->replaced);
        if (f.Is(6, kFixed64)) return r->Fixed(&welcome->registry);
        if (f.Is(7, kBytes)) return r->Text(f.size, &welcome->build);
        if (f.Is(8, kVarint)) return ReadNumber(r, &limits.calls);
        if (f.Is(9, kVarint)) return ReadNumber(r, &limits.bytes);
        if (f.Is(10, kVarint)) return ReadNumber(r, &limits.nested_calls);
        if (f.Is(11, kBytes)) return ReadFunction(r, f.size, functions.get());
        if (f.Is(12, kVarint)) return ReadNumber(r, &has_functions);
        return std::nullopt;
      }));
  if (limits.calls < 0 || limits.bytes < 0 || limits.nested_calls < 0) {
    return Bad("a limit below 0");
  }
  if (has_functions) welcome->functions = std::move(functions);
  welcome->status = ToStatus(code, error);
  return absl::OkStatus();
}

absl::Status CheckId(uint64_t id) {
  if (id >= 1 && id < kMaxId) return absl::OkStatus();
  return Bad(absl::StrCat("a call with the id ", id));
}

// A body comes with its frame or in pieces, not both ways.
absl::Status CheckBody(const Slices& body, uint64_t body_bytes) {
  if (body_bytes == 0 || body.empty()) return absl::OkStatus();
  return Bad("a body that is here and yet to come");
}

absl::Status ReadTrace(Reader* r, size_t size, telemetry::TraceContext* trace) {
  std::string text;
  WEFT_RETURN_IF_ERROR(r->Text(size, &text));
  WEFT_ASSIGN_OR_RETURN(*trace, telemetry::ParseTraceparent(text));
  return absl::OkStatus();
}

absl::Status ReadRequest(Reader* r, size_t size, Instant now,
                         RequestFrame* frame) {
  frame->request = std::make_shared<Request>();
  Request& request = *frame->request;
  uint64_t timeout_us = 0;
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kVarint)) return ReadNumber(r, &request.id);
        if (f.Is(2, kBytes)) return r->Text(f.size, &request.function);
        if (f.Is(3, kFixed64)) return r->Fixed(&request.signature);
        if (f.Is(4, kVarint)) return ReadNumber(r, &timeout_us);
        if (f.Is(5, kVarint)) return ReadNumber(r, &request.depth);
        if (f.Is(6, kBytes)) return r->Text(f.size, &request.chain);
        if (f.Is(7, kBytes)) return ReadTrace(r, f.size, &request.trace);
        if (f.Is(8, kVarint)) return ReadNumber(r, &frame->body_bytes);
        if (f.Is(9, kVarint)) return ReadNumber(r, &request.keeps_result);
        if (f.Is(kBody, kBytes)) return r->Shared(f.size, &request.body);
        return std::nullopt;
      }));
  // Far beyond any limit, and still far from overflow.
  timeout_us = std::min<uint64_t>(timeout_us, int64_t{1} << 50);
  request.began = now;
  request.deadline = now + absl::Microseconds(static_cast<int64_t>(timeout_us));
  if (request.depth < 0) return Bad("a depth below 0");
  WEFT_RETURN_IF_ERROR(CheckId(request.id));
  return CheckBody(request.body, frame->body_bytes);
}

absl::Status ReadDetail(Reader* r, size_t size, std::string* key,
                        std::string* value) {
  return ReadFields(r, size,
                    [&](const Field& f) -> std::optional<absl::Status> {
                      if (f.Is(1, kBytes)) return r->Text(f.size, key);
                      if (f.Is(2, kBytes)) return r->Text(f.size, value);
                      return std::nullopt;
                    });
}

absl::Status ReadReply(Reader* r, size_t size, ReplyFrame* frame) {
  frame->reply = std::make_shared<Reply>();
  Reply& reply = *frame->reply;
  uint64_t code = 0;
  uint8_t refusal = 0;
  std::string error;
  std::vector<std::pair<std::string, std::string>> details;
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kVarint)) return ReadNumber(r, &reply.id);
        if (f.Is(2, kVarint)) return ReadNumber(r, &code);
        if (f.Is(3, kBytes)) return r->Text(f.size, &error);
        if (f.Is(4, kVarint)) return ReadNumber(r, &refusal);
        if (f.Is(5, kBytes)) {
          if (details.size() == kMaxDetails) {
            return Bad(absl::StrCat("more than ", kMaxDetails, " details"));
          }
          auto& [key, value] = details.emplace_back();
          return ReadDetail(r, f.size, &key, &value);
        }
        if (f.Is(8, kVarint)) return ReadNumber(r, &frame->body_bytes);
        if (f.Is(kBody, kBytes)) return r->Shared(f.size, &reply.body);
        return std::nullopt;
      }));
  reply.status = ToStatus(code, error);
  for (auto& [key, value] : details) {
    reply.status.SetPayload(key, absl::Cord(value));
  }
  if (refusal <= static_cast<uint8_t>(Refusal::kOverLimit)) {
    reply.refusal = static_cast<Refusal>(refusal);
  }
  WEFT_RETURN_IF_ERROR(CheckId(reply.id));
  return CheckBody(reply.body, frame->body_bytes);
}

absl::Status ReadIntervals(Reader* r, size_t size, Close* close) {
  const size_t end = r->remaining() - size;
  while (r->remaining() > end) {
    Interval interval;
    WEFT_RETURN_IF_ERROR(r->Varint(&interval.first));
    WEFT_RETURN_IF_ERROR(r->Varint(&interval.last));
    WEFT_RETURN_IF_ERROR(CheckId(interval.first));
    WEFT_RETURN_IF_ERROR(CheckId(interval.last));
    if (interval.first > interval.last || r->remaining() < end) {
      return Bad("an interval that is none");
    }
    close->ids.push_back(interval);
  }
  return absl::OkStatus();
}

absl::Status ReadClose(Reader* r, size_t size, Close* close) {
  return ReadFields(r, size,
                    [&](const Field& f) -> std::optional<absl::Status> {
                      if (f.Is(1, kBytes))
                        return ReadIntervals(r, f.size, close);
                      return std::nullopt;
                    });
}

absl::Status ReadPiece(Reader* r, size_t size, Piece* piece) {
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kVarint)) return ReadNumber(r, &piece->id);
        if (f.Is(2, kVarint)) return ReadNumber(r, &piece->in_ring);
        if (f.Is(kBody, kBytes)) return r->Shared(f.size, &piece->data);
        return std::nullopt;
      }));
  if (piece->in_ring > 0 && !piece->data.empty()) {
    return Bad("a piece that is here and in shared memory");
  }
  return CheckId(piece->id);
}

absl::Status ReadRingMessage(Reader* r, size_t size, RingMessage* message) {
  uint8_t kind = 0;
  WEFT_RETURN_IF_ERROR(
      ReadFields(r, size, [&](const Field& f) -> std::optional<absl::Status> {
        if (f.Is(1, kVarint)) return ReadNumber(r, &kind);
        if (f.Is(2, kVarint)) return ReadNumber(r, &message->token);
        if (f.Is(3, kVarint)) return ReadNumber(r, &message->bytes);
        if (f.Is(4, kVarint)) return ReadNumber(r, &message->position);
        return std::nullopt;
      }));
  if (kind < static_cast<uint8_t>(RingMessage::Kind::kWanted) ||
      kind > static_cast<uint8_t>(RingMessage::Kind::kConsumed)) {
    return Bad(absl::StrCat("shared memory with the kind ", kind));
  }
  message->kind = static_cast<RingMessage::Kind>(kind);
  return absl::OkStatus();
}

// Reads `field` as a T and hands it on.
template <typename T, typename Read>
absl::Status TakeFrame(Read read, absl::FunctionRef<absl::Status(Frame)> take) {
  T frame;
  WEFT_RETURN_IF_ERROR(read(&frame));
  return take(std::move(frame));
}

}  // namespace

void BatchWriter::Add(const Hello& hello) {
  std::string& fields = Begin();
  PutFixed(&fields, 1, hello.magic);
  PutNumber(&fields, 2, hello.min_version);
  PutNumber(&fields, 3, hello.max_version);
  PutText(&fields, 4, hello.job);
  PutText(&fields, 5, hello.build);
  PutText(&fields, 6, hello.name);
  PutKey(&fields, 7, hello.from);
  PutKey(&fields, 8, hello.to);
  PutFixed(&fields, 9, hello.registry);
  PutNumber(&fields, 10, hello.life);
  PutNumber(&fields, 11, hello.resumes);
  AddFrame(1, fields, {});
}

void BatchWriter::Add(const Welcome& welcome) {
  std::string& fields = Begin();
  PutNumber(&fields, 1, static_cast<uint64_t>(welcome.status.code()));
  PutText(&fields, 2, welcome.status.message());
  PutNumber(&fields, 3, welcome.version);
  PutNumber(&fields, 4, welcome.forgotten);
  PutNumber(&fields, 5, welcome.replaced);
  PutFixed(&fields, 6, welcome.registry);
  PutText(&fields, 7, welcome.build);
  PutNumber(&fields, 8, welcome.limits.calls);
  PutNumber(&fields, 9, welcome.limits.bytes);
  PutNumber(&fields, 10, welcome.limits.nested_calls);
  if (welcome.functions != nullptr) {
    for (const auto& [name, function] : *welcome.functions) {
      std::string entry;
      PutText(&entry, 1, name);
      PutText(&entry, 2, function.signature);
      PutFixed(&entry, 3, function.digest);
      PutText(&fields, 11, entry);
    }
    PutNumber(&fields, 12, 1);
  }
  AddFrame(2, fields, {});
}

void BatchWriter::Add(const Request& request, Instant now, bool body_follows) {
  std::string& fields = Begin();
  PutNumber(&fields, 1, request.id);
  PutText(&fields, 2, request.function);
  PutFixed(&fields, 3, request.signature);
  const int64_t us = absl::ToInt64Microseconds(request.deadline - now);
  PutNumber(&fields, 4, std::max<int64_t>(us, 0));
  PutNumber(&fields, 5, request.depth);
  PutText(&fields, 6, request.chain);
  if (request.trace.is_valid()) {
    PutText(&fields, 7, telemetry::FormatTraceparent(request.trace));
  }
  if (body_follows) PutNumber(&fields, 8, TotalSize(request.body));
  PutNumber(&fields, 9, request.keeps_result);
  AddFrame(3, fields, body_follows ? Slices() : request.body);
}

void BatchWriter::Add(const Reply& reply, bool body_follows) {
  std::string& fields = Begin();
  PutNumber(&fields, 1, reply.id);
  PutNumber(&fields, 2, static_cast<uint64_t>(reply.status.code()));
  PutText(&fields, 3, reply.status.message().substr(0, kMaxText));
  PutNumber(&fields, 4, static_cast<uint64_t>(reply.refusal));
  // What a reader would refuse is left out.
  size_t details = 0;
  reply.status.ForEachPayload(
      [&](absl::string_view key, const absl::Cord& value) {
        if (details == kMaxDetails) return;
        std::string entry;
        PutText(&entry, 1, key);
        PutText(&entry, 2, std::string(value));
        if (entry.size() >= kMaxText) return;
        PutText(&fields, 5, entry);
        ++details;
      });
  if (body_follows) PutNumber(&fields, 8, TotalSize(reply.body));
  AddFrame(4, fields, body_follows ? Slices() : reply.body);
}

void BatchWriter::Add(const Close& close) {
  std::string ids;
  for (const Interval interval : close.ids) {
    PutVarint(&ids, interval.first);
    PutVarint(&ids, interval.last);
  }
  std::string& fields = Begin();
  PutText(&fields, 1, ids);
  AddFrame(5, fields, {});
}

void BatchWriter::Add(const Piece& piece) {
  std::string& fields = Begin();
  PutNumber(&fields, 1, piece.id);
  PutNumber(&fields, 2, piece.in_ring);
  AddFrame(6, fields, piece.data);
}

void BatchWriter::Add(const RingMessage& message) {
  std::string& fields = Begin();
  PutNumber(&fields, 1, static_cast<uint64_t>(message.kind));
  PutNumber(&fields, 2, message.token);
  PutNumber(&fields, 3, message.bytes);
  PutNumber(&fields, 4, message.position);
  AddFrame(kRing, fields, {});
}

std::string& BatchWriter::Begin() {
  if (chunk_.capacity() < kChunkBytes) {
    chunk_.reserve(kChunkBytes);
    fields_.reserve(kChunkBytes);
  }
  fields_.clear();
  return fields_;
}

void BatchWriter::AddFrame(int number, const std::string& fields,
                           const Slices& body) {
  const size_t body_size = TotalSize(body);
  std::string body_head;  // short: it allocates nothing
  if (body_size > 0) {
    PutTag(&body_head, kBody, kBytes);
    PutVarint(&body_head, body_size);
  }
  PutTag(&chunk_, number, kBytes);
  PutVarint(&chunk_, fields.size() + body_head.size() + body_size);
  chunk_ += fields;
  chunk_ += body_head;
  for (const Bytes& slice : body) {
    if (slice.size() < kByReference) {
      chunk_.append(slice.view().data(), slice.size());
      continue;
    }
    if (!chunk_.empty()) {
      flushed_ += chunk_.size();
      slices_.push_back(Bytes::Own(std::move(chunk_)));
      chunk_.clear();
    }
    flushed_ += slice.size();
    slices_.push_back(slice);
  }
}

Slices BatchWriter::Finish() && {
  if (!chunk_.empty()) slices_.push_back(Bytes::Own(std::move(chunk_)));
  return std::move(slices_);
}

absl::Status ReadBatch(const Slices& message, Instant now,
                       absl::FunctionRef<absl::Status(Frame)> take) {
  Reader reader(message);
  Reader* r = &reader;
  return ReadFields(
      r, r->remaining(), [&](const Field& f) -> std::optional<absl::Status> {
        if (f.type != kBytes) return std::nullopt;
        switch (f.number) {
          case 1:
            return TakeFrame<Hello>(
                [&](Hello* v) { return ReadHello(r, f.size, v); }, take);
          case 2:
            return TakeFrame<Welcome>(
                [&](Welcome* v) { return ReadWelcome(r, f.size, v); }, take);
          case 3:
            return TakeFrame<RequestFrame>(
                [&](RequestFrame* v) { return ReadRequest(r, f.size, now, v); },
                take);
          case 4:
            return TakeFrame<ReplyFrame>(
                [&](ReplyFrame* v) { return ReadReply(r, f.size, v); }, take);
          case 5:
            return TakeFrame<Close>(
                [&](Close* v) { return ReadClose(r, f.size, v); }, take);
          case 6:
            return TakeFrame<Piece>(
                [&](Piece* v) { return ReadPiece(r, f.size, v); }, take);
          case kRing:
            return TakeFrame<RingMessage>(
                [&](RingMessage* v) { return ReadRingMessage(r, f.size, v); },
                take);
          default:
            return std::nullopt;
        }
      });
}

}  // namespace weft::rpc
