// The part of References about objects that are still being made: a creating
// call carries its creator's token, so that its reference is used and passed on
// before the call has been answered.

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rref/references.h"

namespace weft::rref {

// Named, so that it has the same name from any compiler.
namespace internal {

// Called by the owner of `object`: whether the call that makes it may still
// come.
Future<void> AskCreator(rpc::CallContext& context, rpc::ObjectId object) {
  auto* const references = context.Local<References>();
  if (references == nullptr) return MakeReady();
  return references->ServeAskCreator(context.peer(), object);
}
WEFT_RPC_INLINE_IDEMPOTENT(AskCreator);

}  // namespace internal

namespace {

template <typename... T>
absl::StatusOr<Bytes> AsBytes(const T&... values) {
  rpc::Encoder e;
  e.Write(values...);
  WEFT_ASSIGN_OR_RETURN(const Slices slices, std::move(e).Finish());
  std::string bytes;
  for (const Bytes& slice : slices) {
    bytes.append(slice.view().data(), slice.size());
  }
  return Bytes::Own(std::move(bytes));
}

// Only a request makes an object, or waits for one.
absl::Status CheckOfRequest(const rpc::CodecContext& context,
                            absl::string_view kind) {
  if (context.message == rpc::CodecContext::Message::kRequest) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a reply of ", context.peer.ToString(),
      " carries an attachment of kind '", kind, "', which only requests do"));
}

// The attachment of a call that waits for `object`.
class AwaitStaged final : public rpc::Attachment {
 public:
  explicit AwaitStaged(const rpc::ObjectId& object) : object_(object) {}
  absl::StatusOr<Bytes> Freeze() override { return AsBytes(object_); }
  void OnOutcome(uint64_t, rpc::AttachmentOutcome) override {}

 private:
  const rpc::ObjectId object_;
};

}  // namespace

// What a creating call carries.
class References::CreationStaged final : public rpc::Attachment {
 public:
  CreationStaged(std::shared_ptr<References> references, ForkId fork,
                 uint64_t secret)
      : references_(std::move(references)), fork_(fork), secret_(secret) {}
  absl::StatusOr<Bytes> Freeze() override {
    return AsBytes(fork_.number, secret_);
  }
  void OnOutcome(uint64_t call, rpc::AttachmentOutcome outcome) override {
    references_->CreationSettled(fork_, call, outcome);
  }

 private:
  const std::shared_ptr<References> references_;
  const ForkId fork_;
  const uint64_t secret_;
};

// Lives at the owner as long as the creating call.
class References::CreationReceipt final : public rpc::ReceivedAttachment {
 public:
  CreationReceipt(std::shared_ptr<References> references, const Token& token)
      : references_(std::move(references)), token_(token) {}
  ~CreationReceipt() override { references_->CreatingCallEnded(token_); }

 private:
  const std::shared_ptr<References> references_;
  const Token token_;
};

// A call that waits for its object, which is not made yet.
class References::AwaitReceipt final : public rpc::ReceivedAttachment {
 public:
  AwaitReceipt(std::shared_ptr<References> references,
               const rpc::ObjectId& object, uint64_t number, Future<void> made)
      : references_(std::move(references)),
        object_(object),
        number_(number),
        made_(std::move(made)) {}
  ~AwaitReceipt() override { references_->DropAwaiting(object_, number_); }
  Future<void> Settled() override { return made_; }

 private:
  const std::shared_ptr<References> references_;
  const rpc::ObjectId object_;
  const uint64_t number_;
  const Future<void> made_;
};

// ------------------------------------------------------------ the creator

References::Creation References::PrepareCreation() {
  Creation creation;
  MutexLock lock(mu_);
  creation.fork = NewFork();
  OpenCreation& open = creations_[creation.fork];
  open.secret = NewSecret();
  creation.attachment = std::make_unique<CreationStaged>(
      shared_from_this(), creation.fork, open.secret);
  return creation;
}

