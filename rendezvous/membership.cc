// Membership: see the header.

#include "weft/rendezvous/membership.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/strand.h"
#include "weft/rendezvous/client/barrier_client.h"
#include "weft/rendezvous/client/coordinator_call.h"
#include "weft/rendezvous/client/local_processes.h"
#include "weft/rendezvous/client/open_calls.h"
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/client/view_feed.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Seconds(10);
constexpr absl::Duration kLook = absl::Seconds(1);
// How often it is looked whether processes of this host have ended.
constexpr absl::Duration kLookAtProcesses = absl::Milliseconds(250);
// Refresh: when a request is given up, and after how long without an answer
// nobody else waits for it.
constexpr absl::Duration kRefreshTimeout = absl::Seconds(10);
constexpr absl::Duration kSilentAfter = absl::Seconds(1);
// How long a destructor waits for a callback in progress.
constexpr absl::Duration kStopTimeout = absl::Seconds(2);

// Has no state, and outlives every strand upon it: the last task of a strand
// may be what ends the State.
Executor& Inline() {
  static InlineExecutor executor;
  return executor;
}

// Whether all of the world are in `view`, or have been and are gone. An elastic
// world names nobody: it has to be complete.
bool HaveAllBeenThere(const View& view) {
  const std::vector<std::string> missing = view.Missing();
  const auto has_departed = [&](const std::string& name) {
    return std::any_of(
        view.departed().begin(), view.departed().end(),
        [&](const Departed& departed) { return departed.name == name; });
  };
  return std::all_of(missing.begin(), missing.end(), has_departed);
}

}  // namespace

class Membership::State : public std::enable_shared_from_this<State> {
 public:
  State(TimerSource& timers, std::unique_ptr<CoordinatorLink> link,
        JoinOptions options)
      : timers_(timers),
        link_(std::move(link)),
        options_(std::move(options)),
        strand_(Inline()),
        core_(CoreOptions(), now()),
        feed_(std::make_shared<ViewFeed>(
            timers_.driver(),
            options_.executor != nullptr ? *options_.executor : Inline(),
            telemetry::OrSilent(options_.telemetry), options_.job)),
        barriers_(
            timers_, link_, options_.job, calls_,
            [this] {
              (void)Refresh(kSilentAfter);
              return status();
            },
            MakeReport()) {}

  void Post(MemberCore::Event event);
  // Waits until this worker is in, or the whole world is.
  absl::Status Await(bool whole_world, absl::Duration timeout);
  void Stop();
  absl::Status Leave(absl::Duration timeout);
  absl::StatusOr<std::map<std::string, std::string>> AllGather(
      absl::string_view tag, absl::string_view payload,
      std::vector<std::string> members, absl::Duration timeout);
  absl::Status Announce(Phase phase, absl::Duration timeout);
  absl::Status Refresh(absl::Duration timeout);

  ViewFeed& feed() { return *feed_; }
  absl::Status status() const { return feed_->status(); }
  absl::Status coordinator_status() const {
    MutexLock lock(mu_);
    return coordinator_status_;
  }
  const Member& self() const { return self_; }
  const JoinOptions& options() const { return options_; }
  Instant now() const { return timers_.driver().clock().Now(); }
  std::unique_ptr<Store> MakeStore();
  WaitReport MakeReport() const;

 private:
  MemberCore::Options CoreOptions();
  void Run(const MemberCore::Event& event);
  void Do(MemberCore::Send send);
  void Do(const MemberCore::SetTimer& timer);
  void Do(const MemberCore::Joined& joined);
  void Do(const MemberCore::NewView& changed);
  void Record(const View& before, const View& now);
  void Do(const MemberCore::Ended& ended);
  void Do(const MemberCore::Waiting& waiting);
  void Do(const MemberCore::Warn& warning);
  // Look at the processes of this host. On the strand.
  void LookLater();
  void Look();

  // For Refresh.
  void AskForView();                                             // on strand_
  void ViewAnswered(const absl::StatusOr<std::string>& answer);  // on strand_

