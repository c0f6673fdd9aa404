// MemberCore: one worker's side of the membership: joins, repeats, beats,
// watches, leaves. Pure: OnEvent(event) -> actions.
//
// The coordinator's silence is counted in time during which this core was
// driven: a worker that was itself stopped for a while does not take that for
// silence, and learns from the coordinator what became of it.

#ifndef WEFT_RENDEZVOUS_CORE_MEMBER_CORE_H_
#define WEFT_RENDEZVOUS_CORE_MEMBER_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/poll_backoff.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// The views of one job, by version, where many of its members are in one
// process: a simulation. Thread-safety: one thread at a time.
class SharedViews {
 public:
  // Null if none has it.
  std::shared_ptr<const v1::View> Find(uint64_t version) const {
    const auto found = views_.find(version);
    return found == views_.end() ? nullptr : found->second.lock();
  }
  void Keep(const std::shared_ptr<const v1::View>& view) {
    views_[view->version()] = view;
  }

 private:
  std::map<uint64_t, std::weak_ptr<const v1::View>> views_;
};

// Thread-safety: one thread at a time. Copyable.
class MemberCore {
 public:
  struct Options {
    std::string job;
    std::string coordinator;  // its address, for messages
    v1::Member self;          // without its key
    v1::World world;
    uint32_t start = 0;  // of the job's ranks, from 1; 0: unknown
    absl::Duration heartbeat_interval = absl::Milliseconds(500);
    // An unanswered request is given up and repeated after this, besides what
    // the coordinator may hold it. A heartbeat after one that was not answered
    // waits four times as long, within the limit of silence below, so that a
    // coordinator on a crowded host, which answers late, is heard.
    absl::Duration call_timeout = absl::Seconds(2);
    absl::Duration hold = absl::Seconds(5);  // the longest held call
    // The pause before a request is repeated.
    absl::Duration retry_pause = absl::Milliseconds(100);
    // The membership is lost after so long without a word from a coordinator
    // that will know its members when it is started again; and from one that
    // will not.
    absl::Duration give_up_after = absl::Minutes(1);
    // (Where its process is of this host and is seen to run within that time,
    // it is busy, and counts as one that will.)
    absl::Duration give_up_for_good_after = absl::Seconds(10);
    // When a coordinator that will not come back cannot be reached for so long,
    // nobody is left to say good-bye to.
    absl::Duration leave_unheard_after = absl::Seconds(2);
    // A member whose connections are reset for so long as it joins has a
    // certificate that is refused. A coordinator that starts, or is crowded,
    // closes connections too.
    absl::Duration give_up_after_resets_for = absl::Seconds(5);
    // Null: it shares with nobody. Must outlive the core. What is in there is
    // taken for the coordinator's, and not checked.
    SharedViews* views = nullptr;
  };

  using Request = std::variant<v1::JoinRequest, v1::HeartbeatRequest,
                               v1::WatchRequest, v1::LeaveRequest>;
  using Reply = std::variant<v1::JoinReply, v1::HeartbeatReply, v1::WatchReply,
                             v1::LeaveReply>;

  struct Start {};
  struct Replied {
    uint64_t call;
    absl::StatusOr<Reply> reply;
    // The view of `reply`, if it is without: whoever shares views shares what
    // is told, too.
    std::shared_ptr<const v1::View> told = nullptr;
  };
  struct Timer {};
  struct WantToLeave {};
  // The coordinator has told this view, which was asked for beside the watch;
  // or the changes since the view() of then.
  struct Refreshed {
    v1::View view;
  };
  // The process of the worker `name`, which hosted the coordinator, has ended,
  // as somebody of its host has seen.
  struct HostEnded {
    std::string name;
  };
  // The process that hosts the coordinator has used the processor, as somebody
  // of its host has seen: it lives, however late it answers.
  struct HostRan {};
  // The process of this member has ended, as somebody of its host has seen
  // while there is no coordinator to see it.
  struct MemberEnded {
    WorkerKey key;
  };
  using Event = std::variant<Start, Replied, Timer, WantToLeave, Refreshed,
                             HostEnded, HostRan, MemberEnded>;

