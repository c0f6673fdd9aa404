#include "weft/dist_autograd/recording.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/autograd/checkpoint.h"
#include "weft/base/status_macros.h"
#include "weft/device/context.h"
#include "weft/dist_autograd/context_codec.h"
#include "weft/dist_autograd/receive_node.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {

namespace {

// What a recorded message carries.
struct Header {
  ContextId context;
  uint64_t number = 0;  // 0: no slots, so no gradients will come
  uint64_t slots = 0;
  MessageSet lineage;    // of the slots, without the message itself
  std::string function;  // of a request, for reports
};

// The most slots of one message: an honest one has a few.
constexpr uint64_t kMostSlots = 1 << 16;
constexpr size_t kMostNameBytes = 1 << 10;

absl::StatusOr<Bytes> ToBytes(const Header& header) {
  rpc::Encoder e;
  e.Write(header.context);
  e.Varint(header.number);
  e.Varint(header.slots);
  e.Varint(header.lineage.producers().size());
  for (const auto& [producer, intervals] : header.lineage.producers()) {
    e.Write(producer, intervals);
  }
  e.Write(header.function);
  WEFT_ASSIGN_OR_RETURN(const Slices slices, std::move(e).Finish());
  std::string bytes;
  for (const Bytes& slice : slices) {
    bytes.append(slice.view().data(), slice.size());
  }
  return Bytes::Own(std::move(bytes));
}

absl::StatusOr<Header> FromBytes(const Bytes& bytes) {
  const rpc::Received received{Slices{bytes}};
  rpc::Decoder d(received);
  Header header;
  uint64_t producers = 0;
  WEFT_RETURN_IF_ERROR(d.Read(header.context));
  if (header.context.number == 0) {
    return rpc::Decoder::Malformed("a context without number");
  }
  WEFT_RETURN_IF_ERROR(d.Varint(header.number));
  WEFT_RETURN_IF_ERROR(d.Varint(header.slots));
  WEFT_RETURN_IF_ERROR(d.Varint(producers));
  if (header.slots > kMostSlots || producers > kMostIntervals ||
      header.number >= kLastMessage ||
      (header.number == 0) != (header.slots == 0)) {
    return rpc::Decoder::Malformed("a recorded message that cannot be");
  }
  for (uint64_t i = 0; i < producers; ++i) {
    WorkerKey producer;
    MessageIntervals intervals;
    WEFT_RETURN_IF_ERROR(d.Read(producer, intervals));
    // Before they are sorted, which takes longer the more there are.
    if (intervals.size() > kMostIntervals ||
        header.lineage.intervals() + intervals.size() > kMostIntervals) {
      return rpc::Decoder::Malformed("a lineage of too many intervals");
    }
    for (const MessageInterval& one : intervals) {
      header.lineage.Add(producer, one);
    }
  }
  WEFT_RETURN_IF_ERROR(d.Read(header.function));
  if (header.function.size() > kMostNameBytes) {
    return rpc::Decoder::Malformed("a function name that is too long");
  }
  WEFT_RETURN_IF_ERROR(d.AtEnd());
  return header;
}

// The history of the values of one message, at its producer.
class Staged final : public rpc::Attachment {
 public:
  Staged(std::shared_ptr<Context> context, MessageLabel label)
      : context_(std::move(context)), label_(std::move(label)) {}

  size_t Add(const Variable& variable) {
    const Device device = variable.value().device();
    slots_.push_back(
        {variable.edge(), variable.shape(), variable.dtype(), device,
         device.is_cpu() ? nullptr : device.context()->shared_from_this()});
    return slots_.size() - 1;
  }

  absl::StatusOr<Bytes> Freeze() override {
    Header header;
    header.context = context_->id();
    header.slots = slots_.size();
    if (!label_.is_reply) header.function = label_.function;
    WEFT_RETURN_IF_ERROR(context_->AddPeer(label_.to));
    if (!slots_.empty()) {
      std::vector<Edge> edges;
      for (const Slot& slot : slots_) edges.push_back(slot.edge);
      WEFT_ASSIGN_OR_RETURN(header.lineage, context_->LineageOf(edges));
      number_ = context_->AddSend(std::move(slots_), std::move(label_));
      header.number = number_;
    }
    return ToBytes(header);
  }

  void OnOutcome(uint64_t, rpc::AttachmentOutcome outcome) override {
    const bool arrived = outcome == rpc::AttachmentOutcome::kDelivered;
    if (number_ != 0 && !arrived) context_->RemoveSend(number_);
  }

 private:
  const std::shared_ptr<Context> context_;
  MessageLabel label_;
  std::vector<Slot> slots_;
  uint64_t number_ = 0;
};

// The same at its consumer. A request is served until it ends.
class Receipt final : public rpc::ReceivedAttachment {
 public:
  Receipt(std::shared_ptr<Context> context, NodePtr node, uint64_t slots)
      : context_(std::move(context)), node_(std::move(node)), slots_(slots) {}
  ~Receipt() override {
    if (contexts_ != nullptr) contexts_->CallEnded(call_);
  }