  // The members that a barrier waits for: `members`, or all of a fixed world.
  absl::StatusOr<std::vector<std::string>> MembersOf(
      absl::string_view tag, std::vector<std::string> members) const;
  void ShowProgress(const std::string& text);
  std::string WhyNotJoined();

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> link_;
  const JoinOptions options_;
  Strand strand_;             // of the core
  Member self_;               // const once joined; CoreOptions fills it
  MemberCore core_;           // on the strand
  LocalProcesses processes_;  // on the strand
  bool is_looking_ = false;   // will be; on the strand
  const std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>();
  const std::shared_ptr<ViewFeed> feed_;
  BarrierClient barriers_;
  std::string shown_;  // of the joining thread
  Instant shown_at_;

  mutable Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool is_in_ ABSL_GUARDED_BY(mu_) = false;
  bool knows_everyone_ ABSL_GUARDED_BY(mu_) = false;  // the coordinator
  absl::Status coordinator_status_ ABSL_GUARDED_BY(mu_);
  std::string note_ ABSL_GUARDED_BY(mu_);
  bool has_answered_ ABSL_GUARDED_BY(mu_) = false;  // with that note
  std::vector<Promise<void>> end_waiters_ ABSL_GUARDED_BY(mu_);
  // Refresh: of the request that is on its way since asked_at_; and of the next
  // one, since that one may have been answered before they called.
  bool is_asking_ ABSL_GUARDED_BY(mu_) = false;
  Instant asked_at_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> asked_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> ask_next_ ABSL_GUARDED_BY(mu_);
};

MemberCore::Options Membership::State::CoreOptions() {
  self_.name = options_.name.empty()
                   ? absl::StrCat(options_.role, options_.rank)
                   : options_.name;
  self_.role = options_.role;
  self_.rank = options_.rank;
  self_.address = options_.address;
  self_.labels = options_.labels;
  self_.incarnation = DrawIncarnation();
  MemberCore::Options core;
  core.job = options_.job;
  core.coordinator = link_->address();
  core.self = ToWire(self_);
  if (auto process = ThisProcess()) {
    *core.self.mutable_process() = *std::move(process);
  }
  core.world = ToWire(options_.world);
  core.world.set_suspect_after_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.suspect_after)));
  core.world.set_dead_after_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.dead_after)));
  core.start = options_.start;
  core.heartbeat_interval = options_.heartbeat_interval;
  if (options_.dead_after > absl::ZeroDuration()) {
    // The coordinator's silence is borne as long as a member's.
    core.give_up_for_good_after = options_.dead_after;
    core.give_up_after = std::max(core.give_up_after, 6 * options_.dead_after);
    core.call_timeout = std::min(core.call_timeout, options_.dead_after / 5);
  }
  return core;
}

void Membership::State::Post(MemberCore::Event event) {
  strand_.Schedule([self = shared_from_this(), event = std::move(event)] {
    self->Run(event);
  });
}

void Membership::State::Run(const MemberCore::Event& event) {
  {
    MutexLock lock(mu_);
    if (is_stopped_) return;
  }
  for (MemberCore::Action& action : core_.OnEvent(now(), event)) {
    std::visit([this](auto& a) { Do(std::move(a)); }, action);
  }
}

void Membership::State::Do(MemberCore::Send send) {
  std::string bytes = std::visit(
      [](const auto& m) { return m.SerializeAsString(); }, send.request);
  link_
      ->Call(MemberCore::MethodOf(send.request.index()), std::move(bytes),
             send.timeout)
      .OnReady([weak = weak_from_this(), call = send.call,
                index = send.request.index()](
                   const absl::StatusOr<std::string>& answer) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->Post(MemberCore::Replied{
            call, answer.ok() ? MemberCore::ParseReply(index, *answer,
                                                       self->link_->address())
                              : answer.status()});
      });
}

void Membership::State::Do(const MemberCore::SetTimer& timer) {
  timers_.RunAfter(timer.after, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Post(MemberCore::Timer{});
  });
}

