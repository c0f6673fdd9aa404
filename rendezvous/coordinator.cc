// Coordinator: see the header.

#include "weft/rendezvous/coordinator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/strand.h"
#include "weft/net/refusal_log.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

using Core = CoordinatorCore;

// The ticket of a request whose answer nobody waits for.
constexpr Core::Ticket kNobody = 0;

// The log is made anew when it has grown to this, and to several times what it
// would be made.
constexpr int64_t kRewriteBytes = 1 << 20;
constexpr int64_t kRewriteFactor = 4;
// How often a journal that could not be reached is tried again.
constexpr absl::Duration kJournalPause = absl::Milliseconds(500);
// How long a destructor waits for the journal: one in etcd gives up before.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
// How often it is looked whether suspect members of this host run, and, where
// the system has no thread for an ExitWatch, whether members have ended: that
// counts at the second look.
constexpr absl::Duration kLookPause = absl::Milliseconds(250);
// The time from when an end is seen until it counts: a launcher that saw it too
// knows how the process ended, and may report it.
constexpr absl::Duration kWitnessTime = absl::Milliseconds(30);

// A parsed message takes many times its bytes. The longest that members send is
// a heartbeat that names all departed members.
constexpr size_t kMaxRequestBytes = size_t{8} << 20;

template <typename T>
absl::StatusOr<Core::Request> Parse(absl::string_view method,
                                    absl::string_view bytes) {
  if (bytes.size() > kMaxRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator: a request of ", method, " has ",
                     bytes.size(), " bytes, at most ", kMaxRequestBytes));
  }
  T request;
  if (request.ParseFromArray(bytes.data(), bytes.size())) return request;
  return absl::InvalidArgumentError(absl::StrCat(
      "coordinator: ", bytes.size(), " bytes are no request of ", method));
}

// Tries the alternatives of Core::Request from the one at `index` on.
template <size_t index = 0>
absl::StatusOr<Core::Request> ParseRequest(absl::string_view method,
                                           absl::string_view bytes) {
  if constexpr (index < std::variant_size_v<Core::Request>) {
    using Request = std::variant_alternative_t<index, Core::Request>;
    return method == MethodOf<Request>()
               ? Parse<Request>(method, bytes)
               : ParseRequest<index + 1>(method, bytes);
  } else {
    return absl::UnimplementedError(
        absl::StrCat("coordinator: there is no method ", method));
  }
}

std::string Serialize(const Core::Reply& reply) {
  return std::visit([](const auto& m) { return m.SerializeAsString(); }, reply);
}

}  // namespace

class Coordinator::State : public std::enable_shared_from_this<State> {
 public:
  State(TimerSource& timers, Executor& executor, telemetry::Telemetry* given)
      : timers_(timers),
        executor_(executor),
        telemetry_(telemetry::OrSilent(given)),
        strand_(executor) {}

  absl::Status Open(CoordinatorOptions options);
  uint64_t Handle(const Caller& caller, absl::string_view method,
                  absl::string_view bytes, Respond respond);
  void Schedule(Core::Event event);
  void Shutdown();
  bool has_stopped() const {
    return has_stopped_.load(std::memory_order_acquire);
  }
  Driver& driver() { return timers_.driver(); }
  Future<void> gone() const { return gone_.future(); }

 private:
  absl::Status CheckCaller(const Caller& caller, const Core::Request& request);

  // On the strand.
  void Run(Core::Event event);
  void Carry(Core::Actions actions);
  void Tell(Core::Actions actions);
  // False: the records are not there yet, and must not be spoken of.
  bool Flush(const std::vector<v1::LogRecord>& records);
  bool IsFlushed(const absl::Status& appended);
  void Stall(std::vector<v1::LogRecord> records, Core::Actions actions);
  void RunStalled(Core::Event event);
  void FlushAgain();
  void GoOnAfter(const absl::Status& appended);
  void FlushAgainLater();
  void RewriteIfLong();
  void Stop(const absl::Status& why);
  void Answer(Core::Ticket ticket, absl::StatusOr<std::string> answer);
  void AnswerAll(const absl::Status& why);
  void ArmTimer();
  void Watch(const v1::Member& member);
  void LookLater();
  void LookAtProcesses();
  void OnProcessesEnded();
  void Look();

