#include "weft/dist_autograd/pass_calls.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/passes.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"

namespace weft::dist_autograd {

absl::Status NoContexts(const rpc::Agent& agent) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", agent.name(),
      " has no distributed contexts: call dist_autograd::Contexts::Open(agent) "
      "when it starts"));
}

namespace internal {

namespace {

// Runs `task` on the strand of this worker's part of the pass: the Future of
// what it returns.
template <typename R, typename Task>
Future<R> OnPart(rpc::CallContext& context, ContextId id, PassId pass,
                 Task task) {
  Passes* const passes = context.Local<Passes>();
  if (passes == nullptr) return MakeReady<R>(NoContexts(context.agent()));
  absl::StatusOr<std::shared_ptr<Participation>> part = passes->Join(id, pass);
  if (!part.ok()) return MakeReady<R>(part.status());
  auto promise = std::make_shared<Promise<R>>();
  Future<R> result = promise->future();
  (*part)->Post([promise, task = std::move(task)](Participation& p) {
    task(p, [promise](Result<R> r) { promise->Set(std::move(r)); });
  });
  return result;
}

constexpr auto kLastStatusCode =
    static_cast<int64_t>(absl::StatusCode::kUnauthenticated);

absl::Status CheckIsRoot(const rpc::CallContext& context, const PassId& pass) {
  if (pass.root == context.peer().key) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(pass.ToString(), " is not ", context.peer().name, "'s"));
}

absl::Status CheckCode(const PassId& pass, int64_t code, int64_t first) {
  if (code >= first && code <= kLastStatusCode) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the outcome of ", pass.ToString(), " has the code ", code,
                   "; wanted one from ", first, " to ", kLastStatusCode));
}

}  // namespace

Future<uint64_t> TakePart(rpc::CallContext& context, ContextId id, PassId pass,
                          const MessageIntervals& live,
                          const std::vector<WorkerKey>& participants,
                          bool retain, bool deterministic) {
  if (absl::Status wrong = CheckIsRoot(context, pass); !wrong.ok()) {
    return MakeReady<uint64_t>(wrong);
  }
  const PassRequest request{live, participants, retain, deterministic};
  return OnPart<uint64_t>(context, id, pass,
                          [request](Participation& part, auto set) {
                            part.Prepare(request, {}).OnReady(set);
                          });
}
WEFT_RPC_INLINE(TakePart);

Future<void> TakeGradients(rpc::CallContext& context, ContextId id, PassId pass,
                           uint64_t message,
                           const std::vector<Gradient>& slots) {
  const rpc::Worker from = context.peer();
  return OnPart<void>(context, id, pass, [=](Participation& part, auto set) {
    set(part.OnGradients(from, message, slots));
  });
}
WEFT_RPC_INLINE(TakeGradients);

absl::Status FailPass(rpc::CallContext& context, ContextId id, PassId pass,
                      int64_t code, const std::string& message) {
  WEFT_RETURN_IF_ERROR(CheckCode(pass, code, /*first=*/1));
  Passes* const passes = context.Local<Passes>();
  if (passes == nullptr) return NoContexts(context.agent());
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<RootPass> root,
                        passes->FindRoot(id, pass));
  const rpc::Worker& from = context.peer();
  if (!root->HasParticipant(from.key)) {
    return absl::PermissionDeniedError(
        absl::StrCat("worker ", from.name, " reports a failure of ",
                     pass.ToString(), ", in which it has no part"));
  }
  const absl::Status why(static_cast<absl::StatusCode>(code), message);
  root->Post([key = from.key, why](RootPass& p) { p.OnFailed(key, why); });
  return absl::OkStatus();
}
WEFT_RPC_IDEMPOTENT(FailPass);

Future<void> TakeOutcome(rpc::CallContext& context, ContextId id, PassId pass,
                         int64_t code, const std::string& message) {
  if (absl::Status wrong = CheckIsRoot(context, pass); !wrong.ok()) {
    return MakeReady<void>(wrong);
  }
  if (absl::Status wrong = CheckCode(pass, code, /*first=*/0); !wrong.ok()) {
    return MakeReady<void>(wrong);
  }
  const absl::Status outcome(static_cast<absl::StatusCode>(code), message);
  return OnPart<void>(context, id, pass, [=](Participation& part, auto set) {
    part.OnOutcome(outcome);
    // After the graph's task has ended, so that the next pass may use its
    // graph.
    part.Post([set](Participation&) { set(absl::OkStatus()); });
  });
}
WEFT_RPC_INLINE(TakeOutcome);

Future<void> RepeatOutcome(rpc::CallContext& context, ContextId id, PassId pass,
                           int64_t code, const std::string& message) {
  return TakeOutcome(context, id, pass, code, message);
}
WEFT_RPC_IDEMPOTENT(RepeatOutcome);

Future<int64_t> AskOutcome(rpc::CallContext& context, ContextId id,
                           PassId pass) {
  const rpc::Worker from = context.peer();
  return OnPart<int64_t>(context, id, pass, [=](Participation& part, auto set) {
    set(part.OnAsked(from));
  });
}
WEFT_RPC_IDEMPOTENT(AskOutcome);

Future<std::vector<std::string>> AskAwaited(rpc::CallContext& context,
                                            ContextId id, PassId pass) {
  if (absl::Status wrong = CheckIsRoot(context, pass); !wrong.ok()) {
    return MakeReady<std::vector<std::string>>(wrong);
  }
  return OnPart<std::vector<std::string>>(
      context, id, pass,
      [](Participation& part, auto set) { set(part.AwaitedMessages()); });
}
WEFT_RPC_INLINE(AskAwaited);

Future<void> AwaitEnd(rpc::CallContext& context, ContextId id, PassId pass) {
  Passes* const passes = context.Local<Passes>();
  if (passes == nullptr) return MakeReady<void>(NoContexts(context.agent()));
  if (context.peer().key != context.agent().key()) {
    return MakeReady<void>(absl::PermissionDeniedError(
        absl::StrCat(context.peer().name, " waits for the end of ",
                     pass.ToString(), "; only its root does")));
  }
  const auto root = passes->FindRoot(id, pass);
  return root.ok() ? (*root)->end() : MakeReady<void>(root.status());
}
WEFT_RPC_INLINE(AwaitEnd);

}  // namespace internal

}  // namespace weft::dist_autograd
