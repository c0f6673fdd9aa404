#include "weft/rref/references.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rpc/extension/objects.h"

namespace weft::rref {

namespace {

// ------------------------------------------------------------ what peers call

// The most references that an error message lists.
constexpr size_t kMostExplained = 20;

// The most deletions in one message.
constexpr size_t kMostDeletions = 1000;

// Objects that an agent keeps by no call have numbers that no call of it to
// itself will have.
constexpr uint64_t kFirstKept = uint64_t{1} << 48;

absl::Status NoReferences(const rpc::Agent& agent) {
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", agent.name(),
                   " has no references: call rref::References::Open(agent) "
                   "when it starts"));
}

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
    return MakeReady<void>(NoReferences(context.agent()));
  }
  return references->ServeAdopt(context.peer(),
                                MakeToken(object, parent, number, secret));
}
WEFT_RPC_INLINE_IDEMPOTENT(AdoptObject);

Future<void> RegisterFork(rpc::CallContext& context, rpc::ObjectId object,
                          WorkerKey parent, uint64_t number, uint64_t secret) {
  auto* const references = context.Local<References>();
  if (references == nullptr) {
    return MakeReady<void>(NoReferences(context.agent()));
  }
  return references->ServeRegister(context.peer(),
                                   MakeToken(object, parent, number, secret));
}
WEFT_RPC_INLINE_IDEMPOTENT(RegisterFork);

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

// ------------------------------------------------------------ life

References::References(rpc::Agent& agent, const ReferencesOptions& options)
    : Library(agent),
      driver_(rpc::extension::DriverOf(agent)),
      owner_(options.max_forks_per_holder) {}

absl::StatusOr<std::shared_ptr<References>> References::Open(
    rpc::Agent& agent, const ReferencesOptions& options) {
  auto references = std::make_shared<References>(agent, options);
  WEFT_RETURN_IF_ERROR(Attach(references, {kKind, kCreationKind, kAwaitKind}));
  return references;
}

absl::StatusOr<std::shared_ptr<References>> References::Of(
    const rpc::Agent& agent) {
  std::shared_ptr<References> references = agent.Local<References>();
  if (references == nullptr) return NoReferences(agent);
  return references;
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> References::Take(
    absl::string_view kind, const rpc::CodecContext& message,
    const Bytes& bytes) {
  if (kind == kCreationKind) return TakeCreation(message, bytes);
  if (kind == kAwaitKind) return TakeAwait(message, bytes);
  return TakeReferences(message, bytes);
}

absl::Status References::Close(absl::Duration timeout) {
  const auto deadline = SteadyDeadline(timeout);
  const WeakAgent::Use use(*weak_agent());
  {
    Tasks tasks;
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
  MutexLock lock(mu_);
  while (user_.forks() > 0) {
    if (!changed_.WaitUntil(mu_, deadline)) break;
  }
  if (user_.forks() == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("worker ", name(), ": references were still held after ",
                   absl::FormatDuration(timeout), ": ",
                   absl::StrJoin(ExplainHeld(kMostExplained), "; ")));
}

absl::Status References::CheckOpen() const {
  if (!is_closed()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", name(),
      " has closed its references: this one is of no use any more"));
}

void References::OnAgentEnd() {
  const absl::Status why = absl::CancelledError("the agent has ended");
  Tasks tasks;
  MutexLock lock(mu_);
  is_closed_ = true;
  for (auto& [fork, promise] : ready_) {
    tasks.Set<void>(std::move(promise), why);
  }
  ready_.clear();
  while (!awaiting_.empty()) {
    EndAwaiting(rpc::ObjectId(awaiting_.begin()->first), why, &tasks);
  }
  for (auto& [fork, creation] : creations_) {
    for (Promise<void>& asked : creation.asked) {
      tasks.Set<void>(std::move(asked), why);
    }
    creation.asked.clear();
  }
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
          "worker ", name(),
          ": references to its objects were still held after ",
          absl::FormatDuration(timeout), ": ", absl::StrJoin(left, ", ")));
    }
    in_time = changed_.WaitUntil(mu_, deadline);
  }
}

void References::OnPeerGone(const rpc::Agent::GonePeer& peer) {
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("the owner of the object, worker ", peer.key.ToString(),
                   ", is gone: ", peer.why));
  Tasks tasks;
  std::vector<ForkOf> still;
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

// ------------------------------------------------------------ handles

void References::Register(const Token& token, const std::string& holder) {
  // The function that made the object; its creator may have released it since.
  std::string function;
  for (const WorkerKey who : {token.object.creator, key()}) {
    const auto found = agent().objects().Find(token.object, who, nullptr);
    if (!found.ok()) continue;
    function = std::string(found->function);
    break;
  }
  registered_[{token.object, token.fork}] = {holder, driver_.clock().Now(),
                                             std::move(function)};
}

ForkId References::NewFork() { return {key(), ++forks_made_}; }

rpc::Target References::OwnerOf(const rpc::ObjectId& object) {
  return agent().To(object.owner);
}

std::shared_ptr<Reference> References::MakeReference(const Token& token) {
  return std::make_shared<Reference>(
      shared_from_this(), token, OwnerOf(token.object), WhenReady(token.fork));
}