  const Promise<void> gone_;  // the first, so dropped after all else
  TimerSource& timers_;
  Executor& executor_;
  telemetry::Telemetry& telemetry_;
  net::RefusalLog refusal_log_{telemetry_};
  Strand strand_;
  Core::Options limits_;  // const once open
  // On the strand, once open.
  std::unique_ptr<Core> core_;
  std::unique_ptr<Journal> journal_;
  absl::Status journal_status_;
  std::atomic<bool> has_stopped_{false};  // the same, for any thread
  // While the journal cannot be reached nothing is decided. The last decision,
  // which is published once its records are there:
  struct Stalled {
    std::vector<v1::LogRecord> records;
    Core::Actions actions;
    absl::Status why;
    Instant since;
    std::vector<Core::CallerGone> missed;
  };
  std::optional<Stalled> stalled_;
  // Members of this host, until they are known to be gone.
  struct Watched {
    ProcessWatch process;
    bool has_ended = false;
  };
  std::map<std::pair<std::string, uint64_t>, Watched>
      watched_;  // by name and incarnation
  bool is_looking_ = false;
  std::unique_ptr<ExitWatch> exits_;  // null until a process is watched
  Instant timer_at_ = Instant::Infinite();

  Mutex mu_;
  Core::Ticket last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Core::Ticket, Respond> responds_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, std::string> names_ ABSL_GUARDED_BY(mu_);  // by id
  bool is_shut_ ABSL_GUARDED_BY(mu_) = false;
};

uint32_t TermOfNow() {
  const absl::Time first = absl::FromUnixSeconds(1767225600);  // 2026
  const absl::Duration tick = absl::Seconds(1) / 64;
  return static_cast<uint32_t>(
      std::max<int64_t>(1, (absl::Now() - first) / tick));
}

absl::Status Coordinator::State::Open(CoordinatorOptions options) {
  std::vector<v1::LogRecord> history;
  uint32_t term = options.term;
  if (options.journal != nullptr) {
    journal_ = std::move(options.journal);
    history = journal_->history();
    term = LastTermOf(history) + 1;
  }
  for (const v1::LogRecord& record : history) {
    if (record.has_joined()) {
      MutexLock lock(mu_);
      names_[record.joined().key().id()] = record.joined().name();
    }
    if (!record.has_opened() || record.opened().job().empty()) continue;
    if (options.core.job.empty()) options.core.job = record.opened().job();
    if (options.core.job == record.opened().job()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(journal_->where(), " is of job \"", record.opened().job(),
                     "\", not of job \"", options.core.job,
                     "\": name another by --coordinator-log"));
  }
  if (journal_ != nullptr) {
    v1::LogRecord opened;
    opened.mutable_opened()->set_job(options.core.job);
    opened.mutable_opened()->set_term(term);
    WEFT_RETURN_IF_ERROR(journal_->Append({opened}));
  }
  options.core.is_durable = journal_ != nullptr;
  limits_ = options.core;
  core_ = std::make_unique<Core>(std::move(options.core), term, history,
                                 timers_.driver().clock().Now());
  WEFT_LOG(telemetry_.logger(), Info, "coordinator serves")
      .With("job", core_->job())
      .With("term", term)
      .With("known", core_->view().members_size());
  for (const v1::Member& member : core_->view().members()) Watch(member);
  Schedule(Core::Tick{});
  return absl::OkStatus();
}

