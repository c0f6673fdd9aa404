#include "weft/dist_autograd/contexts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/recording.h"
#include "weft/rpc/function.h"

namespace weft::dist_autograd {

namespace {

// Without a pool, somebody else's executor, which outlives the agent.
std::shared_ptr<Executor> ExecutorOf(const ContextsOptions& options,
                                     const std::shared_ptr<ThreadPool>& pool) {
  if (pool != nullptr) return pool;
  return std::shared_ptr<Executor>(std::shared_ptr<void>(), options.executor);
}

}  // namespace

// ------------------------------------------------------------ life

Contexts::Contexts(rpc::Agent& agent, const ContextsOptions& options,
                   std::shared_ptr<ThreadPool> pool)
    : Library(agent),
      pool_(std::move(pool)),
      table_(std::make_shared<ContextTable>(agent.key(), agent.name(),
                                            options.max_lineage_intervals)),
      passes_(std::make_shared<Passes>(weak_agent(), table_,
                                       ExecutorOf(options, pool_))) {}

absl::StatusOr<std::shared_ptr<Contexts>> Contexts::Open(
    rpc::Agent& agent, const ContextsOptions& options) {
  if (options.max_lineage_intervals > kMostIntervals) {
    return absl::InvalidArgumentError(
        absl::StrCat("Contexts::Open: max_lineage_intervals is ",
                     options.max_lineage_intervals, "; wanted at most ",
                     kMostIntervals, ", which a message can carry"));
  }
  std::shared_ptr<ThreadPool> pool;
  if (options.executor == nullptr) {
    ThreadPool::Options pool_options;
    pool_options.name = "backward";
    pool_options.threads = options.threads;
    pool_options.spin = options.spin;
    WEFT_ASSIGN_OR_RETURN(pool, ThreadPool::Create(std::move(pool_options)));
  }
  auto contexts = std::make_shared<Contexts>(agent, options, std::move(pool));
  WEFT_RETURN_IF_ERROR(Attach(contexts, {kRecordedKind}));
  agent.SetLocal(contexts->table_);
  agent.SetLocal(contexts->passes_);
  return contexts;
}

absl::StatusOr<std::shared_ptr<Contexts>> Contexts::Of(
    const rpc::Agent& agent) {
  std::shared_ptr<Contexts> contexts = agent.Local<Contexts>();
  if (contexts == nullptr) return NoContexts(agent);
  return contexts;
}

void Contexts::Close() {
  table_->Close();
  for (const ContextId& id : table_->Open()) Release(id);
  if (pool_ != nullptr) pool_->Shutdown().IgnoreError();
}

void Contexts::OnAgentEnd() {
  for (const ContextId& id : table_->Open()) EndHere(id);
}

void Contexts::OnPeerGone(const rpc::Agent::GonePeer& peer) {
  const std::vector<ContextId> orphans = table_->PeerGone(peer.key);
  passes_->PeerGone(peer.key);
  // The others are notified of the death by themselves: if only this worker
  // takes the creator for dead, the context goes on without this worker.
  for (const ContextId& id : orphans) EndHere(id);
}

// ------------------------------------------------------------ the end of one

std::shared_ptr<Context> Contexts::EndHere(ContextId id) {
  std::shared_ptr<Context> context = table_->End(id);
  if (context == nullptr) return nullptr;
  passes_->ContextEnded(id);
  context->AbortParticipants();
  return context;
}

void Contexts::Release(ContextId id) {
  const std::shared_ptr<Context> context = EndHere(id);
  // The others' part in a context of another worker is not this one's to end.
  if (context == nullptr || id.creator != key()) return;
  for (const WorkerKey peer : context->Close()) {
    if (peer == key()) continue;
    weak_agent()->CallUntilAnswered(
        peer, kControlAttempt, internal::ReleaseContext,
        [](const absl::Status&) {}, id);
  }
}

absl::StatusOr<std::shared_ptr<Context>> Contexts::FindToStep(
    const rpc::Worker& peer, ContextId id) const {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Context> context, Find(id));
  if (context->MayStep(peer.key)) return context;
  return absl::PermissionDeniedError(absl::StrCat(
      "worker ", peer.name, " (", peer.key.ToString(), ") steps ",
      id.ToString(), " at worker ", name(),
      ", and took part in no pass of it that was committed here; its creator, "
      "worker ",
      weak_agent()->NameOf(id.creator), ", steps it"));
}

