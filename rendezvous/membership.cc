// Membership: see the header.

#include "weft/rendezvous/membership.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <list>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/failpoint.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/strand.h"
#include "weft/rendezvous/coordinator_call.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/core/poll_backoff.h"
#include "weft/rendezvous/open_calls.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rendezvous/store_client.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Seconds(10);
constexpr absl::Duration kLook = absl::Seconds(1);
// How often it is looked whether the coordinator's process has ended.
constexpr absl::Duration kLookAtHost = absl::Milliseconds(250);
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

// "trainer1, trainer2 and 5 more"; empty if none is named.
std::string MissingIn(const v1::BarrierReply& reply) {
  std::string text = absl::StrJoin(reply.missing(), ", ");
  const auto named = static_cast<uint32_t>(reply.missing_size());
  if (reply.missing_count() > named) {
    absl::StrAppend(&text, " and ", reply.missing_count() - named, " more");
  }
  return text;
}

// The callbacks of one OnChange. Thread-safety: thread-safe.
class Listener {
 public:
  using OnView = std::function<void(std::shared_ptr<const View>)>;
  using OnLost = std::function<void(const absl::Status&)>;

  Listener(OnView on_view, OnLost on_lost, telemetry::Telemetry& telemetry)
      : on_view_(std::move(on_view)),
        on_lost_(std::move(on_lost)),
        telemetry_(telemetry) {}

  // In the order in which this worker has received the views.
  void Tell(std::shared_ptr<const View> view) {
    {
      MutexLock lock(mu_);
      if (is_cancelled_) return;
      running_on_ = std::this_thread::get_id();
    }
    Run([&] { on_view_(std::move(view)); });
  }

  void TellLost(const absl::Status& why) {
    {
      MutexLock lock(mu_);
      if (is_cancelled_ || on_lost_ == nullptr) return;
      running_on_ = std::this_thread::get_id();
    }
    Run([&] { on_lost_(why); });
  }

  // Once this has returned, the callback does not run, unless it is the
  // callback that called.
  void Cancel() {
    MutexLock lock(mu_);
    is_cancelled_ = true;
    while (running_on_ != std::thread::id() &&
           running_on_ != std::this_thread::get_id()) {
      done_.Wait(mu_);
    }
  }
  bool is_cancelled() {
    MutexLock lock(mu_);
    return is_cancelled_;
  }

 private:
  // For who has set running_on_.
  void Run(absl::FunctionRef<void()> callback) {
    const absl::Status told = CatchToStatus(callback);
    if (!told.ok()) {
      WEFT_LOG(telemetry_.logger(), Error, "an OnChange callback threw: ")
          << told.message();
    }
    MutexLock lock(mu_);
    running_on_ = std::thread::id();
    done_.NotifyAll();
  }

  const OnView on_view_;
  const OnLost on_lost_;
  telemetry::Telemetry& telemetry_;
  Mutex mu_;
  CondVar done_;
  std::thread::id running_on_ ABSL_GUARDED_BY(mu_);
  bool is_cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

class Membership::State : public std::enable_shared_from_this<State> {
 public:
  State(TimerSource& timers, std::unique_ptr<CoordinatorLink> link,
        JoinOptions options)
      : timers_(timers),
        link_(std::move(link)),
        options_(std::move(options)),
        strand_(Inline()),
        listener_strand_(options_.executor != nullptr ? *options_.executor
                                                      : Inline()),
        core_(CoreOptions(), now()) {}

  void Post(MemberCore::Event event);
  // Until this worker is in, or the whole world is.
  absl::Status Await(bool whole_world, absl::Duration timeout);
  void Stop();
  absl::Status Leave(absl::Duration timeout);
  absl::StatusOr<std::map<std::string, std::string>> AllGather(
      absl::string_view tag, absl::string_view payload,
      std::vector<std::string> members, absl::Duration timeout);
  absl::Status Announce(Phase phase, absl::Duration timeout);
  absl::Status Refresh(absl::Duration timeout);
  absl::StatusOr<std::shared_ptr<const View>> WaitFor(
      std::function<bool(const View&)> is_fit, absl::Duration timeout);
  Subscription OnChange(Listener::OnView fn, Listener::OnLost on_lost);

  std::shared_ptr<const View> view() const {
    MutexLock lock(mu_);
    return view_;
  }
  absl::Status status() const {
    MutexLock lock(mu_);
    return status_;
  }
  absl::Status coordinator_status() const {
    MutexLock lock(mu_);
    return coordinator_status_;
  }
  bool KnowsEveryone() const {
    MutexLock lock(mu_);
    return knows_everyone_;
  }
  const Member& self() const { return self_; }
  const JoinOptions& options() const { return options_; }
  Instant now() const { return timers_.driver().clock().Now(); }
  std::unique_ptr<Store> MakeStore();

