#include "weft/net/endpoint.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_file.h"
#include "weft/net/endpoint_core.h"
#include "weft/net/reflection.h"

namespace weft::net {
namespace {

absl::Status CheckName(const std::string& name) {
  bool fits = !name.empty() && name.size() <= 63;
  for (char c : name)
    fits = fits && (absl::ascii_isalnum(c) || c == '-' || c == '_');
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("endpoint name \"", absl::CHexEscape(name.substr(0, 80)),
                   "\": wanted 1 to 63 of [A-Za-z0-9_-]"));
}

}  // namespace

// Shared by the handler's IncomingCall and the observer of the transport's
// call.
class IncomingCall::State {
 public:
  State(std::shared_ptr<ServerCall> call,
        std::unique_ptr<Admission::Ticket> ticket)
      : call_(std::move(call)), ticket_(std::move(ticket)) {}

  ServerCall& call() const { return *call_; }
  Slices& request() { return request_; }

  absl::Status Receive(Slices request) {
    WEFT_RETURN_IF_ERROR(
        ticket_->AddBytes(static_cast<int64_t>(TotalSize(request))));
    request_ = std::move(request);
    return absl::OkStatus();
  }

  // True for the first answer.
  bool TakeAnswer() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::AnyInvocable<void() &&> unneeded;
    MutexLock lock(mu_);
    unneeded = std::move(on_cancel_);
    on_cancel_ = nullptr;
    return !std::exchange(answered_, true);
  }

  bool answered() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return answered_;
  }

  bool cancelled() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return cancelled_;
  }

  void OnCancel(absl::AnyInvocable<void() &&> fn) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (!cancelled_) {
        on_cancel_ = std::move(fn);
        return;
      }
    }
    std::move(fn)();
  }

  void Cancelled() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::AnyInvocable<void() &&> fn;
    {
      MutexLock lock(mu_);
      if (answered_) return;
      cancelled_ = true;
      fn = std::move(on_cancel_);
      on_cancel_ = nullptr;
    }
    if (fn != nullptr) std::move(fn)();
  }

 private:
  const std::shared_ptr<ServerCall> call_;
  const std::unique_ptr<Admission::Ticket> ticket_;
  Slices request_;
  Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::AnyInvocable<void() &&> on_cancel_ ABSL_GUARDED_BY(mu_);
};

IncomingCall::IncomingCall(std::shared_ptr<State> state)
    : state_(std::move(state)) {}