  struct Send {
    uint64_t call;  // named again by its Replied
    Request request;
    absl::Duration timeout;  // after which it is Replied kDeadlineExceeded
  };
  struct SetTimer {  // several may be set
    absl::Duration after;
  };
  struct Joined {
    WorkerKey key;
    bool knows_everyone = false;  // the coordinator: BarrierRequest.everyone
  };
  // The view that the coordinator has sent, without members whose process is
  // known to have ended. It has the same version as the one before if only such
  // members have changed.
  struct NewView {
    std::shared_ptr<const v1::View> view;
  };
  // The end: joining failed, or it was left (ok), or the membership is lost:
  // kAborted, kUnavailable by the coordinator's silence, or kInternal by an
  // answer that no coordinator gives.
  struct Ended {
    absl::Status status;
  };
  struct Waiting {  // joining takes its time; for whoever watches
    std::string text;
    bool is_answer = false;  // of a coordinator, which has no room
  };
  struct Warn {  // for the log
    std::string text;
  };
  using Action =
      std::variant<Send, SetTimer, Joined, NewView, Ended, Waiting, Warn>;
  using Actions = std::vector<Action>;

  MemberCore(Options options, Instant now)
      : options_(std::move(options)), now_(now) {}

  Actions OnEvent(Instant now, const Event& event);

  // "Join": of the request that is `index` among Request's.
  static absl::string_view MethodOf(size_t index);
  // The answer to it; BadAnswer if it is none.
  static absl::StatusOr<Reply> ParseReply(size_t index,
                                          const std::string& bytes,
                                          absl::string_view coordinator);

  enum class State { kNew, kJoining, kIn, kLeaving, kEnded };
  State state() const { return state_; }
  // Whether the coordinator has not been heard for longer than an answer takes.
  bool hears_nothing() const {
    return attended_ - heard_at_ >= options_.call_timeout;
  }
  WorkerKey key() const { return key_; }
  // As the coordinator has told it.
  const v1::View& view() const { return *view_; }

 private:
  enum class Purpose { kJoin, kHeartbeat, kWatch, kLeave };
  struct Pending {
    uint64_t call = 0;  // 0: none in flight
    Instant sent_at;
    std::optional<Instant> due;  // when to send (again)
  };

  void OnTimer();
  using ViewPtr = std::shared_ptr<const v1::View>;  // not null

  void OnReply(Purpose purpose, const Replied& replied);
  void OnJoinReply(const Replied& replied);
  void OnHeartbeatReply(const absl::Status& status);
  void OnWatchReply(const Replied& replied);
  // Takes a view, or changes, if they are newer. False: they are not, or this
  // worker is out of the job by them.
  bool OnView(const v1::View& told);
  // The whole view of what was told, checked; an error if it is none.
  absl::StatusOr<ViewPtr> WholeOf(const v1::View& told) const;
  absl::StatusOr<ViewPtr> Checked(v1::View view) const;
  void OnLeaveReply(const absl::Status& status);
  void OnHostEnded(const std::string& name);
  void OnMemberEnded(WorkerKey key);
  ViewPtr ShownView() const;

  Pending& pending(Purpose purpose) {
    return pending_[static_cast<int>(purpose)];
  }
  void SendNow(Purpose purpose);
  void SendAfter(Purpose purpose, absl::Duration pause);
  Request MakeRequest(Purpose purpose) const;
  absl::Duration TimeoutOf(Purpose purpose) const;
  // How long the coordinator may be silent.
  absl::Duration LongestSilence() const;
  // Sets a timer, so that the time until then is attended to.
  void Tick();
  // Takes `view` as the present one. It is the view that was sent, or the
  // result of the changes in `told`.
  void TakeView(ViewPtr view, const v1::View& told);
  // The members that are gone in the present view and are in `view`.
  std::vector<v1::Departed> GoneButIn(const v1::View& view) const;
  // The membership is lost; `why` follows the words "out of the job".
  void Lose(absl::StatusCode code, absl::string_view why);
  void LoseBy(const absl::Status& answer);
  void End(absl::Status status);

  const Options options_;
  State state_ = State::kNew;
  WorkerKey key_;
  bool is_durable_ = false;  // the coordinator
  ViewPtr view_ = std::make_shared<const v1::View>();
  bool wants_whole_ = false;   // the changes did not fit view_
  std::set<WorkerKey> ended_;  // of the members in view_
  PollBackoff watch_backoff_;
  // Members that earlier terms declared gone and that this term has as members,
  // until the coordinator has been told.
  std::vector<v1::Departed> to_repeat_;
  Pending pending_[4];
  uint64_t last_call_ = 0;
  absl::Duration attended_;  // how long this core has been driven
  absl::Duration heard_at_;  // of `attended_`: the coordinator
  std::optional<absl::Duration> host_ran_at_;  // of `attended_`
  int late_heartbeats_ = 0;  // the last ones, not answered within their time
  std::optional<Instant> tick_at_;
  // While joining: since when it answers with nothing but a hang-up.
  std::optional<Instant> reset_since_;
  Instant leaving_at_;  // since when
  Instant now_;
  Actions actions_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_MEMBER_CORE_H_
