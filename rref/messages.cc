// The part of References that puts references into messages, and takes them
// out.

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rref/references.h"

namespace weft::rref {

namespace {

// ------------------------------------------------------------ tokens as bytes

void Write(const Token& token, rpc::Encoder* e) {
  e->Write(token.object, token.fork.parent, token.fork.number, token.secret);
}

absl::Status Read(rpc::Decoder* d, Token* token) {
  return d->Read(token->object, token->fork.parent, token->fork.number,
                 token->secret);
}

// An attachment is at most 1 MiB; a token takes at least 8 bytes.
constexpr uint64_t kMostTokens = uint64_t{1} << 17;

// A token in a message. `registered`: its sender is the owner, which has
// counted the fork.
struct Sent {
  Token token;
  bool registered = false;
};

absl::StatusOr<Bytes> ToBytes(const std::vector<Sent>& tokens) {
  rpc::Encoder e;
  e.Varint(tokens.size());
  for (const Sent& sent : tokens) {
    Write(sent.token, &e);
    e.Write(sent.registered);
  }
  WEFT_ASSIGN_OR_RETURN(const Slices slices, std::move(e).Finish());
  std::string bytes;
  for (const Bytes& slice : slices) {
    bytes.append(slice.view().data(), slice.size());
  }
  return Bytes::Own(std::move(bytes));
}

absl::StatusOr<std::vector<Sent>> FromBytes(const Bytes& bytes) {
  const rpc::Received received{Slices{bytes}};
  rpc::Decoder d(received);
  uint64_t size = 0;
  WEFT_RETURN_IF_ERROR(d.Varint(size));
  if (size > kMostTokens) return rpc::Decoder::Malformed("too many references");
  std::vector<Sent> tokens;
  for (uint64_t i = 0; i < size; ++i) {
    Sent sent;
    WEFT_RETURN_IF_ERROR(Read(&d, &sent.token));
    WEFT_RETURN_IF_ERROR(d.Read(sent.registered));
    tokens.push_back(sent);
  }
  WEFT_RETURN_IF_ERROR(d.AtEnd());
  return tokens;
}

}  // namespace

// ------------------------------------------------------------ what travels

// The children that go with one message.
class References::Staged final : public rpc::Attachment {
 public:
  Staged(std::shared_ptr<References> references, WorkerKey to)
      : references_(std::move(references)), to_(to) {}

  size_t Add(const Sent& sent) {
    tokens_.push_back(sent);
    return tokens_.size() - 1;
  }
  absl::StatusOr<Bytes> Freeze() override { return ToBytes(tokens_); }
  void OnOutcome(uint64_t, rpc::AttachmentOutcome outcome) override {
    for (const Sent& sent : tokens_) {
      references_->SettleChild(sent.token, to_, outcome);
    }
  }

 private:
  const std::shared_ptr<References> references_;
  const WorkerKey to_;
  std::vector<Sent> tokens_;
};

// The references that came with one message. Those of which no value was made
// are given up when it goes.
class References::Receipt final : public rpc::ReceivedAttachment {
 public:
  explicit Receipt(std::vector<std::shared_ptr<Reference>> references)
      : references_(std::move(references)) {}

  Future<void> Settled() override {
    std::vector<Future<void>> ready;
    for (const auto& reference : references_) {
      ready.push_back(reference->ready());
    }
    return WhenAllOk(std::move(ready));
  }
  const std::vector<std::shared_ptr<Reference>>& references() const {
    return references_;
  }