IncomingCall::IncomingCall(IncomingCall&&) noexcept = default;
IncomingCall& IncomingCall::operator=(IncomingCall&& other) noexcept {
  IncomingCall dropped(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}
IncomingCall::~IncomingCall() {
  if (state_ == nullptr || !state_->TakeAnswer()) return;
  state_->call().Close(absl::InternalError(
      absl::StrCat(method(), ": its handler dropped the call")));
}

const Peer& IncomingCall::peer() const { return state_->call().peer(); }
const std::string& IncomingCall::method() const {
  return state_->call().method();
}
const Metadata& IncomingCall::metadata() const {
  return state_->call().metadata();
}
absl::Duration IncomingCall::remaining() const {
  const Instant deadline = state_->call().deadline();
  if (deadline.is_infinite()) return absl::InfiniteDuration();
  return std::max(absl::ZeroDuration(), deadline - SteadyClock().Now());
}
bool IncomingCall::is_cancelled() const { return state_->cancelled(); }
void IncomingCall::OnCancel(absl::AnyInvocable<void() &&> fn) {
  state_->OnCancel(std::move(fn));
}
const Slices& IncomingCall::request() const { return state_->request(); }
Slices IncomingCall::TakeRequest() { return std::move(state_->request()); }

void IncomingCall::Reply(Slices response) {
  WEFT_CHECK(state_->TakeAnswer()) << method() << " was answered twice";
  state_->call().Answer(std::move(response));
}

void IncomingCall::Reply(absl::Status error) {
  WEFT_CHECK(!error.ok()) << "an answer that is Ok needs its bytes";
  WEFT_CHECK(state_->TakeAnswer()) << method() << " was answered twice";
  state_->call().Close(std::move(error));
}

namespace {

// Brings the one request of a unary call to its handler.
class UnaryObserver final : public StreamObserver {
 public:
  // `core` outlives it: the call's owner holds it.
  UnaryObserver(Endpoint::UnaryHandler& handler, Endpoint::Core& core,
                std::shared_ptr<IncomingCall::State> state)
      : handler_(handler), core_(core), state_(std::move(state)) {}

  void OnMessage(Slices message) override {
    const absl::Status admitted = state_->Receive(std::move(message));
    if (!admitted.ok()) return Refuse(LimitOf(admitted), admitted);
    IncomingCall call(state_);
    // An exception destroys the call, which answers.
    CatchToStatus([&] { handler_(std::move(call)); }).IgnoreError();
  }
  void OnHalfClosed(Stream&) override {
    Refuse("request",
           absl::InvalidArgumentError("a unary call without a request"));
  }
  void OnClosed(absl::Status) override { state_->Cancelled(); }

 private:
  void Refuse(absl::string_view kind, const absl::Status& why) {
    if (state_->TakeAnswer()) core_.Refuse(state_->call(), kind, why);
  }

  Endpoint::UnaryHandler& handler_;
  Endpoint::Core& core_;
  const std::shared_ptr<IncomingCall::State> state_;
};

}  // namespace

Endpoint::Core::Core(Loop::Core& loop, EndpointOptions options)
    : loop_(loop.shared_from_this()),
      options_(std::move(options)),
      admission_(std::make_shared<Admission>(options_.limits)),
      probe_count_(options_.probe_misses) {}

absl::Status Endpoint::Core::CheckCredentials(const Address& address) const {
  const Credentials& ours = loop_->options().credentials;
  if (address.kind == Address::Kind::kUnix || ours.secure())
    return absl::OkStatus();
  if (!ours.insecure()) {
    return CertificatesError(
        absl::StrCat("wanted to listen on ", address.ToString(),
                     ": TCP needs certificates; ", kHowToGetCertificates));
  }
  WEFT_LOG(loop_->telemetry().logger(), Warning,
           "--insecure: whoever reaches this address may call every function "
           "and read every tensor")
      .With("address", address.ToString());
  return absl::OkStatus();
}

// Listens before it serves: what connects waits in the backlog until Start().
absl::Status Endpoint::Core::Open() {
  WEFT_RETURN_IF_ERROR(CheckName(options_.name));
  WEFT_ASSIGN_OR_RETURN(const Address wanted, ParseAddress(options_.listen));
  WEFT_RETURN_IF_ERROR(CheckCredentials(wanted));
  WEFT_ASSIGN_OR_RETURN(Listener listener, Listener::Open(wanted));
  listening_ = listener.address();
  address_ = listening_->ToString();
  if (!options_.advertise.empty()) {
    WEFT_ASSIGN_OR_RETURN(Address advertised, ParseAddress(options_.advertise));
    if (advertised.kind == Address::Kind::kTcp && advertised.port == 0)
      advertised.port = listening_->port;
    address_ = advertised.ToString();
  }
  WEFT_RETURN_IF_ERROR(loop_->AddEndpoint(options_.name, shared_from_this()));
  listener_.emplace(std::move(listener));
  RegisterUnary(kHealthCheckMethod, health_.CheckHandler(), Roles::Any());
  RegisterStream(kHealthWatchMethod, health_.WatchAcceptor(), Roles::Any());
  RegisterStream(kReflectionMethod,
                 ReflectionAcceptor([this] { return Services(); }),
                 Roles::Only({"admin"}));
  return absl::OkStatus();
}

Endpoint::Core::Method& Endpoint::Core::AddMethod(absl::string_view method,
                                                  Roles roles) {
  WEFT_CHECK(!started_.load()) << "register " << method << " before Start()";
  WEFT_CHECK(absl::StartsWith(method, "/")) << method;
  auto [entry, is_new] = methods_.emplace(
      std::string(method), Method{std::move(roles), nullptr, nullptr});
  WEFT_CHECK(is_new) << method << " is registered already";
  return entry->second;
}

void Endpoint::Core::RegisterUnary(absl::string_view method,
                                   UnaryHandler handler, Roles roles) {
  AddMethod(method, std::move(roles)).unary = std::move(handler);
}

void Endpoint::Core::RegisterStream(absl::string_view method,
                                    StreamAcceptor acceptor, Roles roles) {
  AddMethod(method, std::move(roles)).stream = std::move(acceptor);
}

std::map<std::string, Roles> Endpoint::Core::Access() const {
  std::map<std::string, Roles> access;
  for (const auto& [path, method] : methods_)
    access.emplace(path, method.roles);
  return access;
}

std::set<std::string> Endpoint::Core::Services() const {
  std::set<std::string> services;
  for (const auto& [path, method] : methods_)
    services.insert(path.substr(1, path.rfind('/') - 1));
  return services;
}

absl::Status Endpoint::Core::Start() {
  WEFT_CHECK(listener_.has_value()) << "Start() twice, or after Shutdown()";
  health_.SetServices(Services());
  started_.store(true);
  health_.SetServing(true);
  WEFT_RETURN_IF_ERROR(loop_->Listen(*std::exchange(listener_, std::nullopt)));
  ProbeLater();
  return absl::OkStatus();
}

void Endpoint::Core::ProbeLater() {
  if (options_.probe_every <= absl::ZeroDuration()) return;
  MutexLock lock(probe_mu_);
  if (probes_ended_) return;
  probe_timer_ = loop_->poller().RunAt(
      SteadyClock().Now() + options_.probe_every, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Probe();
      });
}