 private:
  struct Waiter {
    std::deque<std::shared_ptr<const View>> unseen;
    std::optional<Promise<void>> news;  // set while it has seen all
  };

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
  // Sees the process end that hosts the coordinator, if it is of this host:
  // sooner than by its silence. On the strand.
  void WatchHost(const v1::View& view);
  void LookAtHostLater();
  void LookAtHost();
  // While no coordinator sees them end: the other members of this host.
  void WatchMembers();
  void LookAtMembersLater();
  void LookAtMembers();

  // The next view that `waiter` is to judge.
  absl::StatusOr<std::shared_ptr<const View>> NextView(Waiter& waiter,
                                                       Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Promise<void>> TakeNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(const std::shared_ptr<Listener>& listener);  // on its strand
  // For Refresh.
  void AskForView();                                             // on strand_
  void ViewAnswered(const absl::StatusOr<std::string>& answer);  // on strand_

  // The members that a barrier waits for: `members`, or all of a fixed world.
  absl::StatusOr<std::vector<std::string>> MembersOf(
      absl::string_view tag, std::vector<std::string> members) const;
  // Numbers the arrival. kFailedPrecondition: this worker is there already.
  absl::Status Arrive(v1::BarrierRequest& request);
  // Of its arrivals so far, those whose answers it has not had.
  void SaySettled(v1::BarrierRequest& request);
  // Asks until the barrier opens or the deadline has passed; then `missing` has
  // the members that are missing, for people.
  absl::StatusOr<v1::BarrierReply> Meet(v1::BarrierRequest& request,
                                        Instant deadline, std::string* missing);
  void ShowProgress(const std::string& text);
  std::string WhyNotJoined();

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> link_;
  const JoinOptions options_;
  Strand strand_;           // of the core
  Strand listener_strand_;  // of OnChange
  Member self_;             // const once joined; CoreOptions fills it
  MemberCore core_;         // on the strand
  struct Host {
    std::string name;
    uint64_t incarnation = 0;
    std::optional<ProcessWatch> process;  // nothing: of another host, or ended
  };
  Host host_;  // of the coordinator; on the strand
  // Of members of this host, while there is no coordinator; on the strand.
  std::map<WorkerKey, ProcessWatch> watched_;
  const std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>();
  std::string shown_;  // of the joining thread
  Instant shown_at_;

  mutable Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool is_in_ ABSL_GUARDED_BY(mu_) = false;
  bool knows_everyone_ ABSL_GUARDED_BY(mu_) = false;  // the coordinator
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  absl::Status coordinator_status_ ABSL_GUARDED_BY(mu_);
  bool is_lost_ ABSL_GUARDED_BY(mu_) = false;  // was in, and has not left
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string note_ ABSL_GUARDED_BY(mu_);
  bool has_answered_ ABSL_GUARDED_BY(mu_) = false;  // with that note
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<View>();
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> end_waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mu_);
  uint64_t last_arrival_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t> arrivals_ ABSL_GUARDED_BY(mu_);  // by tag
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
  core.start = options_.start;
  core.heartbeat_interval = options_.heartbeat_interval;
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
  WatchHost(*changed.view);
  const auto view = std::make_shared<const View>(FromWire(*changed.view));
  std::vector<Promise<void>> news;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::shared_ptr<const View> before;
  {
    MutexLock lock(mu_);
    before = std::exchange(view_, view);
    listeners = listeners_;
    for (Waiter& waiter : waiters_) waiter.unseen.push_back(view);
    news = TakeNews();
  }
  Record(*before, *view);
  for (Promise<void>& waiter : news) waiter.Set(absl::OkStatus());
  for (const std::shared_ptr<Listener>& listener : listeners) {
    listener_strand_.Schedule([listener, view] { listener->Tell(view); });
  }
}

void Membership::State::WatchHost(const v1::View& view) {
  for (const v1::Member& member : view.members()) {
    if (!member.hosts_coordinator() || !member.has_process()) continue;
    if (member.incarnation() == host_.incarnation) return;
    const bool is_looking = host_.process.has_value();
    host_ = {member.name(), member.incarnation(),
             ProcessWatch::Of(member.process())};
    watched_.clear();
    {
      MutexLock lock(mu_);
      coordinator_status_ = absl::OkStatus();
    }
    if (host_.process.has_value() && !is_looking) LookAtHostLater();
    return;
  }
}

void Membership::State::LookAtHostLater() {
  timers_.RunAfter(kLookAtHost, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->strand_.Schedule([self] { self->LookAtHost(); });
    }
  });
}

