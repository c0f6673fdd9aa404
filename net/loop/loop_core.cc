#include "weft/net/loop/loop_core.h"

#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/resource_quota.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "weft/base/bytes.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/open_streams.h"
#include "weft/net/loop/grpc_call.h"
#include "weft/net/loop/library_logs.h"
#include "weft/net/loop/local_call.h"
#include "weft/net/loop/server_call.h"

namespace weft::net {
namespace {

// Calls that may arrive before one of them has been looked at.
constexpr int kCallsAhead = 32;

// To hold a slice for the transport costs two allocations: below this a copy is
// cheaper.
constexpr size_t kCopyBelowBytes = 512;

// Time for our own clean-up after the calls were asked to end.
constexpr absl::Duration kAbortGrace = absl::Seconds(30);
// So often, as long as any calls end meanwhile: those of a flood come first.
constexpr int kAbortGraces = 10;

// A status travels in the metadata, whose size is limited.
constexpr size_t kMaxStatusBytes = 2000;

// The freed memory that glibc keeps, and the size from which it maps blocks one
// by one: the most that it accepts.
constexpr int kKeptHeapBytes = 64 << 20;
constexpr int kMappedFromBytes = 32 << 20;

class WakeTag final : public Tag {
 public:
  void Set(grpc::CompletionQueue* queue) {
    alarm_.Set(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), this);
  }
  void Proceed(bool) override { delete this; }
  bool is_wake() const override { return true; }

 private:
  grpc::Alarm alarm_;
};

// Tells when it has been handled.
class BarrierTag final : public Tag {
 public:
  void Proceed(bool) override {
    MutexLock lock(mu_);
    handled_ = true;
    done_.NotifyAll();
  }
  void SetAndAwait(grpc::CompletionQueue* queue) {
    alarm_.Set(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), this);
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(kAbortGrace);
    MutexLock lock(mu_);
    while (!handled_) {
      WEFT_CHECK(done_.WaitUntil(mu_, deadline) || handled_)
          << "nobody polls the loop";
    }
  }

 private:
  grpc::Alarm alarm_;
  Mutex mu_;
  CondVar done_;
  bool handled_ ABSL_GUARDED_BY(mu_) = false;
};

// Putting a core to sleep and waking it takes 20 us of both ends' cores.
constexpr absl::Duration kShortestSpin = absl::Microseconds(10);
// A step of a small model waits for some hundred microseconds each time.
constexpr int kLongerWhereRegular = 10;

int CoresForUs() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores)
                                                         : 1;
}

PollerOptions PollerOptionsOf(const LoopOptions& options, PollerGroup& group) {
  PollerOptions poller;
  poller.group = &group;
  const bool crowded = options.ranks_on_host > CoresForUs();
  poller.spin =
      crowded ? absl::ZeroDuration() : std::max(options.spin, kShortestSpin);
  if (!crowded) poller.longest_spin = kLongerWhereRegular * options.spin;
  return poller;
}

int Milliseconds(absl::Duration d) {
  return static_cast<int>(absl::ToInt64Milliseconds(d));
}