 private:
  const std::vector<std::shared_ptr<Reference>> references_;
};

void References::Encode(const Reference& reference, rpc::Encoder& encoder) {
  const WorkerKey to = encoder.context().peer;
  rpc::Attachment* const staged = encoder.Stage(
      kKind, [&] { return std::make_unique<Staged>(shared_from_this(), to); });
  if (staged == nullptr) return;  // the encoding fails and says why
  if (absl::Status status = reference.status(); !status.ok()) {
    return encoder.Fail(std::move(status));
  }
  Sent sent;
  absl::StatusOr<Token> child = StageChild(reference, to, &sent.registered);
  if (!child.ok()) return encoder.Fail(child.status());
  sent.token = *child;
  encoder.Varint(static_cast<Staged*>(staged)->Add(sent));
}

absl::StatusOr<Token> References::StageChild(const Reference& parent,
                                             WorkerKey to, bool* registered) {
  Tasks tasks;
  MutexLock lock(mu_);
  // Close() may have given the parent up since it was looked at.
  WEFT_RETURN_IF_ERROR(CheckOpen());
  Token child = parent.token();
  child.fork = NewFork();
  if (owner_.Contains(child.object)) {
    const rpc::Worker holder{weak_agent()->NameOf(to), to, ""};
    if (agent().objects().Hold(child.object, holder).ok()) {
      Tell(OwnerTable::Shared{child, to}, &tasks);
      Register(child, holder.name);
      *registered = true;
      return child;
    }
  }
  Tell(UserTable::Shared{parent.token().fork, child.fork, to}, &tasks);
  return child;
}

void References::SettleChild(const Token& child, WorkerKey to,
                             rpc::AttachmentOutcome outcome) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  MutexLock lock(mu_);
  Tell(UserTable::ChildSettled{child.fork}, &tasks);
  const bool owned = child.object.owner == key();
  if (owned && outcome != rpc::AttachmentOutcome::kDelivered) {
    if (owner_.Holds(child.object, child.fork, to)) {
      registered_.erase({child.object, child.fork});
      tasks.Add([this, object = child.object, to] {
        agent().objects().Release(object, to).IgnoreError();
      });
    }
    Tell(OwnerTable::ShareFailed{child.object, child.fork}, &tasks);
  }
}

namespace {

absl::Status CameTwice(const Token& token) {
  return absl::AlreadyExistsError(absl::StrCat(
      token.fork.ToString(), " of object ", token.object.ToString(),
      " came a second time; a reference has one holder"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>>
References::TakeReferences(const rpc::CodecContext& context,
                           const Bytes& bytes) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Sent> tokens, FromBytes(bytes));
  absl::flat_hash_set<ForkId> forks;
  std::vector<rpc::Target> owners;
  for (const auto& [token, unused] : tokens) {
    WEFT_RETURN_IF_ERROR(CheckToken(token));
    // Whoever sends a reference makes a fork of its own for it. One that names
    // another's might be one that this agent holds, or will make.
    if (token.fork.parent != context.peer) {
      return absl::PermissionDeniedError(absl::StrCat(
          token.fork.ToString(), " of object ", token.object.ToString(),
          " came from ", context.peer.ToString(),
          "; a reference is sent by the parent of its fork"));
    }
    if (!forks.insert(token.fork).second) return CameTwice(token);
    // Else the message would wait for an owner that may never be.
    owners.push_back(OwnerOf(token.object));
    if (absl::Status none = owners.back().status(); !none.ok()) {
      return Reworded(
          none, absl::StrCat("the owner of object ", token.object.ToString(),
                             ": ", none.message()));
    }
  }
  std::vector<std::shared_ptr<Reference>> references;
  Tasks tasks;
  MutexLock lock(mu_);
  if (is_closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", name(), " has closed its references"));
  }
  for (const auto& [token, unused] : tokens) {
    if (user_.StateOf(token.fork) != UserTable::State::kUnknown) {
      return CameTwice(token);
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& [token, counted] = tokens[i];
    ready_.try_emplace(token.fork, driver_);
    references.push_back(std::make_shared<Reference>(
        shared_from_this(), token, owners[i], WhenReady(token.fork)));
    const bool registered = counted && token.object.owner == context.peer;
    Tell(UserTable::Received{token, registered}, &tasks);
  }
  return std::make_unique<Receipt>(std::move(references));
}

absl::StatusOr<std::shared_ptr<Reference>> References::Decode(
    rpc::Decoder& decoder) {
  uint64_t index = 0;
  WEFT_RETURN_IF_ERROR(decoder.Varint(index));
  auto* const receipt = static_cast<Receipt*>(decoder.attachment(kKind));
  if (receipt == nullptr || index >= receipt->references().size()) {
    return rpc::Decoder::Malformed("a reference without its token");
  }
  return receipt->references()[index];
}

}  // namespace weft::rref
