#include "weft/dist_autograd/contexts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/autograd/checkpoint.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/contexts_calls.h"
#include "weft/dist_autograd/participation.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/root_pass.h"
#include "weft/rpc/codec/codec.h"
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

// Of one message: an honest one has a few.
constexpr uint64_t kMostSlots = 1 << 16;
constexpr uint64_t kMostIntervals = 1 << 12;
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

absl::Status NoContexts(const rpc::Agent& agent) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", agent.name(),
      " has no distributed contexts: call dist_autograd::Contexts::Open(agent) "
      "when it starts"));
}

}  // namespace

// ------------------------------------------------------------ what travels

// The history of the values of one message, at its producer.
class Contexts::Staged final : public rpc::Attachment {
 public:
  Staged(std::shared_ptr<Context> context, MessageLabel label)
      : context_(std::move(context)), label_(std::move(label)) {}

  size_t Add(const Variable& variable) {
    slots_.push_back({variable.edge(), variable.shape(), variable.dtype()});
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

// The same at its consumer.
class Contexts::Receipt final : public rpc::ReceivedAttachment {
 public:
  Receipt(std::shared_ptr<Context> context, NodePtr node, uint64_t slots,
          std::function<void()> end)
      : context_(std::move(context)),
        node_(std::move(node)),
        slots_(slots),
        end_(std::move(end)) {}
  ~Receipt() override {
    if (end_) end_();
  }

  const std::shared_ptr<Context>& context() const { return context_; }
  absl::StatusOr<Variable> MakeVariable(Tensor value, uint64_t slot) const {
    if (slot < slots_ && value.defined() && IsDifferentiable(value.dtype())) {
      return Variable(std::move(value), node_, static_cast<uint32_t>(slot));
    }
    return rpc::Decoder::Malformed(
        "a recorded value without its slot, or that can have no gradient");
  }

 private:
  const std::shared_ptr<Context> context_;
  const NodePtr node_;
  const uint64_t slots_;
  const std::function<void()> end_;
};

// ------------------------------------------------------------ life

// The agent's own, so that its end ends what uses the agent.
class Contexts::Receiver final : public rpc::AttachmentReceiver {
 public:
  explicit Receiver(std::shared_ptr<Contexts> contexts)
      : contexts_(std::move(contexts)) {}
  ~Receiver() override { contexts_->AgentEnds(); }

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      const rpc::CodecContext& message, const Bytes& bytes) override {
    return contexts_->Take(message, bytes);
  }

 private:
  const std::shared_ptr<Contexts> contexts_;
};

Contexts::Contexts(rpc::Agent& agent, const ContextsOptions& options,
                   std::unique_ptr<ThreadPool> pool)
    : agent_(agent),
      self_(agent.key()),
      name_(agent.name()),
      most_intervals_(options.max_lineage_intervals),
      pool_(std::move(pool)),
      executor_(options.executor != nullptr ? *options.executor : *pool_) {}

absl::StatusOr<std::shared_ptr<Contexts>> Contexts::Open(
    rpc::Agent& agent, const ContextsOptions& options) {
  if (options.max_lineage_intervals > kMostIntervals) {
    return absl::InvalidArgumentError(
        absl::StrCat("Contexts::Open: max_lineage_intervals is ",
                     options.max_lineage_intervals, "; wanted at most ",
                     kMostIntervals, ", which a message can carry"));
  }
  std::unique_ptr<ThreadPool> pool;
  if (options.executor == nullptr) {
    ThreadPool::Options pool_options;
    pool_options.name = "backward";
    pool_options.threads = options.threads;
    pool_options.spin = options.spin;
    WEFT_ASSIGN_OR_RETURN(pool, ThreadPool::Create(std::move(pool_options)));
  }
  auto contexts = std::make_shared<Contexts>(agent, options, std::move(pool));
  WEFT_RETURN_IF_ERROR(
      agent.SetAttachmentReceiver(kKind, std::make_shared<Receiver>(contexts)));
  agent.SetLocal(contexts);
  contexts->peer_gone_ =
      agent.OnPeerGone([weak = std::weak_ptr<Contexts>(contexts)](
                           const rpc::Agent::GonePeer& peer) {
        if (const auto all = weak.lock()) all->PeerGone(peer);
      });
  return contexts;
}

absl::StatusOr<std::shared_ptr<Contexts>> Contexts::Of(
    const rpc::Agent& agent) {
  std::shared_ptr<Contexts> contexts = agent.Local<Contexts>();
  if (contexts == nullptr) return NoContexts(agent);
  return contexts;
}

void Contexts::Close() {
  std::vector<ContextId> open;
  {
    MutexLock lock(mu_);
    is_closed_ = true;
    for (const auto& [id, context] : contexts_) open.push_back(id);
  }
  for (const ContextId& id : open) Release(id);
  if (pool_ != nullptr) pool_->Shutdown().IgnoreError();
}

void Contexts::AgentEnds() {
  std::vector<ContextId> open;
  {
    MutexLock lock(mu_);
    agent_has_ended_ = true;
    while (uses_ > 0) changed_.Wait(mu_);
    for (const auto& [id, context] : contexts_) open.push_back(id);
  }
  for (const ContextId& id : open) EndHere(id);
}

std::shared_ptr<Context> Contexts::Create() {
  MutexLock lock(mu_);
  const ContextId id{self_, ++last_context_};
  auto context = std::make_shared<Context>(id, self_, most_intervals_);
  if (is_closed_) {
    // As one that was released: no thread would run its passes.
    context->Close();
    released_.Add({id.creator, id.number});
    return context;
  }
  contexts_[id] = context;
  return context;
}

absl::StatusOr<std::shared_ptr<Context>> Contexts::Find(ContextId id) const {
  MutexLock lock(mu_);
  return FindLocked(id);
}

absl::StatusOr<std::shared_ptr<Context>> Contexts::FindLocked(
    ContextId id) const {
  const auto it = contexts_.find(id);
  if (it != contexts_.end()) return it->second;
  const bool released = released_.Contains({id.creator, id.number});
  return absl::Status(
      released ? absl::StatusCode::kFailedPrecondition
               : absl::StatusCode::kNotFound,
      absl::StrCat(id.ToString(), released ? " was released" : " has no part",
                   " at worker ", name_));
}

absl::StatusOr<std::shared_ptr<Context>> Contexts::FindOrAdd(ContextId id,
                                                             bool* is_new) {
  if (id.number == 0) {
    return rpc::Decoder::Malformed("a context without number");
  }
  MutexLock lock(mu_);
  absl::StatusOr<std::shared_ptr<Context>> found = FindLocked(id);
  if (found.status().code() != absl::StatusCode::kNotFound) return found;
  if (id.creator == self_) return found;  // it was never created
  if (IsGone(id.creator)) {
    return absl::FailedPreconditionError(
        absl::StrCat(id.ToString(), " ended with worker ",
                     id.creator.ToString(), ", which is gone"));
  }
  if (is_closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat(id.ToString(), " came to worker ", name_,
                     " after it had closed its contexts"));
  }
  auto context = std::make_shared<Context>(id, self_, most_intervals_);
  contexts_[id] = context;
  *is_new = true;
  return context;
}