void Membership::State::LookAtHost() {
  {
    MutexLock lock(mu_);
    if (is_stopped_ || has_ended_) return;
  }
  if (!host_.process.has_value()) return;
  if (!host_.process->HasEnded()) {
    if (core_.hears_nothing() && host_.process->HasRun()) {
      Run(MemberCore::HostRan{});
    }
    return LookAtHostLater();
  }
  host_.process.reset();
  {
    MutexLock lock(mu_);
    coordinator_status_ = absl::UnavailableError(absl::StrCat(
        "the process of ", host_.name,
        ", which hosted the coordinator, has ended; none has taken its place"));
  }
  WatchMembers();  // of the view in which the host still is
  Run(MemberCore::HostEnded{host_.name});
}

void Membership::State::WatchMembers() {
  for (const v1::Member& member : core_.view().members()) {
    const WorkerKey key = FromWire(member.key());
    if (key == self_.key || !member.has_process()) continue;
    auto process = ProcessWatch::Of(member.process());
    if (process.has_value()) watched_.emplace(key, *std::move(process));
  }
  LookAtMembersLater();
}

void Membership::State::LookAtMembersLater() {
  if (watched_.empty()) return;
  timers_.RunAfter(kLookAtHost, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->strand_.Schedule([self] { self->LookAtMembers(); });
    }
  });
}

void Membership::State::LookAtMembers() {
  {
    MutexLock lock(mu_);
    if (is_stopped_ || has_ended_) return;
  }
  std::vector<WorkerKey> ended;
  for (const auto& [key, process] : watched_) {
    if (process.HasEnded()) ended.push_back(key);
  }
  for (const WorkerKey& key : ended) {
    watched_.erase(key);
    Run(MemberCore::MemberEnded{key});
  }
  LookAtMembersLater();
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
  std::vector<std::shared_ptr<Listener>> listeners;
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
  {
    MutexLock lock(mu_);
    is_lost_ = is_lost;
    if (is_lost) listeners = listeners_;
    if (status.ok()) {
      status = absl::FailedPreconditionError(
          absl::StrCat(self_.name, " has left job \"", options_.job, "\""));
    }
    status_ = status;
    has_ended_ = true;
    waiters = TakeNews();
    std::move(end_waiters_.begin(), end_waiters_.end(),
              std::back_inserter(waiters));
    end_waiters_.clear();
    refreshes = std::exchange(asked_, {});
    std::move(ask_next_.begin(), ask_next_.end(),
              std::back_inserter(refreshes));
    ask_next_.clear();
  }
  calls_->End(status);  // barriers, the store, and what else asks
  for (Promise<void>& waiter : waiters) waiter.Set(absl::OkStatus());
  for (Promise<void>& waiter : refreshes) waiter.Set(status);
  for (const std::shared_ptr<Listener>& listener : listeners) {
    listener_strand_.Schedule(
        [listener, status] { listener->TellLost(status); });
  }
}