absl::Status Coordinator::State::CheckCaller(const Caller& caller,
                                             const Core::Request& request) {
  if (caller.name.empty()) return absl::OkStatus();
  std::string claimed;
  bool is_claim = true;
  if (const auto* join = std::get_if<v1::JoinRequest>(&request)) {
    claimed = join->member().name();
  } else {
    const v1::WorkerKey* key = nullptr;
    if (const auto* beat = std::get_if<v1::HeartbeatRequest>(&request)) {
      key = &beat->key();
    } else if (const auto* says = std::get_if<v1::AnnounceRequest>(&request)) {
      key = &says->key();
    } else if (const auto* leave = std::get_if<v1::LeaveRequest>(&request)) {
      key = &leave->key();
    } else if (const auto* at = std::get_if<v1::BarrierRequest>(&request)) {
      key = &at->key();
    }
    if (key != nullptr) {
      MutexLock lock(mu_);
      const auto known = names_.find(key->id());
      // An unknown worker is refused by the core, in its own words.
      if (known != names_.end()) claimed = known->second;
      is_claim = known != names_.end();
    } else if (std::holds_alternative<v1::ReportExitRequest>(request)) {
      claimed = "a witness (role admin)";
    } else {
      is_claim = false;
    }
  }
  if (!is_claim || claimed == caller.name) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("coordinator: ", caller.text, " has the certificate of ",
                   caller.name, " and speaks as ", claimed));
}

uint64_t Coordinator::State::Handle(const Caller& caller,
                                    absl::string_view method,
                                    absl::string_view bytes, Respond respond) {
  absl::StatusOr<Core::Request> request = ParseRequest(method, bytes);
  if (request.ok()) {
    absl::Status status = Core::CheckSize(limits_, *request);
    if (status.ok()) status = CheckCaller(caller, *request);
    if (!status.ok()) request = status;
  }
  if (!request.ok()) {
    refusal_log_.Refused("coordinator", caller.text, method,
                         request.status().message());
    std::move(respond)(request.status());
    return 0;
  }
  if (auto* join = std::get_if<v1::JoinRequest>(&*request)) {
    join->mutable_member()->set_hosts_coordinator(caller.is_host);
  } else if (auto* store = std::get_if<v1::StoreRequest>(&*request)) {
    store->set_owner(caller.name);
  }
  Core::Ticket ticket = 0;
  {
    MutexLock lock(mu_);
    if (!is_shut_) {
      ticket = ++last_ticket_;
      responds_.emplace(ticket, std::move(respond));
    }
  }
  if (ticket == 0) {
    std::move(respond)(absl::UnavailableError("the coordinator is ending"));
    return 0;
  }
  Schedule(Core::Call{ticket, *std::move(request)});
  return ticket;
}

void Coordinator::State::Schedule(Core::Event event) {
  strand_.Schedule(
      [self = shared_from_this(), event = std::move(event)]() mutable {
        self->Run(std::move(event));
      });
}

void Coordinator::State::Run(Core::Event event) {
  {
    MutexLock lock(mu_);
    if (is_shut_) return;
    if (const auto* gone = std::get_if<Core::CallerGone>(&event)) {
      responds_.erase(gone->ticket);
    }
  }
  if (journal_ != nullptr && journal_status_.ok()) Stop(journal_->status());
  if (!journal_status_.ok()) {
    const auto* call = std::get_if<Core::Call>(&event);
    return call == nullptr ? void() : Answer(call->ticket, journal_status_);
  }
  if (stalled_.has_value()) return RunStalled(std::move(event));
  Carry(core_->OnEvent(timers_.driver().clock().Now(), std::move(event)));
  ArmTimer();
}