bool Contexts::IsGone(WorkerKey worker) const {
  const auto it = gone_.find(worker.id);
  return it != gone_.end() && worker.epoch <= it->second;
}

void Contexts::Release(ContextId id) {
  const std::shared_ptr<Context> context = EndHere(id);
  // The others' part in a context of another worker is not this one's to end.
  if (context == nullptr || id.creator != self_) return;
  for (const WorkerKey peer : context->Close()) {
    if (peer == self_) continue;
    CallUntilAnswered(
        peer, internal::ReleaseContext, [](const absl::Status&) {}, id);
  }
}

absl::Status Contexts::ServeRelease(const rpc::Worker& from, ContextId id) {
  if (id.creator != from.key) {
    return absl::PermissionDeniedError(absl::StrCat(
        "worker ", from.name, " (", from.key.ToString(),
        ") asks for the end of ", id.ToString(), "; only its creator, worker ",
        NameOf(id.creator), ", ends it"));
  }
  if (id.number == 0) {
    return absl::InvalidArgumentError("a context without number");
  }
  Release(id);
  return absl::OkStatus();
}

std::shared_ptr<Context> Contexts::EndHere(ContextId id) {
  std::shared_ptr<Context> context;
  std::vector<std::shared_ptr<Participation>> parts;
  std::vector<std::shared_ptr<RootPass>> roots;
  {
    MutexLock lock(mu_);
    // Also if the context has no part here yet: a recorded call may be on its
    // way, and must not make the context again.
    released_.Add({id.creator, id.number});
    const auto it = contexts_.find(id);
    if (it == contexts_.end()) return nullptr;
    context = std::move(it->second);
    contexts_.erase(it);
    context->Close();
    for (auto part = passes_.begin(); part != passes_.end();) {
      const bool ends = part->first.first == id;
      if (ends) parts.push_back(part->second);
      part = ends ? passes_.erase(part) : std::next(part);
    }
    for (const auto& [pass, root] : roots_) {
      if (pass.first == id) roots.push_back(root);
    }
  }
  const absl::Status why = absl::FailedPreconditionError(
      absl::StrCat(id.ToString(), " was released in the middle of a pass"));
  for (const auto& root : roots) {
    root->Post([why](RootPass& pass) { pass.Abandon(why); });
  }
  for (const auto& part : parts) {
    part->Post([why](Participation& p) { p.Abandon(why); });
  }
  return context;
}

