// Over the network: see the header.

#include "weft/rendezvous/grpc_coordinator.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/base/status_macros.h"
#include "weft/net/channel.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

constexpr absl::string_view kService = "/weft.rendezvous.v1.Coordinator/";

class LoopTimers final : public TimerSource {
 public:
  explicit LoopTimers(net::Loop& loop) : loop_(loop) {}
  Driver& driver() override { return loop_.driver(); }
  void RunAfter(absl::Duration delay,
                absl::AnyInvocable<void() &&> fn) override {
    loop_.RunAt(SteadyClock().Now() + delay, std::move(fn));
  }

 private:
  net::Loop& loop_;
};

class GrpcLink final : public CoordinatorLink {
 public:
  // Methods come after `path`.
  GrpcLink(std::unique_ptr<net::Channel> channel, absl::string_view path)
      : channel_(std::move(channel)), path_(path) {}

  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) override {
    return channel_
        ->UnaryCall(absl::StrCat(path_, method),
                    {Bytes::Own(std::move(request))}, timeout)
        .Then([](const Slices& reply) {
          return std::string(Flatten(reply).view());
        });
  }

  const std::string& address() const override { return channel_->address(); }

 private:
  const std::unique_ptr<net::Channel> channel_;
  const std::string path_;
};

absl::StatusOr<std::unique_ptr<CoordinatorLink>> MakeLink(
    net::Loop& loop, absl::string_view address, absl::string_view name,
    absl::string_view path) {
  net::ChannelOptions options;
  options.name = std::string(name);
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<net::Channel> channel,
      net::Channel::Create(loop, address, std::move(options)));
  return std::make_unique<GrpcLink>(std::move(channel), path);
}

Coordinator::Caller CallerOf(const net::Peer& peer) {
  Coordinator::Caller caller;
  caller.text = peer.ToString();
  if (peer.identity.has_value() && peer.identity->role != kAdminRole) {
    caller.name = peer.identity->Name();
  }
  return caller;
}

void Receive(Coordinator& coordinator, absl::string_view method,
             net::IncomingCall call) {
  const Bytes request = Flatten(call.TakeRequest());
  const Coordinator::Caller caller = CallerOf(call.peer());
  auto held = std::make_shared<net::IncomingCall>(std::move(call));
  const uint64_t number = coordinator.Handle(
      caller, method, request.view(),
      [held](absl::StatusOr<std::string> answer) {
        if (answer.ok()) {
          held->Reply(Slices{Bytes::Own(*std::move(answer))});
        } else {
          held->Reply(answer.status());
        }
      });
  if (number == 0) return;
  held->OnCancel([&coordinator, number] { coordinator.CallerGone(number); });
}

}  // namespace

std::unique_ptr<TimerSource> MakeLoopTimers(net::Loop& loop) {
  return std::make_unique<LoopTimers>(loop);
}

absl::StatusOr<std::unique_ptr<CoordinatorLink>> MakeGrpcLink(
    net::Loop& loop, absl::string_view address, absl::string_view host) {
  return MakeLink(loop, address, host, kService);
}

absl::StatusOr<std::unique_ptr<CoordinatorLink>> MakeEtcdLink(
    net::Loop& loop, absl::string_view address) {
  return MakeLink(loop, address, "etcd0", "/etcdserverpb.");
}

void Serve(Coordinator& coordinator, net::Endpoint& endpoint) {
  for (const absl::string_view method :
       MethodsOf<CoordinatorCore::Request>::Names()) {
    endpoint.RegisterUnary(absl::StrCat(kService, method),
                           [&coordinator, method](net::IncomingCall call) {
                             Receive(coordinator, method, std::move(call));
                           });
  }
}

}  // namespace weft::rendezvous
