#include "weft/rref/references.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/rpc/agent_parts.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/handle.h"
#include "weft/rref/control_calls.h"

namespace weft::rref {

namespace {

// ------------------------------------------------------------ what peers call

// Of an error.
constexpr size_t kMostExplained = 20;

// Of one message.
constexpr size_t kMostDeletions = 1000;

// Objects that an agent keeps by no call have numbers that no call of it to
// itself will have.
constexpr uint64_t kFirstKept = uint64_t{1} << 48;

Token MakeToken(const rpc::ObjectId& object, WorkerKey parent, uint64_t number,
                uint64_t secret) {
  return Token{object, ForkId{parent, number}, secret};
}

}  // namespace

// Named, so that they have the same name from any compiler.
namespace internal {

// The creator of an object shares it from now on.
Future<void> AdoptObject(rpc::CallContext& context, rpc::ObjectId object,
                         WorkerKey parent, uint64_t number, uint64_t secret) {
  auto* const references = context.Local<References>();
  if (references == nullptr) {
    return MakeReady<void>(absl::FailedPreconditionError(absl::StrCat(
        context.agent().name(),
        " has no rref::References: open them when the worker starts")));
  }
  return references->ServeAdopt(context.peer(),
                                MakeToken(object, parent, number, secret));
}
[[maybe_unused]] const bool kAdoptIsServed =
    rpc::internal::Register(rpc::internal::Idempotent(
        rpc::internal::Describe<&AdoptObject>(rpc::RunsOn::kTransport)));

Future<void> RegisterFork(rpc::CallContext& context, rpc::ObjectId object,
                          WorkerKey parent, uint64_t number, uint64_t secret) {
  auto* const references = context.Local<References>();
  if (references == nullptr) {
    return MakeReady<void>(absl::FailedPreconditionError(absl::StrCat(
        context.agent().name(),
        " has no rref::References: open them when the worker starts")));
  }
  return references->ServeRegister(context.peer(),
                                   MakeToken(object, parent, number, secret));
}
[[maybe_unused]] const bool kRegisterIsServed =
    rpc::internal::Register(rpc::internal::Idempotent(
        rpc::internal::Describe<&RegisterFork>(rpc::RunsOn::kTransport)));

// Forks that the caller deletes: the object, parent and number of each.
// Objects' destructors may run in it, so it is not inline.
using DeletedFork = std::tuple<rpc::ObjectId, WorkerKey, uint64_t>;
absl::Status DeleteForks(rpc::CallContext& context,
                         const std::vector<DeletedFork>& forks) {
  auto* const references = context.Local<References>();
  if (references == nullptr) return absl::OkStatus();
  absl::Status first;
  for (const auto& [object, parent, number] : forks) {
    first.Update(references->ServeDelete(context.peer(), object,
                                         ForkId{parent, number}));
  }
  return first;
}
WEFT_RPC_IDEMPOTENT(DeleteForks);

}  // namespace internal

using internal::AdoptObject;
using internal::DeletedFork;
using internal::DeleteForks;
using internal::RegisterFork;
using internal::UntilAnswered;

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

// The part of References that the agent owns: it ends with the agent.
class References::Receiver final : public rpc::AttachmentReceiver {
 public:
  explicit Receiver(std::shared_ptr<References> references)
      : references_(std::move(references)) {}
  ~Receiver() override { references_->AgentEnds(); }

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      const rpc::CodecContext& context, const Bytes& bytes) override {
    return references_->Take(context, bytes);
  }

 private:
  const std::shared_ptr<References> references_;
};

References::Use::Use(References* references) : references_(*references) {
  MutexLock lock(references_.mu_);
  has_agent_ = !references_.agent_has_ended_;
  if (has_agent_) ++references_.uses_;
}

References::Use::~Use() {
  if (!has_agent_) return;
  MutexLock lock(references_.mu_);
  --references_.uses_;
  references_.changed_.NotifyAll();
}

// ------------------------------------------------------------ life

References::References(rpc::Agent& agent, const ReferencesOptions& options)
    : agent_(agent),
      key_(agent.key()),
      name_(agent.name()),
      driver_(rpc::internal::PartsOf(agent).driver()),
      owner_(options.max_forks_per_holder) {}