// Settings of the whole process that a Loop needs.
void TuneProcess() {
  LimitLibraryLogs();
  // On in Debian's build; it costs a tenth of a polled round trip, and gRPC's
  // locks are not ours to prove.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // glibc gives what is freed at the top of its heap back beyond 128 KiB. The
  // next message then faults all pages in again: a third of the rate at 64 KiB.
  mallopt(M_TRIM_THRESHOLD, kKeptHeapBytes);
  mallopt(M_MMAP_THRESHOLD, kMappedFromBytes);
  // Never released: the last to do so would wait for a thread of gRPC's that
  // polls for 10 s after a write that did not fit into its socket.
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

// How many bytes an opening of a stream within a host may have beside its
// metadata.
constexpr uint64_t kOpeningBytes = 1 << 10;

// As long as the poller runs.
void TickLater(const std::shared_ptr<LocalSockets>& sockets) {
  sockets->poller.RunAt(SteadyClock().Now() + sockets->tick(), [sockets] {
    sockets->queue.TickSockets(SteadyClock().Now());
    TickLater(sockets);
  });
}

Bytes FromSlice(grpc::Slice slice) {
  auto owner = std::make_shared<const grpc::Slice>(std::move(slice));
  const uint8_t* begin = owner->begin();
  const size_t size = owner->size();
  return Bytes::Wrap(begin, size, std::move(owner));
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(const Slices& slices) {
  absl::InlinedVector<grpc::Slice, 4> converted;
  converted.reserve(slices.size());
  for (const Bytes& slice : slices) {
    if (slice.size() < kCopyBelowBytes) {
      converted.emplace_back(slice.data(), slice.size());
      continue;
    }
    auto release = [](void* held) { delete static_cast<Bytes*>(held); };
    converted.emplace_back(
        grpc_slice_new_with_user_data(const_cast<uint8_t*>(slice.data()),
                                      slice.size(), release, new Bytes(slice)),
        grpc::Slice::STEAL_REF);
  }
  return grpc::ByteBuffer(converted.data(), converted.size());
}

Slices FromByteBuffer(grpc::ByteBuffer& buffer) {
  Slices slices;
  if (!buffer.Valid()) return slices;
  if (grpc::Slice only; buffer.TrySingleSlice(&only).ok()) {
    if (only.size() > 0) slices.push_back(FromSlice(std::move(only)));
    return slices;
  }
  std::vector<grpc::Slice> received;
  // Fails only for a compressed message that is broken: it has no bytes then.
  if (!buffer.Dump(&received).ok()) return slices;
  for (grpc::Slice& slice : received) {
    if (slice.size() > 0) slices.push_back(FromSlice(std::move(slice)));
  }
  return slices;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kMaxStatusBytes)));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // A peer may send any number.
  const int code = status.error_code();
  const bool known =
      code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      status.error_message());
}