// By a channel of its own, so that it must be accepted like a stranger.
void Endpoint::Core::Probe() {
  ChannelOptions options;
  options.name = options_.name;
  auto channel = Channel::Create(*loop_, listening_->ToString(), options);
  std::unique_ptr<Channel> former;
  std::optional<Future<Slices>> answer;
  {
    MutexLock lock(probe_mu_);
    if (probes_ended_) return;
    former = std::move(probe_);
    if (channel.ok()) {
      probe_ = std::move(*channel);
      answer = probe_->UnaryCall(kHealthCheckMethod, {}, options_.probe_every);
    }
  }
  if (!answer.has_value()) return OnProbed(channel.status());
  answer->OnReady([weak = weak_from_this()](const Result<Slices>& result) {
    if (const auto self = weak.lock()) self->OnProbed(result.status());
  });
}

void Endpoint::Core::OnProbed(const absl::Status& answer) {
  // Any other error is an answer: somebody serves there. While a flood is kept
  // away, the probe may have been so too.
  const bool missed =
      (absl::IsUnavailable(answer) || absl::IsDeadlineExceeded(answer)) &&
      !loop_->IsHoldingBack();
  absl::Status unreachable;
  {
    MutexLock lock(probe_mu_);
    if (probes_ended_) return;
    const ProbeCount::Then then = probe_count_.OnProbed(!missed);
    if (then == ProbeCount::Then::kReopen) unreachable = Reopen();
    if (then == ProbeCount::Then::kGiveUp) unreachable = answer;
  }
  if (missed) {
    WEFT_LOG(loop_->telemetry().logger(), Warning,
             "does not answer at its own address: ")
        << answer.message();
  }
  if (!unreachable.ok()) {
    const absl::Status why = absl::UnavailableError(
        absl::StrCat(options_.name, " cannot be reached at its own address ",
                     listening_->ToString(), ", nor can a new listener: ",
                     unreachable.message(), "; start it anew"));
    WEFT_LOG(loop_->telemetry().logger(), Error, "") << why.message();
    if (options_.on_unreachable) options_.on_unreachable(why);
  }
  ProbeLater();
}

absl::Status Endpoint::Core::Reopen() {
  WEFT_LOG(loop_->telemetry().logger(), Warning, "makes its listener anew")
      .With("address", listening_->ToString());
  loop_->telemetry()
      .metrics()
      .CounterFor("weft_net_listeners_reopened_total")
      .Increment();
  loop_->StopListening(*listening_);
  // Three probes were not answered there: whatever socket took the place.
  if (listening_->kind == Address::Kind::kUnix) RemoveSocket(listening_->path);
  WEFT_ASSIGN_OR_RETURN(Listener listener, Listener::Open(*listening_));
  return loop_->Listen(std::move(listener));
}

void Endpoint::Core::EndProbes() {
  std::unique_ptr<Channel> last;
  MutexLock lock(probe_mu_);
  probes_ended_ = true;
  loop_->poller().CancelTimer(probe_timer_);
  last = std::move(probe_);
}

absl::Status Endpoint::Core::Shutdown(absl::Duration timeout) {
  WEFT_CHECK(!InlineScope::IsActive())
      << "Endpoint::Shutdown on the thread that polls";
  if (shut_.exchange(true)) return absl::OkStatus();
  const Instant deadline = SteadyClock().Now() + timeout;
  EndProbes();
  if (started_.load()) loop_->StopListening(*listening_);
  listener_.reset();
  health_.Stop();  // ends the watchers too
  closing_.store(true);
  const bool in_peace = loop_->AwaitNoCalls(this, deadline);
  loop_->AbortCalls(this, absl::UnavailableError(absl::StrCat(
                              options_.name, " is shutting down")));
  loop_->RemoveEndpoint(options_.name);
  WEFT_CHECK(loop_->AwaitAborted(this))
      << "calls stayed open after they were aborted";
  if (in_peace) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("endpoint ", options_.name, ": calls were still open after ",
                   absl::FormatDuration(timeout), " and were ended"));
}

// Over TLS the peer must be of our job.
absl::Status Endpoint::Core::CheckPeer(const Peer& peer) const {
  const Credentials& ours = loop_->options().credentials;
  if (peer.is_local || !ours.secure()) return absl::OkStatus();
  if (!peer.identity.has_value()) {
    return absl::UnauthenticatedError(
        absl::StrCat("peer ", peer.address,
                     ": its certificate names no weft://<job>/<role>/<rank>"));
  }
  if (peer.identity->job == ours.identity()->job) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("peer ", peer.ToString(), " is of job ", peer.identity->job,
                   ", this is job ", ours.identity()->job));
}