std::shared_ptr<Reference> References::BeginCreation(
    const ForkId& fork, const rpc::ObjectId& object, const Future<void>& made) {
  std::shared_ptr<Reference> reference;
  {
    Tasks tasks;
    MutexLock lock(mu_);
    OpenCreation& open = creations_[fork];
    open.has_begun = true;
    open.object = object;
    creation_of_[object] = fork;
    const Token token{object, fork, open.secret};
    ready_.try_emplace(fork, driver_);
    Tell(UserTable::Creating{token}, &tasks);
    reference = MakeReference(token);
  }
  made.OnReady([self = shared_from_this(), fork](const absl::Status& status) {
    self->CreationEnded(fork, status);
  });
  return reference;
}

void References::CreationSettled(const ForkId& fork, uint64_t call,
                                 rpc::AttachmentOutcome outcome) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  MutexLock lock(mu_);
  const auto it = creations_.find(fork);
  if (it == creations_.end()) return;
  it->second.is_settled = true;
  it->second.outcome = outcome;
  // It was never numbered: there is no object, and nobody has a reference.
  if (call == 0 && !it->second.has_begun) {
    creations_.erase(it);
  } else {
    EndCreation(fork, &tasks);
  }
}

void References::CreationEnded(const ForkId& fork, const absl::Status& status) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  MutexLock lock(mu_);
  Tell(UserTable::Event(UserTable::Created{fork, status}), &tasks);
  const auto it = creations_.find(fork);
  if (it != creations_.end()) {
    it->second.has_ended = true;
    it->second.has_failed = !status.ok();
    EndCreation(fork, &tasks);
  }
}

// Once the call has ended here and it is known whether the owner has seen it.
// What a call that failed here may have made there is deleted.
void References::EndCreation(const ForkId& fork, Tasks* tasks) {
  const auto it = creations_.find(fork);
  OpenCreation& open = it->second;
  if (!open.has_ended || !open.is_settled) return;
  if (open.has_failed && open.outcome == rpc::AttachmentOutcome::kDelivered) {
    const WorkerKey owner = open.object.owner;
    deletions_[owner].waiting.push_back(
        UserTable::SendDelete{open.object, fork});
    SendDeletions(owner, tasks);
  }
  for (Promise<void>& asked : open.asked) {
    tasks->Set<void>(std::move(asked), absl::OkStatus());
  }
  creation_of_.erase(open.object);
  creations_.erase(it);
}

Future<void> References::ServeAskCreator(const rpc::Worker& owner,
                                         const rpc::ObjectId& object) {
  if (object.owner != owner.key) {
    return MakeReady<void>(absl::PermissionDeniedError(
        absl::StrCat("object ", object.ToString(), " is not of ", owner.name)));
  }
  MutexLock lock(mu_);
  const auto it = creation_of_.find(object);
  if (it == creation_of_.end()) return MakeReady();
  std::vector<Promise<void>>& asked = creations_[it->second].asked;
  asked.emplace_back();
  return asked.back().future();
}

// ------------------------------------------------------------ the owner

bool References::IsMade(const rpc::ObjectId& object,
                        rpc::ObjectTable::Object* found) const {
  auto held = agent().objects().Find(object, object.creator, nullptr);
  if (!held.ok()) return owner_.Contains(object);
  *found = *std::move(held);
  return true;
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>>
References::TakeCreation(const rpc::CodecContext& context, const Bytes& bytes) {
  WEFT_RETURN_IF_ERROR(CheckOfRequest(context, kCreationKind));
  const rpc::Received received{Slices{bytes}};
  rpc::Decoder d(received);
  Token token;
  token.object = {key(), context.peer, context.call};
  token.fork.parent = context.peer;
  WEFT_RETURN_IF_ERROR(d.Read(token.fork.number, token.secret));
  WEFT_RETURN_IF_ERROR(d.AtEnd());
  WEFT_RETURN_IF_ERROR(CheckToken(token));
  {
    Tasks tasks;
    MutexLock lock(mu_);
    if (is_closed_) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", name(), " has closed its references"));
    }
    Tell(OwnerTable::Event(OwnerTable::Expected{token}), &tasks);
  }
  return std::make_unique<CreationReceipt>(shared_from_this(), token);
}