void Contexts::PeerGone(const rpc::Agent::GonePeer& peer) {
  std::vector<ContextId> orphans;
  std::vector<std::shared_ptr<Participation>> parts;
  std::vector<std::shared_ptr<RootPass>> roots;
  {
    MutexLock lock(mu_);
    rendezvous::Epoch& last = gone_[peer.key.id];
    last = std::max(last, peer.key.epoch);
    for (const auto& [id, context] : contexts_) {
      if (IsGone(id.creator)) orphans.push_back(id);
    }
    for (const auto& [pass, part] : passes_) parts.push_back(part);
    for (const auto& [pass, root] : roots_) roots.push_back(root);
  }
  for (const auto& root : roots) {
    root->Post([key = peer.key](RootPass& pass) { pass.OnPeerGone(key); });
  }
  for (const auto& part : parts) {
    part->Post([key = peer.key](Participation& p) { p.OnPeerGone(key); });
  }
  // The others are notified of the death by themselves: if only this worker
  // takes the creator for dead, the context goes on without this worker.
  for (const ContextId& id : orphans) EndHere(id);
}

void Contexts::JoinCreator(ContextId id) {
  CallUntilAnswered(
      id.creator, internal::JoinContext,
      [weak = weak_from_this(), id](const absl::Status& joined) {
        const std::shared_ptr<Contexts> all = weak.lock();
        if (all != nullptr && !joined.ok()) all->Release(id);
      },
      id);
}

absl::Status Contexts::ServeJoin(const rpc::Worker& peer, ContextId id) {
  if (id.creator != self_) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", peer.name, " joins ", id.ToString(),
                     " at worker ", name_, ", which has not created it"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> found, Find(id));
  return found->AddPeer(peer.key);
}

std::string Contexts::NameOf(WorkerKey worker) {
  if (worker == self_) return name_;
  const Use agent(this);
  return agent ? agent_.To(worker).name() : worker.ToString();
}

Contexts::Counts Contexts::counts() const {
  MutexLock lock(mu_);
  Counts counts;
  counts.contexts = static_cast<int64_t>(contexts_.size());
  counts.passes = static_cast<int64_t>(roots_.size());
  for (const auto& [pass, part] : passes_) counts.passes += !part->is_over();
  return counts;
}

// ------------------------------------------------------------ recording

absl::StatusOr<std::shared_ptr<Context>> Contexts::ContextOf(
    const rpc::CallContext& context) const {
  const auto* receipt = static_cast<Receipt*>(context.attachment(kKind));
  if (receipt != nullptr) return receipt->context();
  return absl::FailedPreconditionError(absl::StrCat(
      "the call of ", context.peer().name,
      " was not recorded: the caller makes it by dist_autograd::Scope::Call"));
}