void Membership::State::Do(const MemberCore::Joined& joined) {
  self_.key = joined.key;
  MutexLock lock(mu_);
  is_in_ = true;
  knows_everyone_ = joined.knows_everyone;
}

void Membership::State::Do(const MemberCore::NewView& changed) {
  if (processes_.Follow(*changed.view)) {
    MutexLock lock(mu_);
    coordinator_status_ = absl::OkStatus();
  }
  LookLater();
  const auto view = std::make_shared<const View>(FromWire(*changed.view));
  Record(*feed_->view(), *view);
  feed_->Publish(view);
}

void Membership::State::LookLater() {
  if (is_looking_ || !processes_.is_watching()) return;
  is_looking_ = true;
  timers_.RunAfter(kLookAtProcesses, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->strand_.Schedule([self] { self->Look(); });
    }
  });
}

void Membership::State::Look() {
  is_looking_ = false;
  {
    MutexLock lock(mu_);
    if (is_stopped_) return;
  }
  if (!status().ok()) return;
  for (const MemberCore::Event& event : processes_.Look(core_, self_.key)) {
    if (const auto* host = std::get_if<MemberCore::HostEnded>(&event)) {
      MutexLock lock(mu_);
      coordinator_status_ = absl::UnavailableError(absl::StrCat(
          "the process of ", host->name,
          ", which hosted the coordinator, has ended; none has taken its "
          "place"));
    }
    Run(event);
  }
  LookLater();
}

void Membership::State::Record(const View& before, const View& now) {
  auto& recorder = telemetry::OrSilent(options_.telemetry).recorder();
  for (const Member& member : now.members()) {
    const Member* known = before.Find(member.key);
    if (known == nullptr) {
      recorder.Record("member.joined", member.name, member.key.epoch);
    } else if (member.suspect && !known->suspect) {
      recorder.Record("member.suspect", member.name, member.key.epoch);
    }
  }
  for (const Departed& departed : now.departed()) {
    if (before.Find(departed.key) == nullptr) continue;
    recorder.RecordFor("member.gone", departed.name, departed.reason,
                       departed.key.epoch, departed.left ? 1 : 0);
  }
}

void Membership::State::Do(const MemberCore::Ended& ended) {
  telemetry::OrSilent(options_.telemetry)
      .recorder()
      .Record("member.ended", ended.status.message(), ended.status.raw_code());
  std::vector<Promise<void>> waiters;
  std::vector<Promise<void>> refreshes;
  absl::Status status = ended.status;
  bool is_lost = false;
  {
    MutexLock lock(mu_);
    // A worker that was never admitted gets its error from Join.
    is_lost = is_in_ && !status.ok();
  }
  if (is_lost) {  // before listeners run, which may end the program
    WEFT_LOG(telemetry::OrSilent(options_.telemetry).logger(), Error, "")
        << status.message();
  }
  if (status.ok()) {
    status = absl::FailedPreconditionError(
        absl::StrCat(self_.name, " has left job \"", options_.job, "\""));
  }
  feed_->End(status);
  {
    // A waiter that comes after this has seen the end of the feed.
    MutexLock lock(mu_);
    waiters = std::exchange(end_waiters_, {});
    refreshes = std::exchange(asked_, {});
    std::move(ask_next_.begin(), ask_next_.end(),
              std::back_inserter(refreshes));
    ask_next_.clear();
  }
  calls_->End(status);  // barriers, the store, and what else asks
  for (Promise<void>& waiter : waiters) waiter.Set(absl::OkStatus());
  for (Promise<void>& waiter : refreshes) waiter.Set(status);
  if (is_lost) feed_->TellLost();
}

void Membership::State::Do(const MemberCore::Waiting& waiting) {
  MutexLock lock(mu_);
  note_ = waiting.text;
  has_answered_ = waiting.is_answer;
}

void Membership::State::Do(const MemberCore::Warn& warning) {
  WEFT_LOG(telemetry::OrSilent(options_.telemetry).logger(), Warning, "")
      << warning.text;
}