absl::StatusOr<std::shared_ptr<References>> References::Open(
    rpc::Agent& agent, const ReferencesOptions& options) {
  auto references = std::make_shared<References>(agent, options);
  const auto receiver = std::make_shared<Receiver>(references);
  WEFT_RETURN_IF_ERROR(agent.SetAttachmentReceiver(kKind, receiver));
  WEFT_RETURN_IF_ERROR(references->TakeCreations());
  agent.SetLocal(references);
  references->peer_gone_ =
      agent.OnPeerGone([weak = std::weak_ptr<References>(references)](
                           const rpc::Agent::GonePeer& peer) {
        if (const auto books = weak.lock()) books->PeerGone(peer);
      });
  return references;
}

absl::StatusOr<std::shared_ptr<References>> References::Of(
    const rpc::Agent& agent) {
  std::shared_ptr<References> references = agent.Local<References>();
  if (references != nullptr) return references;
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", agent.name(),
                   " has no references: call rref::References::Open(agent) "
                   "when it starts"));
}

absl::Status References::Close(absl::Duration timeout) {
  const auto deadline = SteadyDeadline(timeout);
  const Use agent(this);
  Tasks tasks;
  {
    MutexLock lock(mu_);
    if (is_closed_.exchange(true)) return absl::OkStatus();
    std::vector<ForkId> forks;
    user_.ForEachFork([&forks](const Token& token, UserTable::State) {
      forks.push_back(token.fork);
    });
    for (const ForkId& fork : forks) {
      if (user_.HasHandle(fork)) Tell(UserTable::Dropped{fork}, &tasks);
    }
  }
  for (const auto& task : tasks) task();
  MutexLock lock(mu_);
  while (user_.forks() > 0) {
    if (!changed_.WaitUntil(mu_, deadline)) break;
  }
  if (user_.forks() == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("worker ", name_, ": references were still held after ",
                   absl::FormatDuration(timeout), ": ",
                   absl::StrJoin(ExplainHeld(kMostExplained), "; ")));
}

absl::Status References::CheckOpen() const {
  if (!is_closed()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", name_,
      " has closed its references: this one is of no use any more"));
}

void References::AgentEnds() {
  Tasks tasks;
  {
    MutexLock lock(mu_);
    is_closed_ = true;
    agent_has_ended_ = true;
    for (auto& [fork, promise] : ready_) {
      tasks.push_back(
          [ready = std::make_shared<Promise<void>>(std::move(promise))] {
            ready->Set(absl::CancelledError("the agent has ended"));
          });
    }
    ready_.clear();
    while (!awaiting_.empty()) {
      const rpc::ObjectId object = awaiting_.begin()->first;
      EndAwaiting(object, absl::CancelledError("the agent has ended"), &tasks);
    }
    for (auto& [fork, creation] : creations_) {
      for (Promise<void>& asked : creation.asked) {
        tasks.push_back(
            [asked = std::make_shared<Promise<void>>(std::move(asked))] {
              asked->Set(absl::CancelledError("the agent has ended"));
            });
      }
      creation.asked.clear();
    }
    while (uses_ > 0) changed_.Wait(mu_);
  }
  for (const auto& task : tasks) task();
}

absl::Status References::AwaitNoHolder(
    const std::function<bool(const std::string& holder)>& is_of,
    absl::Duration timeout) {
  const auto deadline = SteadyDeadline(timeout);
  MutexLock lock(mu_);
  for (bool in_time = true;;) {
    std::vector<std::string> left;
    for (const Holding& holding : HoldingsLocked()) {
      if (!is_of(holding.holder)) continue;
      left.push_back(
          absl::StrCat(holding.object.ToString(), " by ", holding.holder));
    }
    if (left.empty()) return absl::OkStatus();
    if (!in_time) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker ", name_,
          ": references to its objects were still held after ",
          absl::FormatDuration(timeout), ": ", absl::StrJoin(left, ", ")));
    }
    in_time = changed_.WaitUntil(mu_, deadline);
  }
}