std::unique_ptr<rpc::Attachment> Contexts::StageRequest(
    const std::shared_ptr<Context>& context, rpc::WorkerKey to,
    std::string function) {
  return std::make_unique<Staged>(
      context, MessageLabel{std::move(function), to, /*is_reply=*/false});
}

void Contexts::EncodeSlot(const Variable& variable, rpc::Encoder& encoder) {
  if (!variable.requires_grad()) return encoder.Varint(0);
  if (IsCheckpointing()) {
    return encoder.Fail(absl::UnimplementedError(
        "a recorded call within Checkpoint would be made again by the backward "
        "pass: make it outside, or let the callee checkpoint its part"));
  }
  rpc::Attachment* staged = encoder.Staged(kKind);
  const rpc::CodecContext& message = encoder.context();
  if (staged == nullptr &&
      message.message == rpc::CodecContext::Message::kReply) {
    const std::shared_ptr<Contexts> all = message.agent->Local<Contexts>();
    Served served;
    if (all != nullptr) {
      MutexLock lock(all->mu_);
      const auto it = all->served_.find({message.peer, message.call});
      if (it != all->served_.end()) served = it->second;
    }
    if (served.context != nullptr) {
      staged = encoder.Stage(kKind, [&] {
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

absl::Status Contexts::DecodeSlot(rpc::Decoder& decoder, Tensor value,
                                  Variable& variable) {
  uint64_t slot = 0;
  WEFT_RETURN_IF_ERROR(decoder.Varint(slot));
  if (slot == 0) {
    variable = Variable(std::move(value));
    return absl::OkStatus();
  }
  const auto* receipt = static_cast<Receipt*>(decoder.attachment(kKind));
  if (receipt == nullptr) {
    return rpc::Decoder::Malformed("a recorded value without its message");
  }
  WEFT_ASSIGN_OR_RETURN(variable,
                        receipt->MakeVariable(std::move(value), slot - 1));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Contexts::Take(
    const rpc::CodecContext& message, const Bytes& bytes) {
  WEFT_ASSIGN_OR_RETURN(Header header, FromBytes(bytes));
  const bool is_request =
      message.message == rpc::CodecContext::Message::kRequest;
  const WorkerKey creator = header.context.creator;
  if (creator != message.peer && creator != self_ &&
      absl::IsNotFound(Find(header.context).status())) {
    // It could not be joined at one that nobody knows.
    const absl::Status known = agent_.To(creator).status();
    if (absl::IsNotFound(known)) return known;
  }
  bool is_new = false;
  // A reply is of a context that this worker used in the request.
  WEFT_ASSIGN_OR_RETURN(
      const std::shared_ptr<Context> context,
      is_request ? FindOrAdd(header.context, &is_new) : Find(header.context));
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
  std::function<void()> end;
  if (is_request) {
    const std::pair<rpc::WorkerKey, uint64_t> call{message.peer, message.call};
    MutexLock lock(mu_);
    served_[call] = {context, std::move(header.function)};
    end = [self = shared_from_this(), call] {
      MutexLock ended(self->mu_);
      self->served_.erase(call);
    };
  }
  if (is_new && creator != message.peer) JoinCreator(header.context);
  return std::make_unique<Receipt>(context, std::move(node), header.slots,
                                   std::move(end));
}

// ------------------------------------------------------------ passes

absl::StatusOr<std::shared_ptr<Participation>> Contexts::Join(ContextId context,
                                                              PassId pass) {
  MutexLock lock(mu_);
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> found,
                        FindLocked(context));
  std::shared_ptr<Participation>& part = passes_[{context, pass}];
  if (part == nullptr) {
    if (IsGone(pass.root)) {
      passes_.erase({context, pass});
      return absl::UnavailableError(
          absl::StrCat("worker ", pass.root.ToString(), ", which began ",
                       pass.ToString(), ", is gone"));
    }
    part = std::make_shared<Participation>(shared_from_this(), found, pass);
  }
  return part;
}

absl::StatusOr<std::shared_ptr<RootPass>> Contexts::FindRoot(
    const PassKey& key) const {
  MutexLock lock(mu_);
  const auto it = roots_.find(key);
  if (it != roots_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat(key.second.ToString(), " is not open at worker ", name_));
}

Future<void> Contexts::EndOf(ContextId context, PassId pass) {
  const auto root = FindRoot({context, pass});
  if (!root.ok()) return MakeReady<void>(root.status());
  return (*root)->end();
}

absl::Status Contexts::ServeFailure(const rpc::Worker& from, ContextId context,
                                    PassId pass, const absl::Status& why) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<RootPass> root,
                        FindRoot({context, pass}));
  if (!root->HasParticipant(from.key)) {
    return absl::PermissionDeniedError(
        absl::StrCat("worker ", from.name, " reports a failure of ",
                     pass.ToString(), ", in which it has no part"));
  }
  root->Post(
      [key = from.key, why](RootPass& pass) { pass.OnFailed(key, why); });
  return absl::OkStatus();
}

void Contexts::RootEnded(const PassKey& pass) {
  MutexLock lock(mu_);
  roots_.erase(pass);
}

namespace {

// Where the gradients of a pass come in, or why it cannot begin.
absl::StatusOr<std::vector<Participation::Root>> RootsOf(
    absl::Span<const Variable> roots, const PassOptions& options) {
  if (roots.empty()) {
    return absl::InvalidArgumentError("Backward: no roots were given");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Backward: PassOptions::timeout is ",
        absl::FormatDuration(options.timeout), "; wanted a positive duration"));
  }
  if (!options.seeds.empty() && options.seeds.size() != roots.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Backward: ", options.seeds.size(), " seeds for ",
                     roots.size(), " roots; give one for each, or none"));
  }
  std::vector<Participation::Root> edges;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].requires_grad()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Backward: root ", i,
                       " requires no gradient: nothing was recorded for it"));
    }
    if (options.seeds.empty() && roots[i].numel() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Backward: root ", i, " has ", roots[i].numel(),
          " elements; without seeds each root has one (reduce it, or give its "
          "gradient in PassOptions::seeds)"));
    }
    edges.push_back(
        {roots[i].edge(),
         options.seeds.empty()
             ? Gradient(Tensor::Ones(roots[i].shape(), roots[i].dtype()))
             : options.seeds[i]});
  }
  return edges;
}

}  // namespace