void Coordinator::State::Carry(Core::Actions actions) {
  std::vector<v1::LogRecord> records;
  for (Core::Action& action : actions) {
    if (auto* persist = std::get_if<Core::Persist>(&action)) {
      if (persist->record.has_joined()) {
        MutexLock lock(mu_);
        names_[persist->record.joined().key().id()] =
            persist->record.joined().name();
      }
      if (persist->record.has_joined()) Watch(persist->record.joined());
      for (const uint64_t incarnation :
           persist->record.departed().incarnations()) {
        watched_.erase({persist->record.departed().name(), incarnation});
      }
      records.push_back(std::move(persist->record));
    }
  }
  // All at once: one wait for the disk, before the first answer.
  if (!Flush(records)) return Stall(std::move(records), std::move(actions));
  Tell(std::move(actions));
}

void Coordinator::State::Tell(Core::Actions actions) {
  for (Core::Action& action : actions) {
    if (auto* answer = std::get_if<Core::Answer>(&action)) {
      if (!answer->status.ok()) {
        Answer(answer->ticket, std::move(answer->status));
      } else {
        Answer(answer->ticket, answer->Encode());
      }
    } else if (auto* note = std::get_if<Core::Note>(&action)) {
      if (note->is_warning) {
        WEFT_LOG(telemetry_.logger(), Warning, note->text);
      } else {
        WEFT_LOG(telemetry_.logger(), Info, note->text);
      }
      telemetry_.recorder().Record("coordinator", note->text);
    }
  }
}

bool Coordinator::State::Flush(const std::vector<v1::LogRecord>& records) {
  if (journal_ == nullptr || records.empty()) return true;
  return IsFlushed(journal_->Append(records));
}

bool Coordinator::State::IsFlushed(const absl::Status& appended) {
  if (absl::IsUnavailable(appended)) {
    if (stalled_.has_value()) stalled_->why = appended;
    return false;
  }
  // The core's decision is on no disk, so it must not be published.
  Stop(appended);
  if (appended.ok()) RewriteIfLong();
  return true;
}

// Stops for good. If a successor is there already, callers are sent to it.
void Coordinator::State::Stop(const absl::Status& why) {
  if (why.ok()) return;
  journal_status_ = absl::Status(
      absl::IsAborted(why) ? absl::StatusCode::kUnavailable : why.code(),
      absl::StrCat("the coordinator stopped deciding: ", why.message()));
  has_stopped_.store(true, std::memory_order_release);
  WEFT_LOG(telemetry_.logger(), Error, journal_status_.message());
  AnswerAll(journal_status_);
}

void Coordinator::State::Stall(std::vector<v1::LogRecord> records,
                               Core::Actions actions) {
  WEFT_LOG(telemetry_.logger(), Error,
           "the coordinator waits for its journal, and decides nothing: ")
      << journal_->where();
  telemetry_.recorder().Record("coordinator.stalled", journal_->where());
  stalled_.emplace();
  stalled_->records = std::move(records);
  stalled_->actions = std::move(actions);
  stalled_->since = timers_.driver().clock().Now();
  stalled_->why = absl::UnavailableError(journal_->where());
  FlushAgainLater();
}

// Members are notified that the coordinator lives, which decides nothing; they
// repeat the rest.
void Coordinator::State::RunStalled(Core::Event event) {
  if (const auto* gone = std::get_if<Core::CallerGone>(&event)) {
    stalled_->missed.push_back(*gone);
    return;
  }
  const auto* call = std::get_if<Core::Call>(&event);
  if (call == nullptr) return;
  const auto* beat = std::get_if<v1::HeartbeatRequest>(&call->request);
  if (beat != nullptr && beat->departed().empty()) {
    return Answer(call->ticket, Serialize(v1::HeartbeatReply()));
  }
  Answer(call->ticket, absl::UnavailableError(absl::StrCat(
                           "the coordinator waits for its journal: ",
                           stalled_->why.message())));
}

void Coordinator::State::FlushAgainLater() {
  timers_.RunAfter(kJournalPause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->strand_.Schedule([self] { self->FlushAgain(); });
    }
  });
}