gpr_timespec ToGpr(Instant deadline) {
  if (deadline.is_infinite()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  // Both are CLOCK_MONOTONIC.
  return gpr_time_from_nanos(deadline.nanoseconds(), GPR_CLOCK_MONOTONIC);
}

EventQueue::Outcome GrpcQueue::Next(Instant deadline) {
  if (!before_next_.empty()) {
    InlineScope scope;
    // None of them adds another: what adds one is an event.
    for (auto& fn : before_next_) std::move(fn)();
    before_next_.clear();
  }
  if (burst_ >= kMostOfABurst) EndBurst();
  void* tag = nullptr;
  bool ok = false;
  // The poller's "do not wait" is a time long past, which needs no clock.
  const bool may_sleep = deadline.nanoseconds() != 0 && after_burst_.empty();
  const gpr_timespec until =
      may_sleep ? ToGpr(deadline) : gpr_inf_past(GPR_CLOCK_MONOTONIC);
  const Instant began = may_sleep ? SteadyClock().Now() : Instant();
  const grpc::CompletionQueue::NextStatus next =
      queue_->AsyncNext(&tag, &ok, until);
  slept_ = may_sleep ? SteadyClock().Now() - began : absl::ZeroDuration();
  switch (next) {
    case grpc::CompletionQueue::SHUTDOWN:
      return Outcome::kEnd;
    case grpc::CompletionQueue::TIMEOUT:
      ++empty_looks_;
      in_burst_ = false;
      EndBurst();
      return Outcome::kTimeout;
    case grpc::CompletionQueue::GOT_EVENT:
      break;
  }
  taken_ = static_cast<Tag*>(tag);
  taken_ok_ = ok;
  if (!after_burst_.empty()) ++burst_;
  if (!taken_->is_wake()) return Outcome::kEvent;
  taken_->Proceed(ok);
  return Outcome::kTimeout;
}

void GrpcQueue::Handle() {
  InlineScope scope;
  taken_->Proceed(taken_ok_);
}

void GrpcQueue::EndBurst() {
  burst_ = 0;
  if (after_burst_.empty()) return;
  InlineScope scope;
  // None of them adds another: only the handling of an event does.
  for (auto& fn : after_burst_) std::move(fn)();
  after_burst_.clear();
}

void GrpcQueue::Leave() { EndBurst(); }

void GrpcQueue::Wake() {
  MutexLock lock(mu_);
  if (shut_) return;
  (new WakeTag)->Set(queue_.get());
}

void GrpcQueue::AwaitHandled() { BarrierTag().SetAndAwait(queue_.get()); }

void GrpcQueue::Shutdown() {
  MutexLock lock(mu_);
  if (shut_) return;
  shut_ = true;
  queue_->Shutdown();
}

Loop::Core::Core(LoopOptions options)
    : options_(std::move(options)),
      telemetry_(telemetry::OrSilent(options_.telemetry)),
      refusal_log_(telemetry_),
      call_rates_(options_.max_wasted_calls_per_peer),
      poller_(queue_, PollerOptionsOf(options_, pollers_)),
      driver_(pollers_, poller_) {}

Loop::Core::~Core() = default;

void Loop::Core::SetLimits(grpc::ServerBuilder& builder) const {
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  grpc::ResourceQuota memory("weft");
  memory.Resize(static_cast<size_t>(options_.max_buffered_bytes));
  builder.SetResourceQuota(memory);
  const int keepalive_ms = Milliseconds(options_.keepalive_interval);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(options_.max_metadata_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             options_.max_calls_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(options_.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options_.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients ping as often as we do: half of that is still no attack.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, keepalive_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

absl::Status Loop::Core::Start() {
  TuneProcess();
  AcceptLoopOptions edge;
  edge.refusal_log = &refusal_log_;
  edge.telemetry = &telemetry_;
  // Far more than an honest peer sends: gRPC announces our limit to it.
  edge.frames.max_header_bytes =
      std::max(edge.frames.max_header_bytes, 8 * options_.max_metadata_bytes);
  edge.max_connections = options_.max_connections > 0
                             ? options_.max_connections
                             : 4 * options_.world_size + 64;
  edge.max_connections_per_address = options_.max_connections_per_address > 0
                                         ? options_.max_connections_per_address
                                         : edge.max_connections * 3 / 4;
  edge.max_handshakes = options_.max_handshakes;
  edge.handshake_timeout = options_.handshake_timeout;
  edge.max_calls_per_connection = options_.max_calls_per_connection;
  edge.open_streams = OpenStreams;
  WEFT_ASSIGN_OR_RETURN(accept_loop_, AcceptLoop::Create(edge));

  grpc::ServerBuilder builder;
  SetLimits(builder);
  builder.RegisterAsyncGenericService(&service_);
  queue_.Attach(builder.AddCompletionQueue());
  using Builder = grpc::ServerBuilder::experimental_type;
  plain_ = builder.experimental().AddExternalConnectionAcceptor(
      Builder::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  if (options_.credentials.secure()) {
    Tls::Options tls;
    tls.credentials = options_.credentials;
    tls.check_every = options_.certificate_check;
    tls.telemetry = &telemetry_;
    tls.refusal_log = &refusal_log_;
    tls.handshaking = [edge = accept_loop_.get()] {
      return edge->Handshaking();
    };
    WEFT_ASSIGN_OR_RETURN(tls_, Tls::Create(std::move(tls)));
    secure_ = builder.experimental().AddExternalConnectionAcceptor(
        Builder::ExternalConnectionType::FROM_FD, tls_->ForServer());
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    queue_.Shutdown();
    return absl::FailedPreconditionError(
        "the gRPC server did not start: are certificate and key a pair?");
  }
  for (int i = 0; i < kCallsAhead; ++i) RequestCall();
  const absl::Status polled = poller_.Start();
  if (!polled.ok()) {
    accept_loop_->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    queue_.Shutdown();
    poller_.PollToTheEnd();
    server_.reset();
    return polled;
  }
  status_page_ = telemetry_.status().Register("net", [weak = weak_from_this()] {
    const auto core = weak.lock();
    return core == nullptr ? telemetry::Fields() : core->Describe();
  });
  return absl::OkStatus();
}

void Loop::Core::RequestCall() { GrpcCall::Request(*this); }

telemetry::Fields Loop::Core::Describe() {
  telemetry::Fields fields;
  {
    MutexLock lock(mu_);
    fields.emplace_back(
        "endpoints",
        absl::StrJoin(endpoints_, ", ", [](std::string* out, const auto& e) {
          out->append(e.first);
        }));
    fields.emplace_back("open_calls", CountCalls(nullptr));
  }
  fields.emplace_back("connections", accept_loop_->connections());
  fields.emplace_back("max_connections", accept_loop_->max_connections());
  fields.emplace_back("max_message_bytes", options_.max_message_bytes);
  fields.emplace_back("ranks_on_host", options_.ranks_on_host);
  fields.emplace_back("spin", PollerOptionsOf(options_, pollers_).spin);
  return fields;
}

// Calls end first, then the server, then the queue: gRPC forbids an operation
// on a queue that was shut down, and waits without end for a call that nobody
// finishes.
absl::Status Loop::Core::Shutdown(absl::Duration timeout) {
  WEFT_CHECK(!InlineScope::IsActive())
      << "Loop::Shutdown on the thread that polls";
  {
    MutexLock lock(mu_);
    if (shut_) return absl::OkStatus();
    shut_ = true;
  }
  status_page_.Release();
  const Instant deadline = SteadyClock().Now() + timeout;
  accept_loop_->Stop();
  AwaitNoCalls(nullptr, deadline);
  {
    MutexLock lock(mu_);
    closing_ = true;
  }
  AbortCalls(nullptr, absl::UnavailableError("this process is shutting down"));
  AwaitEnd();
  // Sends what the last calls wrote; connections that stay open are cut then.
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(200));
  // A call may have arrived before that, and be in the queue still.
  queue_.AwaitHandled();
  AwaitEnd();
  EndMemory();
  queue_.Shutdown();
  poller_.Join();
  server_.reset();
  return absl::OkStatus();
}

void Loop::Core::AwaitEnd() {
  WEFT_CHECK(AwaitAborted(nullptr))
      << "calls stayed open after they were aborted";
}

absl::Status Loop::Core::StartMemory() {
  if (shut_) return absl::FailedPreconditionError("the loop was shut down");
  if (memory_queue_ != nullptr) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(auto queue, MemoryQueue::Create());
  auto poller =
      std::make_unique<Poller>(*queue, PollerOptionsOf(options_, pollers_));
  WEFT_RETURN_IF_ERROR(poller->Start());
  memory_queue_ = std::move(queue);
  memory_poller_ = std::move(poller);
  driver_.Add(memory_poller_.get());
  return absl::OkStatus();
}

absl::Status Loop::Core::AddMemory(std::shared_ptr<MemorySource> source) {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(StartMemory());
  return memory_queue_->Add(std::move(source));
}

absl::StatusOr<std::shared_ptr<LocalSockets>> Loop::Core::UseLocalSockets() {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(StartMemory());
  if (local_sockets_ != nullptr) return local_sockets_;
  LocalFrameReader::Limits limits;
  limits.max_message_bytes = static_cast<uint64_t>(options_.max_message_bytes);
  limits.max_opening_bytes =
      static_cast<uint64_t>(options_.max_metadata_bytes) + kOpeningBytes;
  local_sockets_.reset(
      new LocalSockets{*memory_queue_, *memory_poller_, limits,
                       options_.max_buffered_bytes, options_.keepalive_interval,
                       options_.keepalive_timeout, options_.handshake_timeout});
  TickLater(local_sockets_);
  return local_sockets_;
}

void Loop::Core::RemoveMemory(const MemorySource* source) {
  MutexLock lock(mu_);
  if (memory_queue_ != nullptr) memory_queue_->Remove(source);
}

// No user of shared memory is left here: the calls have ended.
void Loop::Core::EndMemory() {
  MemoryQueue* queue;
  Poller* poller;
  {
    MutexLock lock(mu_);
    if (memory_queue_ == nullptr) return;
    memory_queue_->End();
    queue = memory_queue_.get();
    poller = memory_poller_.get();
  }
  poller->Join();
  queue->DropSockets();  // that were not calls yet
}

bool Loop::Core::AddCall(const void* owner, std::shared_ptr<OpenCall> call) {
  MutexLock lock(mu_);
  OpenCall* const key = call.get();
  open_.emplace(key, OpenEntry{owner, std::move(call)});
  return !closing_;
}

void Loop::Core::RemoveCall(OpenCall* call) {
  std::shared_ptr<OpenCall> last;  // dies without the lock
  MutexLock lock(mu_);
  auto found = open_.find(call);
  WEFT_CHECK(found != open_.end());
  last = std::move(found->second.call);
  open_.erase(found);
  ++ended_calls_;
  call_ended_.NotifyAll();
}

void Loop::Core::SetOwner(OpenCall* call, const void* owner) {
  MutexLock lock(mu_);
  open_.at(call).owner = owner;
}

void Loop::Core::AbortCalls(const void* owner, const absl::Status& reason) {
  std::vector<std::shared_ptr<OpenCall>> calls;
  {
    MutexLock lock(mu_);
    for (const auto& [key, entry] : open_) {
      if (owner == nullptr || entry.owner == owner) calls.push_back(entry.call);
    }
  }
  for (const auto& call : calls) call->Abort(reason);
}

int Loop::Core::CountCalls(const void* owner) const {
  if (owner == nullptr) return static_cast<int>(open_.size());
  return std::count_if(open_.begin(), open_.end(), [owner](const auto& entry) {
    return entry.second.owner == owner;
  });
}

bool Loop::Core::AwaitAborted(const void* owner) {
  for (int i = 0; i < kAbortGraces; ++i) {
    const int64_t before = CountEnded();
    if (AwaitNoCalls(owner, SteadyClock().Now() + kAbortGrace)) return true;
    if (CountEnded() == before) return false;
  }
  return false;
}

int64_t Loop::Core::CountEnded() {
  MutexLock lock(mu_);
  return ended_calls_;
}

bool Loop::Core::AwaitNoCalls(const void* owner, Instant deadline) {
  const std::chrono::steady_clock::time_point until{
      std::chrono::nanoseconds(deadline.nanoseconds())};
  MutexLock lock(mu_);
  while (CountCalls(owner) > 0) {
    if (!call_ended_.WaitUntil(mu_, until)) return CountCalls(owner) == 0;
  }
  return true;
}

absl::Status Loop::Core::AddEndpoint(const std::string& name,
                                     std::shared_ptr<CallSink> sink) {
  MutexLock lock(mu_);
  if (shut_)
    return absl::FailedPreconditionError(
        absl::StrCat("endpoint ", name, ": the loop was shut down"));
  if (!endpoints_.emplace(name, std::move(sink)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("endpoint ", name, ": this process has one of that name"));
  }
  return absl::OkStatus();
}

void Loop::Core::RemoveEndpoint(const std::string& name) {
  MutexLock lock(mu_);
  endpoints_.erase(name);
}

absl::Status Loop::Core::Listen(Listener listener) {
  {
    MutexLock lock(mu_);
    if (shut_) return absl::FailedPreconditionError("the loop was shut down");
  }
  const bool is_unix = listener.address().kind == Address::Kind::kUnix;
  Acceptor* const acceptor =
      is_unix || tls_ == nullptr ? plain_.get() : secure_.get();
  const auto speaks = acceptor == secure_.get() ? AcceptLoop::Speaks::kTls
                                                : AcceptLoop::Speaks::kHttp2;
  AcceptLoop::Deliver deliver_local = nullptr;
  if (is_unix) {
    deliver_local = [this](int fd) {
      LocalCall::Accept(*this, Descriptor(fd));
    };
  }
  return accept_loop_->Add(
      std::move(listener), speaks,
      [acceptor](int fd) {
        Acceptor::NewConnectionParameters connection;
        connection.fd = fd;
        acceptor->HandleNewConnection(&connection);
      },
      std::move(deliver_local));
}

void Loop::Core::StopListening(const Address& address) {
  accept_loop_->Remove(address);
}

// By the authority's own name, else by its first label (over TLS it is
// trainer1.job.weft), else the one there is.
std::shared_ptr<CallSink> Loop::Core::FindSink(const std::string& authority) {
  MutexLock lock(mu_);
  auto found = endpoints_.find(authority);
  if (found == endpoints_.end())
    found = endpoints_.find(authority.substr(0, authority.find('.')));
  if (found == endpoints_.end() && endpoints_.size() == 1)
    found = endpoints_.begin();
  return found == endpoints_.end() ? nullptr : found->second;
}

void Loop::Core::CountUselessCall(const ServerCall& call) {
  const std::string account = AccountOf(call.peer());
  if (account.empty() || call_rates_.Allows(account, SteadyClock().Now()))
    return;
  accept_loop_->CutOff(
      call.connection(), "max_wasted_calls_per_peer",
      absl::StrCat("too many calls of ", account, " were refused or taken ",
                   "back: max_wasted_calls_per_peer is ",
                   options_.max_wasted_calls_per_peer,
                   ", and a quarter of it more each second"));
}

void Loop::Core::Route(ServerCall& call) {
  accept_loop_->MarkServed(call.connection());
  const auto sink = FindSink(call.authority());
  if (sink != nullptr) {
    sink->OnCall(call);
  } else {
    call.Close(absl::UnavailableError(
        absl::StrCat("no endpoint ", call.authority(), " at this address")));
    CountUselessCall(call);
  }
}

std::shared_ptr<grpc::ChannelCredentials> Loop::Core::ChannelCredentialsFor(
    const Address& address) const {
  if (address.kind == Address::Kind::kUnix || tls_ == nullptr)
    return grpc::InsecureChannelCredentials();
  return tls_->ForChannel();
}

absl::Status Loop::Core::RenewCredentials(const Credentials& credentials) {
  if (tls_ != nullptr) return tls_->Renew(credentials);
  return absl::FailedPreconditionError(
      "the loop was made without certificates, which cannot be added later");
}

}  // namespace weft::net