void References::PeerGone(const rpc::Agent::GonePeer& peer) {
  const Use agent(this);
  if (!agent) return;
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("the owner of the object, worker ", peer.key.ToString(),
                   ", is gone: ", peer.why));
  Tasks tasks;
  std::vector<ForkOf> still;
  {
    MutexLock lock(mu_);
    Tell(UserTable::PeerGone{peer.key, why}, &tasks);
    Tell(OwnerTable::PeerGone{peer.key}, &tasks);
    absl::flat_hash_map<ForkOf, Fork> left;
    owner_.ForEachFork([&](const rpc::ObjectId& object, const ForkId& fork,
                           WorkerKey) { still.emplace_back(object, fork); });
    for (const ForkOf& fork : still) {
      const auto it = registered_.find(fork);
      if (it != registered_.end()) left[fork] = std::move(it->second);
    }
    registered_.swap(left);
  }
  for (const auto& task : tasks) task();
}

// ------------------------------------------------------------ handles

void References::Register(const Token& token, const std::string& holder) {
  // The function that made the object; its creator may have released it since.
  std::string function;
  for (const WorkerKey who : {token.object.creator, key_}) {
    const auto found = agent_.objects().Find(token.object, who, nullptr);
    if (!found.ok()) continue;
    function = std::string(found->function);
    break;
  }
  registered_[{token.object, token.fork}] = {holder, absl::Now(),
                                             std::move(function)};
}

ForkId References::NewFork() { return {agent_.key(), ++forks_made_}; }

rpc::Target References::OwnerOf(const rpc::ObjectId& object) {
  return agent_.To(object.owner);
}

std::shared_ptr<Reference> References::MakeReference(const Token& token) {
  return std::make_shared<Reference>(
      shared_from_this(), token, OwnerOf(token.object), WhenReady(token.fork));
}

std::shared_ptr<Reference> References::Adopt(const rpc::Target& owner,
                                             const rpc::ObjectId& object) {
  rpc::internal::ForgetHandle(owner, object.call);
  Token token{object, {}, 0};
  std::shared_ptr<Reference> reference;
  {
    MutexLock lock(mu_);
    token.fork = NewFork();
    token.secret = NewSecret();
    Tasks none;
    ready_.try_emplace(token.fork, driver_);
    Tell(UserTable::Creating{token}, &none);
    reference = MakeReference(token);
  }
  const Future<void> adopted = rpc::CallAsync(
      UntilAnswered(agent_.To(object.owner)), AdoptObject, token.object,
      token.fork.parent, token.fork.number, token.secret);
  adopted.OnReady([books = shared_from_this(),
                   fork = token.fork](const absl::Status& status) {
    books->TellAndRun(UserTable::Event(UserTable::Created{fork, status}));
  });
  return reference;
}

// From the system: each number of a std::random_device may wait 20 us for the
// processor's entropy (RDSEED).
uint64_t References::NewSecret() {
  uint64_t secret;
  if (getentropy(&secret, sizeof secret) == 0) return secret;
  std::random_device device;  // a kernel before 3.17
  return uint64_t{device()} << 32 | device();
}

absl::StatusOr<std::shared_ptr<Reference>> References::Keep(
    rpc::ObjectTable::Object object) {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(CheckOpen());
  const rpc::ObjectId id{key_, key_, kFirstKept + objects_kept_++};
  const Token token{id, NewFork(), NewSecret()};
  WEFT_RETURN_IF_ERROR(agent_.objects().Add(
      id, rpc::Worker{agent_.name(), agent_.key(), ""}, std::move(object)));
  Tasks none;
  Tell(OwnerTable::Made{token}, &none);
  Register(token, name_);
  Tell(UserTable::Creating{token}, &none);
  Tell(UserTable::Created{token.fork, absl::OkStatus()}, &none);
  return MakeReference(token);
}

void References::Drop(const ForkId& fork) {
  const Use agent(this);
  if (!agent) return;
  Tasks tasks;
  {
    MutexLock lock(mu_);
    if (is_closed_) return;  // Close() has dropped it
    Tell(UserTable::Dropped{fork}, &tasks);
  }
  for (const auto& task : tasks) task();
}

absl::Status Reference::status() const {
  WEFT_RETURN_IF_ERROR(references_->CheckOpen());
  const Result<void>* result = ready_.Peek();
  const absl::Status failed = result != nullptr && !result->ok()
                                  ? *result
                                  : references_->FailureOf(token_.fork);
  if (failed.ok()) return failed;
  return Reworded(
      failed, absl::StrCat("a reference to object ", token_.object.ToString(),
                           " of ", owner_.name(), ": ", failed.message()));
}