  void Serve(std::shared_ptr<ContextTable> contexts,
             const ContextTable::Call& call, std::string function) {
    contexts->CallBegan(call, {context_, std::move(function)});
    contexts_ = std::move(contexts);
    call_ = call;
  }
  const std::shared_ptr<Context>& context() const { return context_; }
  absl::StatusOr<Variable> MakeVariable(Tensor value, uint64_t slot) const {
    if (slot < slots_ && value.defined() && IsFloating(value.dtype())) {
      return Variable(std::move(value), node_, static_cast<uint32_t>(slot));
    }
    return rpc::Decoder::Malformed(
        "a recorded value without its slot, or that can have no gradient");
  }

 private:
  const std::shared_ptr<Context> context_;
  const NodePtr node_;
  const uint64_t slots_;
  std::shared_ptr<ContextTable> contexts_;  // null: of a reply
  ContextTable::Call call_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Context>> ContextOf(
    const rpc::CallContext& call) {
  const auto* receipt = static_cast<Receipt*>(call.attachment(kRecordedKind));
  if (receipt != nullptr) return receipt->context();
  return absl::FailedPreconditionError(absl::StrCat(
      "the call of ", call.peer().name,
      " was not recorded: the caller makes it by dist_autograd::Scope::Call"));
}

std::unique_ptr<rpc::Attachment> StageRequest(std::shared_ptr<Context> context,
                                              WorkerKey to,
                                              std::string function) {
  return std::make_unique<Staged>(
      std::move(context),
      MessageLabel{std::move(function), to, /*is_reply=*/false});
}

void EncodeSlot(const Variable& variable, rpc::Encoder& encoder) {
  if (!variable.requires_grad()) return encoder.Varint(0);
  if (IsCheckpointing()) {
    return encoder.Fail(absl::UnimplementedError(
        "a recorded call within Checkpoint would be made again by the backward "
        "pass: make it outside, or let the callee checkpoint its part"));
  }
  rpc::Attachment* staged = encoder.Staged(kRecordedKind);
  const rpc::CodecContext& message = encoder.context();
  if (staged == nullptr &&
      message.message == rpc::CodecContext::Message::kReply) {
    const auto contexts = message.agent->Local<ContextTable>();
    ContextTable::Served served;
    if (contexts != nullptr) {
      served = contexts->FindCall({message.peer, message.call});
    }
    if (served.context != nullptr) {
      staged = encoder.Stage(kRecordedKind, [&] {
        return std::make_unique<Staged>(
            served.context,
            MessageLabel{served.function, message.peer, /*is_reply=*/true});
      });
      if (staged == nullptr) return;
    }
  }
  if (staged == nullptr) {
    return encoder.Fail(absl::FailedPreconditionError(
        message.message == rpc::CodecContext::Message::kNone
            ? "a Variable that requires a gradient cannot be a value of a "
              "stream, of which nothing is recorded: Detach() it, or send it "
              "by dist_autograd::Scope::Call"
            : "a Variable that requires a gradient travels in recorded calls "
              "only: use dist_autograd::Scope::Call, or Detach() it; the value "
              "of a remote one is dist_autograd::ValueOf"));
  }
  encoder.Varint(static_cast<Staged*>(staged)->Add(variable) + 1);
}

absl::Status DecodeSlot(rpc::Decoder& decoder, Tensor value,
                        Variable& variable) {
  uint64_t slot = 0;
  WEFT_RETURN_IF_ERROR(decoder.Varint(slot));
  if (slot == 0) {
    variable = Variable(std::move(value));
    return absl::OkStatus();
  }
  const auto* receipt =
      static_cast<Receipt*>(decoder.attachment(kRecordedKind));
  if (receipt == nullptr) {
    return rpc::Decoder::Malformed("a recorded value without its message");
  }
  WEFT_ASSIGN_OR_RETURN(variable,
                        receipt->MakeVariable(std::move(value), slot - 1));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> TakeRecorded(
    const std::shared_ptr<ContextTable>& contexts,
    const rpc::CodecContext& message, const Bytes& bytes,
    absl::FunctionRef<void(ContextId)> join) {
  WEFT_ASSIGN_OR_RETURN(Header header, FromBytes(bytes));
  const bool is_request =
      message.message == rpc::CodecContext::Message::kRequest;
  const WorkerKey creator = header.context.creator;
  if (creator != message.peer && creator != contexts->self() &&
      absl::IsNotFound(contexts->Find(header.context).status())) {
    // It could not be joined at one that nobody knows.
    const absl::Status known = message.agent->To(creator).status();
    if (absl::IsNotFound(known)) return known;
  }
  bool is_new = false;
  // A reply is of a context that this worker used in the request.
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> context,
                        is_request
                            ? contexts->FindOrAdd(header.context, &is_new)
                            : contexts->Find(header.context));
  WEFT_RETURN_IF_ERROR(context->AddPeer(message.peer));
  NodePtr node;
  if (header.slots > 0) {
    const MessageId id{message.peer, header.number};
    header.lineage.Add(id);
    header.lineage.Shorten(kMostIntervals);
    node = NodePtr(new ReceiveNode(header.context, id,
                                   static_cast<uint32_t>(header.slots),
                                   std::move(header.lineage)));
  }
  auto receipt =
      std::make_unique<Receipt>(context, std::move(node), header.slots);
  if (is_request) {
    receipt->Serve(contexts, {message.peer, message.call},
                   std::move(header.function));
  }
  if (is_new && creator != message.peer) join(header.context);
  return receipt;
}

}  // namespace weft::dist_autograd