std::vector<Promise<void>> Membership::State::TakeNews() {
  std::vector<Promise<void>> news;
  for (Waiter& waiter : waiters_) {
    if (!waiter.news.has_value()) continue;
    news.push_back(*std::move(waiter.news));
    waiter.news.reset();
  }
  return news;
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

absl::StatusOr<std::shared_ptr<const View>> Membership::State::NextView(
    Waiter& waiter, Instant deadline) {
  for (;;) {
    auto [promise, news] = MakePromise<void>(timers_.driver());
    {
      MutexLock lock(mu_);
      if (!waiter.unseen.empty()) {
        // Too late for all but the newest.
        while (waiter.unseen.size() > 1 && now() >= deadline) {
          waiter.unseen.pop_front();
        }
        std::shared_ptr<const View> view = std::move(waiter.unseen.front());
        waiter.unseen.pop_front();
        return view;
      }
      if (!status_.ok()) return status_;
      waiter.news = std::move(promise);
    }
    const absl::Status told =
        news.Wait(std::max(deadline - now(), absl::ZeroDuration()));
    if (!news.IsReady()) return told;
  }
}

absl::Status Membership::State::Refresh(absl::Duration timeout) {
  auto [promise, answered] = MakePromise<void>(timers_.driver());
  bool must_ask = false;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return status_;
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

// `is_fit` runs here, on the thread that waits and under no lock.
absl::StatusOr<std::shared_ptr<const View>> Membership::State::WaitFor(
    std::function<bool(const View&)> is_fit, absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  std::list<Waiter>::iterator waiter;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return status_;
    waiter = waiters_.emplace(waiters_.end());
    waiter->unseen.push_back(view_);
  }
  absl::StatusOr<std::shared_ptr<const View>> view;
  absl::StatusOr<bool> fits = false;
  // Views may come faster than they are judged; the deadline holds still.
  bool is_over = false;
  while (fits.ok() && !*fits) {
    if (is_over) {
      view = absl::DeadlineExceededError("");
      break;
    }
    is_over = now() >= deadline;
    view = NextView(*waiter, deadline);
    if (!view.ok()) break;
    fits = CatchToStatus([&] { return is_fit(**view); });
  }
  MutexLock lock(mu_);
  waiters_.erase(waiter);
  if (!fits.ok()) return fits.status();
  if (!absl::IsDeadlineExceeded(view.status())) return view;
  return absl::DeadlineExceededError(
      absl::StrCat("job \"", options_.job, "\": ", view_->Summary(), " after ",
                   absl::FormatDuration(timeout)));
}

absl::Status Membership::State::Await(bool whole_world,
                                      absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  for (;;) {
    const absl::Duration left = deadline - now();
    const auto view = WaitFor(
        [whole_world](const View& v) {
          return v.version() != 0 && (!whole_world || v.IsComplete());
        },
        std::min(left, kLook));
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
  MutexLock lock(mu_);
  if (view_->version() != 0) return view_->Summary();
  if (has_answered_) {
    return absl::StrCat("the coordinator at ", link_->address(),
                        " has not let it in (", note_, ")");
  }
  std::string text =
      absl::StrCat("no coordinator has let it in at ", link_->address());
  if (!note_.empty()) absl::StrAppend(&text, " (", note_, ")");
  const bool has_servers = options_.world.Place("ps", 0).has_value();
  return absl::StrCat(text, "; is ", has_servers ? "server" : "trainer",
                      " 0 running, with this --coordinator?");
}

void Membership::State::ShowProgress(const std::string& text) {
  if (text == shown_ && now() - shown_at_ < kProgressPeriod) return;
  shown_ = text;
  shown_at_ = now();
  if (options_.progress) return options_.progress(text);
  WEFT_LOG(telemetry::OrSilent(options_.telemetry).logger(), Info, text);
}

Membership::Subscription Membership::State::OnChange(Listener::OnView fn,
                                                     Listener::OnLost on_lost) {
  const auto listener =
      std::make_shared<Listener>(std::move(fn), std::move(on_lost),
                                 telemetry::OrSilent(options_.telemetry));
  // Scheduled there, so that later views are delivered after the present one.
  listener_strand_.Schedule([weak = weak_from_this(), listener] {
    if (const auto self = weak.lock()) self->Begin(listener);
  });
  return Subscription([weak = weak_from_this(), listener] {
    listener->Cancel();
    if (const auto self = weak.lock()) {
      MutexLock lock(self->mu_);
      auto& all = self->listeners_;
      all.erase(std::remove(all.begin(), all.end(), listener), all.end());
    }
  });
}

void Membership::State::Begin(const std::shared_ptr<Listener>& listener) {
  std::shared_ptr<const View> view;
  absl::Status lost;
  {
    MutexLock lock(mu_);
    if (listener->is_cancelled()) return;
    listeners_.push_back(listener);
    view = view_;
    if (is_lost_) lost = status_;
  }
  WEFT_FAILPOINT("rendezvous/on_change").IgnoreError();
  listener->Tell(view);
  if (!lost.ok()) listener->TellLost(lost);
}

absl::Status Membership::State::Leave(absl::Duration timeout) {
  auto [promise, future] = MakePromise<void>(timers_.driver());
  {
    MutexLock lock(mu_);
    if (has_ended_) return absl::OkStatus();
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
  const std::shared_ptr<const View> seen = view();
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

absl::Status Membership::State::Arrive(v1::BarrierRequest& request) {
  MutexLock lock(mu_);
  if (!status_.ok()) return status_;
  request.set_arrival(++last_arrival_);
  if (!arrivals_.emplace(request.tag(), last_arrival_).second) {
    return absl::FailedPreconditionError(absl::StrCat("Barrier ", request.tag(),
                                                      ": another thread of ",
                                                      self_.name, " is there"));
  }
  return absl::OkStatus();
}

// One that waits for long does not keep all later ones unsettled.
void Membership::State::SaySettled(v1::BarrierRequest& request) {
  MutexLock lock(mu_);
  uint64_t lowest = last_arrival_;
  request.clear_unsettled();
  for (const auto& [tag, number] : arrivals_) {
    lowest = std::min(lowest, number);
    request.add_unsettled(number);
  }
  request.set_settled_below(lowest);
  request.set_arrivals(last_arrival_);
}

absl::StatusOr<v1::BarrierReply> Membership::State::Meet(
    v1::BarrierRequest& request, Instant deadline, std::string* missing) {
  PollBackoff backoff;
  for (;;) {
    const Instant asked = now();
    WEFT_ASSIGN_OR_RETURN(
        v1::BarrierReply reply,
        CallUntil<v1::BarrierReply>(
            *link_, timers_, "Barrier", deadline,
            [&](absl::Duration hold) {
              request.set_remaining_ms(absl::ToInt64Milliseconds(
                  std::max(deadline - now(), absl::ZeroDuration())));
              request.set_wait_ms(absl::ToInt64Milliseconds(hold));
              SaySettled(request);
              return request;
            },
            *calls_));
    if (reply.released()) return reply;
    *missing = MissingIn(reply);
    const Instant answered = now();
    if (answered >= deadline || !status().ok()) return reply;
    PauseFor(timers_,
             std::min(backoff.Pause(answered - asked), deadline - answered));
  }
}

absl::StatusOr<std::map<std::string, std::string>> Membership::State::AllGather(
    absl::string_view tag, absl::string_view payload,
    std::vector<std::string> members, absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  const bool is_everyone = members.empty();
  WEFT_ASSIGN_OR_RETURN(members, MembersOf(tag, std::move(members)));
  v1::BarrierRequest request;
  request.set_job(options_.job);
  *request.mutable_key() = ToWire(self_.key);
  request.set_tag(std::string(tag));
  request.set_payload(std::string(payload));
  request.set_everyone(is_everyone && KnowsEveryone());
  if (!request.everyone()) {
    *request.mutable_members() = {members.begin(), members.end()};
  }
  WEFT_RETURN_IF_ERROR(Arrive(request));
  std::string missing;
  absl::StatusOr<v1::BarrierReply> reply = Meet(request, deadline, &missing);
  {
    MutexLock lock(mu_);
    arrivals_.erase(std::string(tag));
  }
  if (reply.ok() && reply->released()) {
    std::map<std::string, std::string> gathered;
    for (std::string& member : members) gathered[std::move(member)];
    for (v1::Brought& brought : *reply->mutable_brought()) {
      const auto of = gathered.find(brought.name());
      if (of == gathered.end()) {
        return BadAnswer(link_->address(), "Barrier",
                         absl::StrCat("\"", absl::CHexEscape(brought.name()),
                                      "\" is at ", tag, ", which waits for ",
                                      gathered.size(), " others"));
      }
      of->second = std::move(*brought.mutable_payload());
    }
    return gathered;
  }
  // The coordinator may know before this worker that it is gone.
  if (absl::IsFailedPrecondition(reply.status())) (void)Refresh(kSilentAfter);
  WEFT_RETURN_IF_ERROR(status());
  if (absl::IsAborted(reply.status())) {
    return absl::UnavailableError(reply.status().message());
  }
  if (!reply.ok() && !absl::IsDeadlineExceeded(reply.status())) {
    return reply.status();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "Barrier ", tag, ": after ", absl::FormatDuration(timeout), " missing ",
      missing.empty() ? "the coordinator's answer" : missing));
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
                         calls_);
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

std::shared_ptr<const View> Membership::view() const { return state_->view(); }

absl::Status Membership::status() const { return state_->status(); }

absl::Status Membership::coordinator_status() const {
  return state_->coordinator_status();
}

absl::Status Membership::Refresh(absl::Duration timeout) {
  return state_->Refresh(timeout);
}

absl::StatusOr<std::shared_ptr<const View>> Membership::WaitFor(
    std::function<bool(const View&)> is_fit, absl::Duration timeout) {
  return state_->WaitFor(std::move(is_fit), timeout);
}

absl::Status Membership::AwaitWorld(absl::Duration timeout) {
  return state_->Await(/*whole_world=*/true, timeout);
}

Membership::Subscription Membership::OnChange(
    std::function<void(std::shared_ptr<const View>)> fn,
    std::function<void(const absl::Status& why)> on_lost) {
  return state_->OnChange(std::move(fn), std::move(on_lost));
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
  return absl::AlreadyExistsError(absl::StrCat(
      "worker ", name, " is in job \"", job, "\" already, at ", link.address(),
      ", where this one was to host the coordinator: give one of them another "
      "--rank or --coordinator, or end the other first"));
}

}  // namespace weft::rendezvous