// ------------------------------------------------------------ messages

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
  MutexLock lock(mu_);
  // Close() may have given the parent up since it was looked at.
  WEFT_RETURN_IF_ERROR(CheckOpen());
  Token child = parent.token();
  child.fork = NewFork();
  Tasks none;  // neither event has consequences
  if (owner_.Contains(child.object)) {
    const rpc::Worker holder{NameOf(to), to, ""};
    if (agent_.objects().Hold(child.object, holder).ok()) {
      Tell(OwnerTable::Shared{child, to}, &none);
      Register(child, holder.name);
      *registered = true;
      return child;
    }
  }
  Tell(UserTable::Shared{parent.token().fork, child.fork, to}, &none);
  return child;
}

void References::SettleChild(const Token& child, WorkerKey to,
                             rpc::AttachmentOutcome outcome) {
  const Use agent(this);
  if (!agent) return;
  Tasks tasks;
  {
    MutexLock lock(mu_);
    Tell(UserTable::ChildSettled{child.fork}, &tasks);
    const bool owned = child.object.owner == agent_.key();
    if (owned && outcome != rpc::AttachmentOutcome::kDelivered) {
      if (owner_.Holds(child.object, child.fork, to)) {
        registered_.erase({child.object, child.fork});
        tasks.push_back([this, object = child.object, to] {
          agent_.objects().Release(object, to).IgnoreError();
        });
      }
      Tell(OwnerTable::ShareFailed{child.object, child.fork}, &tasks);
    }
  }
  for (const auto& task : tasks) task();
}

absl::Status References::CheckToken(const Token& token) {
  if (token.object.call != 0 && token.fork.number != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a reference to object ", token.object.ToString(), ", ",
                   token.fork.ToString(), ", cannot exist"));
}