// Beside the strand, so that requests are answered meanwhile: while stalled,
// nothing else touches the journal.
void Coordinator::State::FlushAgain() {
  {
    MutexLock lock(mu_);
    if (is_shut_) return;
  }
  executor_.Schedule([self = shared_from_this(), records = stalled_->records] {
    self->strand_.Schedule([self, appended = self->journal_->Append(records)] {
      self->GoOnAfter(appended);
    });
  });
}

void Coordinator::State::GoOnAfter(const absl::Status& appended) {
  {
    MutexLock lock(mu_);
    if (is_shut_) return;
  }
  if (!journal_status_.ok()) return;
  if (!IsFlushed(appended)) return FlushAgainLater();
  Stalled stalled = *std::exchange(stalled_, std::nullopt);
  WEFT_LOG(telemetry_.logger(), Info, "the coordinator goes on after ")
      << absl::FormatDuration(timers_.driver().clock().Now() - stalled.since);
  telemetry_.recorder().Record("coordinator.goes_on", journal_->where());
  Tell(std::move(stalled.actions));
  for (const Core::CallerGone& gone : stalled.missed) Run(gone);
  Run(Core::Tick{});
}

void Coordinator::State::RewriteIfLong() {
  if (journal_->bytes() < kRewriteBytes) return;
  const std::vector<v1::LogRecord> snapshot = core_->Snapshot();
  int64_t bytes = 0;
  for (const v1::LogRecord& record : snapshot) bytes += record.ByteSizeLong();
  if (journal_->bytes() < kRewriteFactor * bytes) return;
  const absl::Status status = journal_->Rewrite(snapshot);
  if (status.ok()) return;
  // The long log is still right.
  WEFT_LOG(telemetry_.logger(), Warning, "could not shorten: ")
      << status.message();
}

void Coordinator::State::Answer(Core::Ticket ticket,
                                absl::StatusOr<std::string> answer) {
  Respond respond;
  {
    MutexLock lock(mu_);
    const auto found = responds_.find(ticket);
    if (found == responds_.end()) return;
    respond = std::move(found->second);
    responds_.erase(found);
  }
  std::move(respond)(std::move(answer));
}

void Coordinator::State::AnswerAll(const absl::Status& why) {
  std::map<Core::Ticket, Respond> responds;
  {
    MutexLock lock(mu_);
    responds.swap(responds_);
  }
  for (auto& [ticket, respond] : responds) std::move(respond)(why);
}

void Coordinator::State::ArmTimer() {
  const Instant next = core_->NextTick();
  if (next >= timer_at_ || next.is_infinite()) return;
  timer_at_ = next;
  const Instant now = timers_.driver().clock().Now();
  timers_.RunAfter(std::max(next - now, absl::Milliseconds(1)),
                   [weak = weak_from_this(), next] {
                     const std::shared_ptr<State> self = weak.lock();
                     if (self == nullptr) return;
                     self->strand_.Schedule([self, next] {
                       if (self->timer_at_ == next)
                         self->timer_at_ = Instant::Infinite();
                       self->Run(Core::Tick{});
                     });
                   });
}

void Coordinator::State::Watch(const v1::Member& member) {
  const std::pair who(member.name(), member.incarnation());
  if (!member.has_process() || watched_.count(who) > 0) return;
  auto process = ProcessWatch::Of(member.process());
  if (!process.has_value()) return;
  if (exits_ == nullptr) {
    exits_ = ExitWatch::Create([&timers = timers_, weak = weak_from_this()] {
      timers.RunAfter(kWitnessTime, [weak] {
        if (const auto self = weak.lock()) {
          self->strand_.Schedule([self] { self->OnProcessesEnded(); });
        }
      });
    });
  }
  if (exits_ != nullptr) exits_->Add(*process);
  watched_.emplace(who, Watched{*std::move(process)});
  LookLater();
}