void Endpoint::Core::Refuse(ServerCall& call, absl::string_view kind,
                            const absl::Status& why) {
  loop_->refusal_log().Refused(kind, call.peer().ToString(),
                               call.method().substr(0, 256), why.message());
  call.Close(why);
  loop_->CountUselessCall(call);
}

void Endpoint::Core::OnCall(ServerCall& call) {
  const absl::Status allowed = CheckPeer(call.peer());
  if (!allowed.ok()) return Refuse(call, "certificate", allowed);
  if (!started_.load() || closing_.load()) {
    return call.Close(absl::UnavailableError(
        absl::StrCat(options_.name, closing_.load() ? " is shutting down"
                                                    : " has not started yet")));
  }
  auto method = methods_.find(call.method());
  if (method == methods_.end()) {
    call.Close(absl::UnimplementedError(absl::StrCat(
        "no method ", absl::CHexEscape(call.method().substr(0, 256)), " on ",
        options_.name)));
    return loop_->CountUselessCall(call);
  }
  // Tests hold a call here while the endpoint ends.
  WEFT_FAILPOINT("net/before_owner").IgnoreError();
  const absl::Status has_role = method->second.roles.Check(
      call.peer(), absl::StrCat(call.method(), " of ", options_.name));
  if (!has_role.ok()) return Refuse(call, "method", has_role);
  absl::StatusOr<std::unique_ptr<Admission::Ticket>> ticket =
      admission_->Enter(AccountOf(call.peer()));
  if (!ticket.ok())
    return Refuse(call, LimitOf(ticket.status()), ticket.status());
  if (method->second.unary != nullptr) {
    ServeUnary(method->second, call, *std::move(ticket));
  } else {
    ServeStream(method->second, call, *std::move(ticket));
  }
}

bool Endpoint::Core::RefuseAtEnd(ServerCall& call) {
  if (!closing_.load()) return false;
  call.Abort(absl::UnavailableError(options_.name + " is shutting down"));
  return true;
}

void Endpoint::Core::ServeUnary(Method& method, ServerCall& call,
                                std::unique_ptr<Admission::Ticket> ticket) {
  // The table of methods must outlive the call.
  call.SetOwner(this, [self = shared_from_this()] {});
  if (RefuseAtEnd(call)) return;
  auto state = std::make_shared<IncomingCall::State>(call.shared_from_this(),
                                                     std::move(ticket));
  call.Serve(
      std::make_shared<UnaryObserver>(method.unary, *this, std::move(state)),
      ServerCall::Messages::kOne);
}

void Endpoint::Core::ServeStream(Method& method, ServerCall& call,
                                 std::unique_ptr<Admission::Ticket> ticket) {
  call.SetOwner(this,
                [self = shared_from_this(), ticket = std::move(ticket)] {});
  if (RefuseAtEnd(call)) return;
  auto observer = CatchToStatus([&] {
    return method.stream(
        std::make_unique<StreamHandle<ServerCall>>(call.shared_from_this()));
  });
  if (observer.ok()) {
    call.Serve(*std::move(observer), ServerCall::Messages::kAll);
  } else {
    call.Close(observer.status());
    loop_->CountUselessCall(call);
  }
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Open(
    Loop& loop, EndpointOptions options) {
  auto core = std::make_shared<Core>(loop.core(), std::move(options));
  WEFT_RETURN_IF_ERROR(core->Open());
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(core)));
}

Endpoint::Endpoint(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Endpoint::~Endpoint() { core_->Shutdown(absl::ZeroDuration()).IgnoreError(); }

void Endpoint::RegisterUnary(absl::string_view method, UnaryHandler handler,
                             Roles roles) {
  core_->RegisterUnary(method, std::move(handler), std::move(roles));
}
void Endpoint::RegisterStream(absl::string_view method, StreamAcceptor acceptor,
                              Roles roles) {
  core_->RegisterStream(method, std::move(acceptor), std::move(roles));
}
std::map<std::string, Roles> Endpoint::Access() const {
  return core_->Access();
}
absl::Status Endpoint::Start() { return core_->Start(); }
const std::string& Endpoint::name() const { return core_->name(); }
const std::string& Endpoint::address() const { return core_->address(); }
void Endpoint::SetServing(bool serving) { core_->health().SetServing(serving); }
absl::Status Endpoint::Shutdown(absl::Duration timeout) {
  return core_->Shutdown(timeout);
}

}  // namespace weft::net