namespace {

absl::Status CameTwice(const Token& token) {
  return absl::AlreadyExistsError(absl::StrCat(
      token.fork.ToString(), " of object ", token.object.ToString(),
      " came a second time; a reference has one holder"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> References::Take(
    const rpc::CodecContext& context, const Bytes& bytes) {
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
  {
    MutexLock lock(mu_);
    if (is_closed_) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", agent_.name(), " has closed its references"));
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
  }
  for (const auto& task : tasks) task();
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

// ------------------------------------------------------------ what peers ask

Future<void> References::ServeAdopt(const rpc::Worker& creator,
                                    const Token& token) {
  if (absl::Status bad = CheckToken(token); !bad.ok()) {
    return MakeReady<void>(std::move(bad));
  }
  if (token.object.creator != creator.key || token.fork.parent != creator.key) {
    return MakeReady<void>(absl::PermissionDeniedError(
        absl::StrCat("object ", token.object.ToString(), " is not ",
                     creator.name, "'s to share")));
  }
  const auto found = agent_.objects().Find(token.object, creator.key, nullptr);
  if (!found.ok()) return MakeReady<void>(found.status());
  Tasks tasks;
  {
    MutexLock lock(mu_);
    // It asks again, since its last request has no answer.
    if (owner_.Holds(token.object, token.fork, creator.key)) return MakeReady();
    if (owner_.Contains(token.object) || owner_.Expects(token.object)) {
      return MakeReady<void>(absl::AlreadyExistsError(absl::StrCat(
          "object ", token.object.ToString(), " is shared already")));
    }
    Register(token, creator.name);
    Tell(OwnerTable::Made{token}, &tasks);
  }
  for (const auto& task : tasks) task();
  return MakeReady();
}

Future<void> References::ServeRegister(const rpc::Worker& from,
                                       const Token& token) {
  if (absl::Status bad = CheckToken(token); !bad.ok()) {
    return MakeReady<void>(std::move(bad));
  }
  if (token.object.owner != key_) {
    return MakeReady<void>(absl::InvalidArgumentError(
        absl::StrCat(from.name, " registers a reference to object ",
                     token.object.ToString(), ", which is not of ", name_)));
  }
  const ForkOf fork(token.object, token.fork);
  Tasks tasks;
  rpc::ObjectTable::Object found;
  bool is_unknown = false;
  Future<void> answer = MakeReady();
  {
    MutexLock lock(mu_);
    // It asks again, since its last request has no answer.
    if (owner_.Holds(token.object, token.fork, from.key)) return answer;
    const auto waits = answers_.find(fork);
    if (waits != answers_.end() && waits->second.from == from.key) {
      return waits->second.promise.future();
    }
    if (waits != answers_.end()) {
      return MakeReady<void>(absl::AlreadyExistsError(
          absl::StrCat(token.fork.ToString(), " is being registered already")));
    }
    answers_[fork].from = from.key;
    answer = answers_[fork].promise.future();
    // The call that makes the object, or the message that shares it, may be
    // slower than this one: its creator knows.
    is_unknown = !owner_.Expects(token.object) && !IsMade(token.object, &found);
    Tell(OwnerTable::ForkRequested{from.key, token, /*may_come=*/true}, &tasks);
  }
  for (const auto& task : tasks) task();
  if (is_unknown) AskCreator(token.object);
  return answer;
}

absl::Status References::ServeDelete(const rpc::Worker& from,
                                     const rpc::ObjectId& object,
                                     const ForkId& fork) {
  std::vector<OwnerTable::Action> actions;
  bool is_early = false;  // the object will end as soon as it is made
  absl::Status answer;
  {
    MutexLock lock(mu_);
    is_early = owner_.Expects(object, fork);
    owner_.OnEvent(OwnerTable::DeleteRequested{from.key, object, fork},
                   &actions);
    answer = std::get<OwnerTable::Answer>(actions.front()).status;
    if (answer.ok() && !is_early) registered_.erase({object, fork});
    changed_.NotifyAll();
  }
  if (!answer.ok() || is_early) return answer;
  // The object's destructor is user code, and may run here.
  return agent_.objects().Release(object, from.key);
}

// ------------------------------------------------------------ the tables

template <typename Event>
void References::TellAndRun(const Event& event) {
  const Use agent(this);
  if (!agent) return;
  Tasks tasks;
  {
    MutexLock lock(mu_);
    Tell(event, &tasks);
  }
  for (const auto& task : tasks) task();
}

void References::Tell(const UserTable::Event& event, Tasks* tasks) {
  std::vector<UserTable::Action> actions;
  if (const auto* made = std::get_if<UserTable::Creating>(&event)) {
    held_since_[made->token.fork] = absl::Now();
  } else if (const auto* came = std::get_if<UserTable::Received>(&event)) {
    held_since_[came->token.fork] = absl::Now();
  }
  user_.OnEvent(event, &actions);
  for (const UserTable::Action& action : actions) Do(action, tasks);
  if (held_since_.size() > 2 * user_.forks() + 64) ForgetAges();
  changed_.NotifyAll();
}

absl::Status References::FailureOf(const ForkId& fork) const {
  if (!has_failures_) return absl::OkStatus();
  MutexLock lock(mu_);
  const auto it = failures_.find(fork);
  return it == failures_.end() ? absl::OkStatus() : it->second;
}

void References::ForgetAges() {
  for (auto it = failures_.begin(); it != failures_.end();) {
    const bool is_held = user_.StateOf(it->first) != UserTable::State::kUnknown;
    if (is_held) {
      ++it;
    } else {
      failures_.erase(it++);
    }
  }
  for (auto it = held_since_.begin(); it != held_since_.end();) {
    const bool is_held = user_.StateOf(it->first) != UserTable::State::kUnknown;
    if (is_held) {
      ++it;
    } else {
      held_since_.erase(it++);
    }
  }
}

void References::Tell(const OwnerTable::Event& event, Tasks* tasks) {
  std::vector<OwnerTable::Action> actions;
  owner_.OnEvent(event, &actions);
  for (const OwnerTable::Action& action : actions) Do(action, tasks);
  changed_.NotifyAll();
}

void References::Do(const UserTable::Action& action, Tasks* tasks) {
  if (const auto* ask = std::get_if<UserTable::SendForkRequest>(&action)) {
    tasks->push_back([books = shared_from_this(), token = ask->token] {
      rpc::CallAsync(UntilAnswered(books->OwnerOf(token.object)), RegisterFork,
                     token.object, token.fork.parent, token.fork.number,
                     token.secret)
          .OnReady([books, fork = token.fork](const absl::Status& status) {
            books->TellAndRun(
                UserTable::Event(UserTable::Registered{fork, status}));
          });
    });
  } else if (const auto* end = std::get_if<UserTable::SendDelete>(&action)) {
    deletions_[end->object.owner].waiting.push_back(*end);
    SendDeletions(end->object.owner, tasks);
  } else {
    SetReady(std::get<UserTable::Ready>(action), tasks);
  }
}

void References::SendDeletions(WorkerKey owner, Tasks* tasks) {
  Deletions& to = deletions_[owner];
  if (to.is_out || to.waiting.empty()) return;
  to.is_out = true;
  const size_t count = std::min(to.waiting.size(), kMostDeletions);
  std::vector<UserTable::SendDelete> forks(to.waiting.begin(),
                                           to.waiting.begin() + count);
  to.waiting.erase(to.waiting.begin(), to.waiting.begin() + count);
  tasks->push_back([books = shared_from_this(), owner,
                    forks = std::move(forks)] {
    std::vector<DeletedFork> request;
    for (const UserTable::SendDelete& end : forks) {
      request.emplace_back(end.object, end.fork.parent, end.fork.number);
    }
    rpc::CallAsync(UntilAnswered(books->agent_.To(owner)), DeleteForks, request)
        .OnReady([books, owner, forks](const absl::Status&) {
          books->Deleted(owner, forks);
        });
  });
}

void References::Deleted(WorkerKey owner,
                         const std::vector<UserTable::SendDelete>& forks) {
  const Use agent(this);
  if (!agent) return;
  Tasks tasks;
  {
    MutexLock lock(mu_);
    for (const UserTable::SendDelete& end : forks) {
      Tell(UserTable::Event(UserTable::Deleted{end.fork}), &tasks);
    }
    Deletions& to = deletions_[owner];
    to.is_out = false;
    if (to.waiting.empty()) {
      deletions_.erase(owner);
    } else {
      SendDeletions(owner, &tasks);
    }
  }
  for (const auto& task : tasks) task();
}

void References::SetReady(const UserTable::Ready& ready, Tasks* tasks) {
  const auto it = ready_.find(ready.token.fork);
  if (it == ready_.end()) {
    if (ready.status.ok()) return;
    failures_[ready.token.fork] = ready.status;
    has_failures_ = true;
    return;
  }
  auto promise = std::make_shared<Promise<void>>(std::move(it->second));
  ready_.erase(it);
  tasks->push_back([promise, status = ready.status] { promise->Set(status); });
}

void References::Do(const OwnerTable::Action& action, Tasks* tasks) {
  if (const auto* answer = std::get_if<OwnerTable::Answer>(&action)) {
    SetAnswer(*answer, tasks);
  }
  // OwnerTable::Free: the object table of rpc ends an object with its last
  // holding.
}

void References::SetAnswer(const OwnerTable::Answer& answer, Tasks* tasks) {
  const auto it = answers_.find({answer.object, answer.fork});
  if (it == answers_.end()) return;
  absl::Status status = answer.status;
  if (status.ok()) {
    const rpc::Worker holder{NameOf(answer.to), answer.to, ""};
    status = agent_.objects().Hold(answer.object, holder);
    if (status.ok()) {
      Register({answer.object, answer.fork, 0}, holder.name);
    } else {
      Tell(OwnerTable::ShareFailed{answer.object, answer.fork}, tasks);
    }
  }
  auto promise = std::make_shared<Promise<void>>(std::move(it->second.promise));
  answers_.erase(it);
  tasks->push_back([promise, status] { promise->Set(status); });
}

Future<void> References::WhenReady(const ForkId& fork) {
  const auto it = ready_.find(fork);
  return it == ready_.end() ? MakeReady() : it->second.future();
}

std::string References::NameOf(WorkerKey key) const {
  if (key == agent_.key()) return agent_.name();
  const rpc::Target target = agent_.To(key);
  return target.status().ok() ? target.name() : key.ToString();
}

}  // namespace weft::rref