absl::Status GraphLost(ContextId context, WorkerKey worker) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Backward: the graph of ", context.ToString(), " at worker ",
      worker.ToString(),
      " is lost, since that incarnation is gone; run the forward again"));
}

Future<PassReport> Contexts::Backward(const std::shared_ptr<Context>& context,
                                      absl::Span<const Variable> roots,
                                      const PassOptions& options) {
  absl::StatusOr<std::vector<Participation::Root>> edges =
      RootsOf(roots, options);
  if (!edges.ok()) return MakeReady<PassReport>(edges.status());
  std::vector<Edge> starts;
  for (const Participation::Root& root : *edges) starts.push_back(root.edge);
  absl::StatusOr<MessageSet> live = context->LineageOf(starts);
  if (!live.ok()) return MakeReady<PassReport>(live.status());
  std::vector<WorkerKey> shortened;
  if (options.mode == PassMode::kFast) {
    live->Shorten(0);
    live->AddAll(self_);
  } else {
    shortened = live->producers_of_all();
  }
  std::set<WorkerKey> participants = {self_};
  for (const auto& [producer, intervals] : live->producers()) {
    participants.insert(producer);
  }
  PassId pass{self_, 0};
  {
    MutexLock lock(mu_);
    pass.number = ++last_pass_;
    for (const WorkerKey worker : participants) {
      if (!IsGone(worker)) continue;
      return MakeReady<PassReport>(GraphLost(context->id(), worker));
    }
  }
  absl::StatusOr<std::shared_ptr<Participation>> own =
      Join(context->id(), pass);
  if (!own.ok()) return MakeReady<PassReport>(own.status());
  auto root = std::make_shared<RootPass>(
      shared_from_this(), context, pass, *std::move(live), options,
      std::vector<WorkerKey>(participants.begin(), participants.end()),
      std::move(shortened));
  {
    MutexLock lock(mu_);
    roots_[{context->id(), pass}] = root;
  }
  return root->Start(*std::move(own), *std::move(edges));
}

}  // namespace weft::dist_autograd