absl::Status Membership::State::Refresh(absl::Duration timeout) {
  auto [promise, answered] = MakePromise<void>(timers_.driver());
  bool must_ask = false;
  {
    MutexLock lock(mu_);
    if (absl::Status over = status(); !over.ok()) return over;
    if (is_asking_ && now() - asked_at_ >= kSilentAfter) {
      return absl::UnavailableError(absl::StrCat(
          "the coordinator at ", link_->address(), " has not answered for ",
          absl::FormatDuration(kSilentAfter)));
    }
    must_ask = !std::exchange(is_asking_, true);
    if (must_ask) asked_at_ = now();
    (must_ask ? asked_ : ask_next_).push_back(std::move(promise));
  }
  if (must_ask) {
    strand_.Schedule([self = shared_from_this()] { self->AskForView(); });
  }
  return answered.Wait(timeout);
}

void Membership::State::AskForView() {
  v1::WatchRequest request;  // wait_ms is 0, so it is answered at once
  request.set_job(options_.job);
  request.set_known_version(core_.view().version());
  request.set_takes_changes(true);
  link_->Call("Watch", request.SerializeAsString(), kRefreshTimeout)
      .OnReady([weak = weak_from_this()](
                   const absl::StatusOr<std::string>& answer) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->strand_.Schedule([self, answer] { self->ViewAnswered(answer); });
      });
}

void Membership::State::ViewAnswered(
    const absl::StatusOr<std::string>& answer) {
  absl::Status status = answer.status();
  v1::WatchReply reply;
  if (status.ok() && !reply.ParseFromString(*answer)) {
    status = BadAnswer(link_->address(), "Watch", "it cannot be read");
  }
  if (status.ok()) {
    const uint64_t version = reply.view().version();
    Run(MemberCore::Refreshed{std::move(*reply.mutable_view())});
    if (core_.state() == MemberCore::State::kIn &&
        core_.view().version() < version) {
      status = absl::UnavailableError("the whole view is asked for");
    }
  }
  std::vector<Promise<void>> waiters;
  bool again = false;
  {
    MutexLock lock(mu_);
    waiters = std::exchange(asked_, std::exchange(ask_next_, {}));
    again = is_asking_ = !asked_.empty();
    asked_at_ = now();
  }
  for (Promise<void>& waiter : waiters) waiter.Set(status);
  if (again) AskForView();
}

absl::Status Membership::State::Await(bool whole_world,
                                      absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  const auto are_all_in = [&](const View& v) {
    if (v.version() == 0) return false;
    if (!whole_world) return true;
    // Another member may have left before this one was told that all were in.
    return options_.rejoins ? HaveAllBeenThere(v)
                            : v.WasCompleteSince(self_.key.epoch);
  };
  for (;;) {
    const absl::Duration left = deadline - now();
    const auto view = feed_->WaitFor(are_all_in, std::min(left, kLook));
    if (view.ok()) return absl::OkStatus();
    if (!absl::IsDeadlineExceeded(view.status()) || !status().ok()) {
      return view.status();
    }
    WEFT_RETURN_IF_ERROR(options_.cancel.status());
    ShowProgress(WhyNotJoined());
    if (left > kLook) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(self_.name, " waited ", absl::FormatDuration(timeout),
                     " for job \"", options_.job, "\": ", WhyNotJoined()));
  }
}

std::string Membership::State::WhyNotJoined() {
  const std::shared_ptr<const View> view = feed_->view();
  if (view->version() != 0) return view->Summary();
  MutexLock lock(mu_);
  if (has_answered_) {
    return absl::StrCat("the coordinator at ", link_->address(),
                        " has not let it in (", note_, ")");
  }
  std::string text =
      absl::StrCat("no coordinator has let it in at ", link_->address());
  if (!note_.empty()) absl::StrAppend(&text, " (", note_, ")");
  std::string host = options_.host_of_coordinator;
  if (host.empty()) {
    host = options_.world.Place("ps", 0).has_value() ? "ps0" : "trainer0";
  }
  return absl::StrCat(text, "; is ", host,
                      " running, with this --coordinator?");
}

