#include "weft/rpc/gateway/untyped_call_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/roles.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/agent/sessionless_call.h"
#include "weft/rpc/codec/signature.h"
#include "weft/rpc/gateway/untyped_value.h"
#include "weft/telemetry/trace_context.h"

namespace weft::rpc {
namespace {

constexpr char kCall[] = "/weft.rpc.v1.Worker/Call";
constexpr char kDescribe[] = "/weft.rpc.v1.Worker/Describe";

// The caller: by the certificate, else anybody of this user or network.
Worker CallerOf(const net::Peer& peer) {
  if (!peer.identity.has_value()) return {"client", {}, peer.address};
  return {peer.identity->Name(), {}, peer.address, peer.identity->role};
}

// A call that has come, until it is answered.
class Served {
 public:
  Served(net::IncomingCall call, Signature signature)
      : call_(std::move(call)), signature_(std::move(signature)) {}

  // Tells `gone` when the caller goes. Before the call is served.
  void Watch(CancelSource gone) {
    call_.OnCancel([gone = std::move(gone)]() mutable {
      gone.Cancel(absl::CancelledError("the client has gone or given up"));
    });
  }

  void Answer(const std::string& worker, const absl::Status& status,
              const ReplyPtr& reply) {
    absl::Status ended = status;
    v1::CallReply plain;
    if (ended.ok()) {
      ended = CatchToStatus([&] {
        return DecodeUntyped(Received{reply->body, reply->is_private},
                             signature_, &plain);
      });
    }
    std::string bytes;
    if (ended.ok() && !plain.SerializeToString(&bytes)) {
      ended = absl::ResourceExhaustedError(
          "the result is larger than a protobuf message may be");
    }
    if (ended.ok()) return call_.Reply({Bytes::Own(std::move(bytes))});
    call_.Reply(Reworded(ended, SaidBy(worker, ended.message())));
  }

 private:
  net::IncomingCall call_;
  const Signature signature_;
};

// A function by its name, with what it takes and returns.
absl::StatusOr<const Function*> Find(const SessionlessServer& server,
                                     const std::string& name,
                                     Signature* signature) {
  const Function* function = server.registry().FindName(name);
  if (function == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "no function ", absl::CHexEscape(name.substr(0, 256)), " in build ",
        server.build(), "; weft.rpc.v1.Worker/Describe lists them"));
  }
  WEFT_ASSIGN_OR_RETURN(*signature, ParseSignature(function->signature));
  WEFT_RETURN_IF_ERROR(CheckUntyped(*signature));
  return function;
}

absl::StatusOr<Request> Read(const SessionlessServer& server,
                             net::IncomingCall& call, Signature* signature) {
  v1::CallRequest plain;
  WEFT_RETURN_IF_ERROR(ParseUntyped(call.TakeRequest(), &plain));
  WEFT_ASSIGN_OR_RETURN(const Function* function,
                        Find(server, plain.function(), signature));
  auto body = EncodeUntyped(plain, *signature);
  if (!body.ok()) {
    return Reworded(body.status(),
                    absl::StrCat(function->name, ": ", body.status().message(),
                                 "; it is ", function->signature));
  }
  Request request;
  request.function = function->name;
  request.signature = function->digest;
  request.body = *std::move(body);
  return request;
}

absl::Duration TimeoutOf(const net::IncomingCall& call) {
  const absl::Duration asked = call.remaining();
  if (asked == absl::InfiniteDuration()) return kUntypedTimeout;
  return std::min(asked, kMaxUntypedTimeout);
}

void ServeCall(SessionlessServer& server, net::IncomingCall call) {
  const std::string name = server.worker().name;
  const Instant deadline = SteadyClock().Now() + TimeoutOf(call);
  Signature signature;
  absl::StatusOr<Request> read =
      CatchToStatus([&] { return Read(server, call, &signature); });
  if (!read.ok()) {
    return call.Reply(Reworded(
        read.status(), absl::StrCat(name, ": ", read.status().message())));
  }
  auto request = std::make_shared<Request>(*std::move(read));
  request->deadline = deadline;
  const auto trace = telemetry::ParseTraceparent(
      net::FindMetadata(call.metadata(), "traceparent"));
  if (trace.ok()) request->trace = *trace;
  const Worker caller = CallerOf(call.peer());
  auto served = std::make_shared<Served>(std::move(call), std::move(signature));
  const CancelSource gone;
  served->Watch(gone);
  server.ServeSessionless(
      caller, std::move(request), gone.token(),
      [served, name](const absl::Status& status, const ReplyPtr& reply) {
        served->Answer(name, status, reply);
      });
}

// The functions that `caller` may call there.
v1::DescribeReply Describe(const SessionlessServer& server,
                           const Worker& caller) {
  v1::DescribeReply reply;
  const Worker worker = server.worker();
  reply.set_job(server.job());
  reply.set_name(worker.name);
  reply.mutable_key()->set_id(worker.key.id);
  reply.mutable_key()->set_epoch(worker.key.epoch);
  reply.set_build(server.build());
  for (const std::string& name : server.registry().Names()) {
    const Function& known = *server.registry().FindName(name);
    if (!server.MayCall(known, caller)) continue;
    v1::Function* function = reply.add_functions();
    function->set_name(name);
    function->set_signature(known.signature);
  }
  return reply;
}

}  // namespace

class UntypedCallService::Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(Executor& executor) : executor_(executor) {}

  void SetServer(std::weak_ptr<SessionlessServer> server)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    server_ = std::move(server);
  }

  // Values may be large: not on the thread that polls.
  void OnCall(net::IncomingCall call) {
    auto shared = std::make_shared<net::IncomingCall>(std::move(call));
    executor_.Schedule([self = shared_from_this(), shared] {
      if (const auto server = self->ServerFor(*shared)) {
        ServeCall(*server, std::move(*shared));
      }
    });
  }

  void OnDescribe(net::IncomingCall call) {
    if (const auto server = ServerFor(call)) {
      const Worker caller = CallerOf(call.peer());
      call.Reply({Bytes::Own(Describe(*server, caller).SerializeAsString())});
    }
  }

 private:
  // Null, and the call is refused, while there is no agent.
  std::shared_ptr<SessionlessServer> ServerFor(net::IncomingCall& call)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<SessionlessServer> server;
    {
      MutexLock lock(mu_);
      server = server_.lock();
    }
    if (server == nullptr) {
      call.Reply(absl::UnavailableError("no agent accepts calls here now"));
    }
    return server;
  }

  Executor& executor_;
  Mutex mu_;
  std::weak_ptr<SessionlessServer> server_ ABSL_GUARDED_BY(mu_);
};

UntypedCallService::UntypedCallService(net::Endpoint& endpoint,
                                       Executor& executor)
    : core_(std::make_shared<Core>(executor)) {
  // The agent checks the roles of each function.
  endpoint.RegisterUnary(
      kCall,
      [core = core_](net::IncomingCall call) { core->OnCall(std::move(call)); },
      net::Roles::Any());
  endpoint.RegisterUnary(
      kDescribe,
      [core = core_](net::IncomingCall call) {
        core->OnDescribe(std::move(call));
      },
      net::Roles::Any());
}

void UntypedCallService::Serve(const Agent& agent) {
  core_->SetServer(agent.sessionless_server());
}

}  // namespace weft::rpc