void References::CreatingCallEnded(const Token& token) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  const WorkerKey creator = token.object.creator;
  rpc::ObjectTable::Object found;
  MutexLock lock(mu_);
  // It is not there either once its creator is gone.
  if (!IsMade(token.object, &found)) {
    const absl::Status why = absl::NotFoundError("its creation has failed");
    Tell(OwnerTable::Event(OwnerTable::NotMade{token.object, why}), &tasks);
    EndAwaiting(token.object, why, &tasks);
  } else {
    Register(token, weak_agent()->NameOf(creator));
    Tell(OwnerTable::Event(OwnerTable::Made{token}), &tasks);
    if (!owner_.Holds(token.object, token.fork, creator)) {
      registered_.erase({token.object, token.fork});
      tasks.Add([this, object = token.object, creator] {
        agent().objects().Release(object, creator).IgnoreError();
      });
    }
    EndAwaiting(token.object, absl::OkStatus(), &tasks);
  }
}

void References::AskCreator(const rpc::ObjectId& object) {
  if (!agent().To(object.creator).status().ok()) return CreatorAnswered(object);
  weak_agent()->CallUntilAnswered(
      object.creator, absl::InfiniteDuration(), internal::AskCreator,
      [self = shared_from_this(), object](const absl::Status&) {
        self->CreatorAnswered(object);
      },
      object);
}

// The creating call has come by now, or never will.
void References::CreatorAnswered(const rpc::ObjectId& object) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  rpc::ObjectTable::Object found;
  MutexLock lock(mu_);
  if (owner_.Expects(object) || IsMade(object, &found)) return;
  Tell(OwnerTable::Event(OwnerTable::NotMade{
           object, absl::NotFoundError(
                       "its creating call failed, or its last reference "
                       "ended before this one was registered")}),
       &tasks);
}

// ------------------------------------------------------------ calls that wait

std::unique_ptr<rpc::Attachment> References::AwaitObject(
    const rpc::ObjectId& object) {
  return std::make_unique<AwaitStaged>(object);
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> References::TakeAwait(
    const rpc::CodecContext& context, const Bytes& bytes) {
  WEFT_RETURN_IF_ERROR(CheckOfRequest(context, kAwaitKind));
  const rpc::Received received{Slices{bytes}};
  rpc::Decoder d(received);
  rpc::ObjectId object;
  WEFT_RETURN_IF_ERROR(d.Read(object));
  WEFT_RETURN_IF_ERROR(d.AtEnd());
  if (object.owner != key() || object.creator != context.peer) {
    return absl::PermissionDeniedError(
        absl::StrCat("object ", object.ToString(), " is not one that ",
                     context.peer.ToString(), " makes at ", name()));
  }
  Promise<void> promise;
  Future<void> made = promise.future();
  rpc::ObjectTable::Object found;
  MutexLock lock(mu_);
  const uint64_t number = ++awaits_;
  if (IsMade(object, &found) || is_closed_) {
    promise.Set(absl::OkStatus());  // closed: the call finds no object
  } else {
    awaiting_[object].push_back({number, std::move(promise)});
  }
  return std::make_unique<AwaitReceipt>(shared_from_this(), object, number,
                                        std::move(made));
}

void References::EndAwaiting(const rpc::ObjectId& object,
                             const absl::Status& status, Tasks* tasks) {
  const auto it = awaiting_.find(object);
  if (it == awaiting_.end()) return;
  for (Awaiting& call : it->second) {
    tasks->Set<void>(std::move(call.promise), status);
  }
  awaiting_.erase(it);
}

void References::DropAwaiting(const rpc::ObjectId& object, uint64_t number) {
  std::vector<Awaiting> dropped;  // ends without the lock
  MutexLock lock(mu_);
  const auto it = awaiting_.find(object);
  if (it == awaiting_.end()) return;
  std::vector<Awaiting> kept;
  for (Awaiting& call : it->second) {
    (call.number == number ? dropped : kept).push_back(std::move(call));
  }
  it->second = std::move(kept);
  if (it->second.empty()) awaiting_.erase(it);
}

}  // namespace weft::rref