void Membership::State::ShowProgress(const std::string& text) {
  if (text == shown_ && now() - shown_at_ < kProgressPeriod) return;
  shown_ = text;
  shown_at_ = now();
  if (options_.progress) return options_.progress(text);
  WEFT_LOG(telemetry::OrSilent(options_.telemetry).logger(), Info, text);
}

absl::Status Membership::State::Leave(absl::Duration timeout) {
  auto [promise, future] = MakePromise<void>(timers_.driver());
  {
    MutexLock lock(mu_);
    if (!status().ok()) return absl::OkStatus();
    end_waiters_.push_back(std::move(promise));
  }
  Post(MemberCore::WantToLeave{});
  const absl::Status left = future.Wait(timeout);
  if (left.ok()) return left;
  return absl::Status(
      left.code(),
      absl::StrCat(self_.name, " could not say good-bye to ", link_->address(),
                   " within ", absl::FormatDuration(timeout)));
}

void Membership::State::Stop() {
  {
    MutexLock lock(mu_);
    is_stopped_ = true;
  }
  auto [promise, future] = MakePromise<void>();
  strand_.Schedule(
      [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
  // On a thread that must not wait, what still runs holds on to this State.
  (void)future.Wait(kStopTimeout);
}

absl::StatusOr<std::vector<std::string>> Membership::State::MembersOf(
    absl::string_view tag, std::vector<std::string> members) const {
  if (!members.empty()) return members;
  const std::shared_ptr<const View> seen = feed_->view();
  if (!seen->world().is_fixed()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Barrier ", tag, ": an elastic world wants the members named"));
  }
  for (const auto& [role, count] : seen->world().roles) {
    for (int rank = 0; rank < count; ++rank) {
      members.push_back(absl::StrCat(role, rank));
    }
  }
  return members;
}

absl::StatusOr<std::map<std::string, std::string>> Membership::State::AllGather(
    absl::string_view tag, absl::string_view payload,
    std::vector<std::string> members, absl::Duration timeout) {
  bool is_everyone = members.empty();
  WEFT_ASSIGN_OR_RETURN(members, MembersOf(tag, std::move(members)));
  {
    MutexLock lock(mu_);
    is_everyone = is_everyone && knows_everyone_;
  }
  return barriers_.Gather(self_, tag, payload, std::move(members), is_everyone,
                          timeout);
}

absl::Status Membership::State::Announce(Phase phase, absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(status());
  v1::AnnounceRequest request;
  request.set_job(options_.job);
  *request.mutable_key() = ToWire(self_.key);
  request.set_incarnation(self_.incarnation);
  request.set_phase(ToWire(phase));
  return CallUntil<v1::AnnounceReply>(
             *link_, timers_, "Announce", now() + timeout,
             [&](absl::Duration /*hold*/) { return request; }, *calls_)
      .status();
}

std::unique_ptr<Store> Membership::State::MakeStore() {
  return MakeStoreClient(timers_, link_, options_.job, self_.incarnation,
                         calls_, MakeReport());
}

WaitReport Membership::State::MakeReport() const {
  return [logger = &telemetry::OrSilent(options_.telemetry).logger()](
             absl::string_view text) { WEFT_LOG(*logger, Warning, text); };
}

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(
    TimerSource& timers, std::unique_ptr<CoordinatorLink> link,
    JoinOptions options) {
  auto state =
      std::make_shared<State>(timers, std::move(link), std::move(options));
  std::unique_ptr<Membership> membership(new Membership(state));
  WEFT_RETURN_IF_ERROR(ValidateName(state->self().name));
  state->Post(MemberCore::Start{});
  const JoinOptions& joining = state->options();
  WEFT_RETURN_IF_ERROR(state->Await(joining.wait_for_world, joining.timeout));
  return membership;
}

Membership::Membership(std::shared_ptr<State> state)
    : state_(std::move(state)), store_(state_->MakeStore()) {}

Membership::~Membership() { state_->Stop(); }

const Member& Membership::self() const { return state_->self(); }

std::shared_ptr<const View> Membership::view() const {
  return state_->feed().view();
}

absl::Status Membership::status() const { return state_->status(); }

absl::Status Membership::coordinator_status() const {
  return state_->coordinator_status();
}

absl::Status Membership::Refresh(absl::Duration timeout) {
  return state_->Refresh(timeout);
}

absl::StatusOr<std::shared_ptr<const View>> Membership::WaitFor(
    std::function<bool(const View&)> is_fit, absl::Duration timeout) {
  return state_->feed().WaitFor(is_fit, timeout);
}

absl::Status Membership::AwaitWorld(absl::Duration timeout) {
  return state_->Await(/*whole_world=*/true, timeout);
}

Membership::Subscription Membership::OnChange(
    std::function<void(std::shared_ptr<const View>)> fn,
    std::function<void(const absl::Status& why)> on_lost) {
  return Subscription(
      state_->feed().OnChange(std::move(fn), std::move(on_lost)));
}

absl::Status Membership::Barrier(absl::string_view tag,
                                 std::vector<std::string> members,
                                 absl::Duration timeout) {
  return state_->AllGather(tag, "", std::move(members), timeout).status();
}

absl::StatusOr<std::map<std::string, std::string>> Membership::AllGather(
    absl::string_view tag, absl::string_view payload,
    std::vector<std::string> members, absl::Duration timeout) {
  return state_->AllGather(tag, payload, std::move(members), timeout);
}

absl::Status Membership::Announce(Phase phase, absl::Duration timeout) {
  return state_->Announce(phase, timeout);
}

Store& Membership::store() { return *store_; }

absl::Status Membership::Leave(absl::Duration timeout) {
  return state_->Leave(timeout);
}

Membership::Subscription::Subscription(std::function<void()> cancel)
    : cancel_(std::move(cancel)) {}

Membership::Subscription::Subscription(Subscription&& other) noexcept
    : cancel_(std::exchange(other.cancel_, nullptr)) {}

Membership::Subscription& Membership::Subscription::operator=(
    Subscription&& other) noexcept {
  std::swap(cancel_, other.cancel_);
  return *this;
}

Membership::Subscription::~Subscription() {
  if (cancel_) cancel_();
}

absl::Status CheckNobodyIsThere(TimerSource& timers, CoordinatorLink& link,
                                const std::string& job, absl::string_view name,
                                const World& world, absl::Duration timeout) {
  const Instant deadline = timers.driver().clock().Now() + timeout;
  v1::WatchRequest request;
  request.set_job(job);
  const auto reply = CallUntil<v1::WatchReply>(
      link, timers, "Watch", deadline,
      [&](absl::Duration /*hold*/) { return request; });
  if (absl::IsFailedPrecondition(reply.status())) return reply.status();
  if (!reply.ok()) return absl::OkStatus();  // no coordinator
  const absl::StatusOr<View> view = ReadView(reply->view());
  if (!view.ok()) {
    return BadAnswer(link.address(), "Watch", view.status().message());
  }
  if (!view->members().empty() && view->world() != world) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " ", world.DifferenceFrom(view->world()), "; job \"",
                     job, "\" is at ", link.address()));
  }
  if (view->Find(name) == nullptr) {
    return absl::AlreadyExistsError(absl::StrCat(
        "job \"", job, "\" has a coordinator at ", link.address(),
        " already, where ", name,
        " was to host it: say by --coordinator-host "
        "who does (coordinator0 of `weft coordinator` and `weft run`), give "
        "this job another --coordinator, or end the other first"));
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "worker ", name, " is in job \"", job, "\" already, at ", link.address(),
      ", where this one was to host the coordinator: give one of them another "
      "--rank or --coordinator, or end the other first"));
}

}  // namespace weft::rendezvous
