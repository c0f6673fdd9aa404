#include "weft/rpc/attachment.h"

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {

const char* NameOf(AttachmentOutcome outcome) {
  switch (outcome) {
    case AttachmentOutcome::kDelivered:
      return "delivered";
    case AttachmentOutcome::kRefused:
      return "refused";
    case AttachmentOutcome::kAbandoned:
      return "abandoned";
  }
  return "unknown";
}

Attachment* StagedAttachments::Find(absl::string_view kind) const {
  const auto it = staged_.find(kind);
  return it == staged_.end() ? nullptr : it->second.get();
}

Attachment* StagedAttachments::Add(absl::string_view kind,
                                   std::unique_ptr<Attachment> attachment) {
  return staged_.emplace(kind, std::move(attachment)).first->second.get();
}

absl::StatusOr<FrozenAttachments> StagedAttachments::Freeze() {
  FrozenAttachments frozen;
  for (const auto& [kind, attachment] : staged_) {
    absl::StatusOr<Bytes> bytes = CatchToStatus(
        [&attachment = attachment] { return attachment->Freeze(); });
    if (!bytes.ok()) return std::move(bytes).status();
    frozen.push_back({kind, *std::move(bytes)});
  }
  const int64_t size = TotalSize(frozen);
  if (frozen.size() > FrozenAttachment::kMostOfAMessage ||
      size > static_cast<int64_t>(FrozenAttachment::kMostBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the message has ", frozen.size(), " attachments of ", size,
        " bytes together; at most ", FrozenAttachment::kMostOfAMessage, " of ",
        FrozenAttachment::kMostBytes,
        " bytes travel with one: send less in "
        "one call"));
  }
  return frozen;
}

void StagedAttachments::Tell(uint64_t call, AttachmentOutcome outcome) {
  if (told_.exchange(true)) return;
  for (const auto& [kind, attachment] : staged_) {
    attachment->OnOutcome(call, outcome);
  }
}

ReceivedAttachment* ReceivedAttachments::Find(absl::string_view kind) const {
  const auto it = received_.find(kind);
  return it == received_.end() ? nullptr : it->second.get();
}

void ReceivedAttachments::Add(absl::string_view kind,
                              std::unique_ptr<ReceivedAttachment> attachment) {
  received_.emplace(kind, std::move(attachment));
}

void ReceivedAttachments::WhenSettled(
    std::function<void(const absl::Status&)> settled) const {
  std::vector<Future<void>> all;
  for (const auto& [kind, attachment] : received_) {
    all.push_back(attachment->Settled());
  }
  struct Waiting {
    Waiting(size_t count, std::function<void(const absl::Status&)> told)
        : left(count + 1), errors(count), settled(std::move(told)) {}
    // One is done; `left` counts this function, too, so that the last to come
    // finds all errors set.
    void Done() {
      if (left.fetch_sub(1) > 1) return;
      absl::Status first;
      for (const absl::Status& error : errors) first.Update(error);
      settled(first);
    }
    std::atomic<size_t> left;
    std::vector<absl::Status> errors;  // each set by one thread
    const std::function<void(const absl::Status&)> settled;
  };
  auto waiting = std::make_shared<Waiting>(all.size(), std::move(settled));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].OnReady([waiting, i](const absl::Status& status) {
      waiting->errors[i] = status;
      waiting->Done();
    });
  }
  waiting->Done();
}

absl::Status AttachmentReceivers::Add(
    absl::string_view kind, std::shared_ptr<AttachmentReceiver> receiver) {
  if (kind.empty() || kind.size() > FrozenAttachment::kMostKindBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the kind of an attachment has ", kind.size(),
                     " bytes; wanted 1 to ", FrozenAttachment::kMostKindBytes));
  }
  MutexLock lock(mu_);
  if (receivers_.emplace(kind, std::move(receiver)).second) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat("attachments of kind ", kind, " have a receiver here"));
}

absl::StatusOr<std::shared_ptr<ReceivedAttachments>> AttachmentReceivers::Take(
    const CodecContext& context, const FrozenAttachments& attachments) const {
  if (attachments.empty()) return nullptr;
  auto taken = std::make_shared<ReceivedAttachments>();
  for (const FrozenAttachment& one : attachments) {
    std::shared_ptr<AttachmentReceiver> receiver;
    {
      MutexLock lock(mu_);
      const auto it = receivers_.find(one.kind);
      if (it != receivers_.end()) receiver = it->second;
    }
    if (receiver == nullptr) {
      return absl::UnimplementedError(absl::StrCat(
          "nothing here takes an attachment of kind '", one.kind, "' from ",
          context.peer.ToString(),
          ": this program does not use the library that sends it"));
    }
    auto received =
        CatchToStatus([&] { return receiver->Take(context, one.bytes); });
    if (!received.ok()) return std::move(received).status();
    taken->Add(one.kind, *std::move(received));
  }
  return taken;
}

void AttachmentReceivers::Clear() {
  decltype(receivers_) ended;
  MutexLock lock(mu_);
  receivers_.swap(ended);  // they end without the lock
}

}  // namespace weft::rpc