void Coordinator::State::OnProcessesEnded() {
  for (auto& [who, watched] : watched_) {
    watched.has_ended = watched.has_ended || watched.process.HasEnded();
  }
  Look();
}

void Coordinator::State::LookLater() {
  if (is_looking_ || watched_.empty()) return;
  is_looking_ = true;
  timers_.RunAfter(kLookPause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->strand_.Schedule([self] { self->LookAtProcesses(); });
    }
  });
}

// Ends that were seen are reported to the core again until it knows them: while
// the journal is not available, it takes nothing.
void Coordinator::State::LookAtProcesses() {
  is_looking_ = false;
  Look();
  LookLater();
}

void Coordinator::State::Look() {
  std::vector<v1::ReportExitRequest> ended;
  std::vector<Core::Ran> ran;
  for (auto& [who, watched] : watched_) {
    if (!watched.process.HasEnded()) {
      if (core_->is_suspect(who.first) && watched.process.HasRun()) {
        ran.push_back(Core::Ran{who.first, who.second});
      }
      continue;
    }
    if (!std::exchange(watched.has_ended, true)) continue;
    v1::ReportExitRequest& exit = ended.emplace_back();
    exit.set_job(core_->job());
    exit.set_name(who.first);
    exit.set_incarnation(who.second);
    exit.set_reason("its process has ended");
  }
  for (Core::Ran& event : ran) Run(std::move(event));
  for (v1::ReportExitRequest& exit : ended) {
    Run(Core::Call{kNobody, std::move(exit)});
  }
}

void Coordinator::State::Shutdown() {
  {
    MutexLock lock(mu_);
    is_shut_ = true;
  }
  AnswerAll(absl::UnavailableError("the coordinator is ending"));
}

namespace {

class LocalLinkToCoordinator final : public CoordinatorLink {
 public:
  explicit LocalLinkToCoordinator(std::weak_ptr<Coordinator::State> state)
      : state_(std::move(state)) {}

  // The coordinator holds no call for longer than its caller asked, so there
  // is no time-out to watch here.
  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration /*timeout*/) override {
    const std::shared_ptr<Coordinator::State> state = state_.lock();
    if (state == nullptr) {
      return MakeReady<std::string>(
          absl::UnavailableError("the coordinator has ended"));
    }
    auto [promise, future] = MakePromise<std::string>(state->driver());
    state->Handle({address_, "", /*is_host=*/true}, method, request,
                  [promise = std::move(promise)](
                      absl::StatusOr<std::string> answer) mutable {
                    promise.Set(std::move(answer));
                  });
    return std::move(future);
  }

  const std::string& address() const override { return address_; }

 private:
  const std::weak_ptr<Coordinator::State> state_;
  const std::string address_ = "this process";
};

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(
    TimerSource& timers, Executor& executor, CoordinatorOptions options) {
  auto state = std::make_shared<State>(timers, executor, options.telemetry);
  WEFT_RETURN_IF_ERROR(state->Open(std::move(options)));
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(state)));
}

Coordinator::Coordinator(std::shared_ptr<State> state)
    : state_(std::move(state)), gone_(state_->gone()) {}

Coordinator::~Coordinator() {
  state_->Shutdown();
  state_ = nullptr;
  (void)gone_.Wait(kStopTimeout);
}

uint64_t Coordinator::Handle(const Caller& caller, absl::string_view method,
                             absl::string_view request, Respond respond) {
  return state_->Handle(caller, method, request, std::move(respond));
}

void Coordinator::CallerGone(uint64_t call) {
  if (call != 0) state_->Schedule(CoordinatorCore::CallerGone{call});
}

std::unique_ptr<CoordinatorLink> Coordinator::LocalLink() {
  return std::make_unique<LocalLinkToCoordinator>(state_);
}

bool Coordinator::has_stopped() const { return state_->has_stopped(); }

void Coordinator::Shutdown() { state_->Shutdown(); }

}  // namespace weft::rendezvous