std::shared_ptr<Reference> References::Adopt(const rpc::Target& owner,
                                             const rpc::ObjectId& object) {
  rpc::extension::TakeOver(owner, object);
  Token token{object, {}, 0};
  std::shared_ptr<Reference> reference;
  {
    Tasks tasks;
    MutexLock lock(mu_);
    token.fork = NewFork();
    token.secret = NewSecret();
    ready_.try_emplace(token.fork, driver_);
    Tell(UserTable::Creating{token}, &tasks);
    reference = MakeReference(token);
  }
  weak_agent()->CallUntilAnswered(
      object.owner, absl::InfiniteDuration(), AdoptObject,
      [self = shared_from_this(),
       fork = token.fork](const absl::Status& status) {
        self->TellAndRun(UserTable::Event(UserTable::Created{fork, status}));
      },
      token.object, token.fork.parent, token.fork.number, token.secret);
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
  Tasks tasks;
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(CheckOpen());
  const rpc::ObjectId id{key(), key(), kFirstKept + objects_kept_++};
  const Token token{id, NewFork(), NewSecret()};
  WEFT_RETURN_IF_ERROR(agent().objects().Add(id, rpc::Worker{name(), key(), ""},
                                             std::move(object)));
  Tell(OwnerTable::Made{token}, &tasks);
  Register(token, name());
  Tell(UserTable::Creating{token}, &tasks);
  Tell(UserTable::Created{token.fork, absl::OkStatus()}, &tasks);
  return MakeReference(token);
}

void References::Drop(const ForkId& fork) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  MutexLock lock(mu_);
  if (is_closed_) return;  // Close() has dropped it
  Tell(UserTable::Dropped{fork}, &tasks);
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

// ------------------------------------------------------------ what peers ask

absl::Status References::CheckToken(const Token& token) {
  if (token.object.call != 0 && token.fork.number != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a reference to object ", token.object.ToString(), ", ",
                   token.fork.ToString(), ", cannot exist"));
}

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
  const auto found = agent().objects().Find(token.object, creator.key, nullptr);
  if (!found.ok()) return MakeReady<void>(found.status());
  Tasks tasks;
  MutexLock lock(mu_);
  // It asks again, since its last request has no answer.
  if (owner_.Holds(token.object, token.fork, creator.key)) return MakeReady();
  if (owner_.Contains(token.object) || owner_.Expects(token.object)) {
    return MakeReady<void>(absl::AlreadyExistsError(absl::StrCat(
        "object ", token.object.ToString(), " is shared already")));
  }
  Register(token, creator.name);
  Tell(OwnerTable::Made{token}, &tasks);
  return MakeReady();
}

Future<void> References::ServeRegister(const rpc::Worker& from,
                                       const Token& token) {
  if (absl::Status bad = CheckToken(token); !bad.ok()) {
    return MakeReady<void>(std::move(bad));
  }
  if (token.object.owner != key()) {
    return MakeReady<void>(absl::InvalidArgumentError(
        absl::StrCat(from.name, " registers a reference to object ",
                     token.object.ToString(), ", which is not of ", name())));
  }
  const ForkOf fork(token.object, token.fork);
  rpc::ObjectTable::Object found;
  bool is_unknown = false;
  Future<void> answer = MakeReady();
  {
    Tasks tasks;
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
  return agent().objects().Release(object, from.key);
}

// ------------------------------------------------------------ the tables

template <typename Event>
void References::TellAndRun(const Event& event) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
  MutexLock lock(mu_);
  Tell(event, &tasks);
}

void References::Tell(const UserTable::Event& event, Tasks* tasks) {
  std::vector<UserTable::Action> actions;
  if (const auto* made = std::get_if<UserTable::Creating>(&event)) {
    held_since_[made->token.fork] = driver_.clock().Now();
  } else if (const auto* came = std::get_if<UserTable::Received>(&event)) {
    held_since_[came->token.fork] = driver_.clock().Now();
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
    tasks->Add([self = shared_from_this(), token = ask->token] {
      self->weak_agent()->CallUntilAnswered(
          token.object.owner, absl::InfiniteDuration(), RegisterFork,
          [self, fork = token.fork](const absl::Status& status) {
            self->TellAndRun(
                UserTable::Event(UserTable::Registered{fork, status}));
          },
          token.object, token.fork.parent, token.fork.number, token.secret);
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
  tasks->Add([self = shared_from_this(), owner, forks = std::move(forks)] {
    std::vector<DeletedFork> request;
    for (const UserTable::SendDelete& end : forks) {
      request.emplace_back(end.object, end.fork.parent, end.fork.number);
    }
    self->weak_agent()->CallUntilAnswered(
        owner, absl::InfiniteDuration(), DeleteForks,
        [self, owner, forks](const absl::Status&) {
          self->Deleted(owner, forks);
        },
        request);
  });
}

void References::Deleted(WorkerKey owner,
                         const std::vector<UserTable::SendDelete>& forks) {
  const WeakAgent::Use use(*weak_agent());
  if (!use) return;
  Tasks tasks;
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

void References::SetReady(const UserTable::Ready& ready, Tasks* tasks) {
  const auto it = ready_.find(ready.token.fork);
  if (it == ready_.end()) {
    if (ready.status.ok()) return;
    failures_[ready.token.fork] = ready.status;
    has_failures_ = true;
    return;
  }
  tasks->Set<void>(std::move(it->second), ready.status);
  ready_.erase(it);
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
    const rpc::Worker holder{weak_agent()->NameOf(answer.to), answer.to, ""};
    status = agent().objects().Hold(answer.object, holder);
    if (status.ok()) {
      Register({answer.object, answer.fork, 0}, holder.name);
    } else {
      Tell(OwnerTable::ShareFailed{answer.object, answer.fork}, tasks);
    }
  }
  tasks->Set<void>(std::move(it->second.promise), status);
  answers_.erase(it);
}

Future<void> References::WhenReady(const ForkId& fork) {
  const auto it = ready_.find(fork);
  return it == ready_.end() ? MakeReady() : it->second.future();
}

}  // namespace weft::rref