absl::Status Contexts::ServeRelease(const rpc::Worker& from, ContextId id) {
  if (id.creator != from.key) {
    return absl::PermissionDeniedError(absl::StrCat(
        "worker ", from.name, " (", from.key.ToString(),
        ") asks for the end of ", id.ToString(), "; only its creator, worker ",
        weak_agent()->NameOf(id.creator), ", ends it"));
  }
  if (id.number == 0) {
    return absl::InvalidArgumentError("a context without number");
  }
  Release(id);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Contexts::Take(
    absl::string_view, const rpc::CodecContext& message, const Bytes& bytes) {
  return TakeRecorded(table_, message, bytes,
                      [this](ContextId id) { JoinCreator(id); });
}

void Contexts::JoinCreator(ContextId id) {
  weak_agent()->CallUntilAnswered(
      id.creator, kControlAttempt, internal::JoinContext,
      [weak = weak_from_this(), id](const absl::Status& joined) {
        const std::shared_ptr<Contexts> all = weak.lock();
        if (all != nullptr && !joined.ok()) all->Release(id);
      },
      id);
}

absl::Status Contexts::ServeJoin(const rpc::Worker& peer, ContextId id) {
  if (id.creator != key()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", peer.name, " joins ", id.ToString(),
                     " at worker ", name(), ", which has not created it"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> found, Find(id));
  return found->AddPeer(peer.key);
}

// ------------------------------------------------------------ reports

Contexts::Counts Contexts::counts() const {
  Counts counts;
  counts.contexts = static_cast<int64_t>(table_->Open().size());
  counts.passes = passes_->open();
  return counts;
}

telemetry::Fields Contexts::Describe() const {
  const Counts now = counts();
  telemetry::Fields fields;
  fields.emplace_back("open contexts", now.contexts);
  fields.emplace_back("open passes", now.passes);
  size_t number = 0;
  for (const std::string& line : ExplainPasses()) {
    fields.emplace_back(absl::StrCat("pass ", ++number), line);
  }
  return fields;
}

// ------------------------------------------------------------ what peers call

namespace internal {

// The graph's nodes end in it, with what user code kept in them: not inline.
absl::Status ReleaseContext(rpc::CallContext& context, ContextId id) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Contexts> contexts,
                        Contexts::Of(context.agent()));
  return contexts->ServeRelease(context.peer(), id);
}
WEFT_RPC_IDEMPOTENT(ReleaseContext);

absl::Status JoinContext(rpc::CallContext& context, ContextId id) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Contexts> contexts,
                        Contexts::Of(context.agent()));
  return contexts->ServeJoin(context.peer(), id);
}
WEFT_RPC_IDEMPOTENT(JoinContext);

}  // namespace internal

absl::StatusOr<int64_t> PrepareParticipants(rpc::CallContext& call,
                                            ContextId id) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Contexts> contexts,
                        Contexts::Of(call.agent()));
  const auto context = contexts->FindToStep(call.peer(), id);
  // A worker that no recorded call of the context came to has none.
  if (absl::IsNotFound(context.status())) return 0;
  WEFT_RETURN_IF_ERROR(context.status());
  return (*context)->PrepareParticipants();
}
WEFT_RPC_IDEMPOTENT(PrepareParticipants);

Future<void> CommitParticipants(rpc::CallContext& call, ContextId id) {
  const auto contexts = Contexts::Of(call.agent());
  if (!contexts.ok()) return MakeReady<void>(contexts.status());
  const auto context = (*contexts)->FindToStep(call.peer(), id);
  if (absl::IsNotFound(context.status())) return MakeReady();
  if (!context.ok()) return MakeReady<void>(context.status());
  return (*context)->CommitParticipants();
}
WEFT_RPC_IDEMPOTENT(CommitParticipants);

}  // namespace weft::dist_autograd
