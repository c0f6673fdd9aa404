// Outbound: an agent's calls to one peer: the caller's session, its connection
// and its timer.

#ifndef WEFT_RPC_AGENT_OUTBOUND_H_
#define WEFT_RPC_AGENT_OUTBOUND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent/action_queue.h"
#include "weft/rpc/agent/call_histograms.h"
#include "weft/rpc/agent/connect_progress.h"
#include "weft/rpc/agent/connect_queue.h"
#include "weft/rpc/agent/session_timer.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/diagnostics/pending_source.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/id_map.h"
#include "weft/rpc/session/message.h"
#include "weft/rpc/session/session.h"
#include "weft/rpc/session/session_hook.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/telemetry/logger.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Connects when there is something to send (the first time in turn with other
// peers: ConnectQueue), again with growing pauses while it
// fails, and gives all calls up after `give_up_after` of failing, or later
// while other peers answer for the first time (ConnectProgress).
//
// Thread-safety: thread-safe.
class Outbound final : public internal::Caller,
                       public internal::Abandoner,
                       public LinkOwner,
                       public PendingSource,
                       public std::enable_shared_from_this<Outbound> {
 public:
  // What the agent shares with its Outbounds, which callers may keep longer.
  struct Shared {
    Shared(const Registry& registry, std::shared_ptr<ConnectQueue> queue)
        : connects(std::move(queue)), histograms(registry) {}

    ConnectProgress progress;
    const std::shared_ptr<ConnectQueue> connects;  // its places refer to it
    TrafficTable traffic;
    CallHistograms histograms;
    AttachmentReceivers receivers;
  };
  struct Options {
    Worker peer;
    transport::Transport* transport = nullptr;
    absl::Duration give_up_after;
    std::shared_ptr<Shared> shared;  // not null
    int64_t result_bytes = 0;        // see AgentOptions
    telemetry::FlightRecorder* recorder = nullptr;
    telemetry::Logger* logger = nullptr;
    SessionHook* hook = nullptr;
    Hello hello;             // without what the session says
    Agent* agent = nullptr;  // for CodecContext
  };

  explicit Outbound(Options options);

  const Worker& peer() const override { return options_.peer; }
  Abandon Start(std::shared_ptr<Request> request, Done done) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AbandonCall(uint64_t id, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // The peer's incarnation is no more.
  void PeerGone(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the connection once no call is open; later calls end with `why`.
  void EndWhenIdle(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all with `why` and releases the transport.
  void Shutdown(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  void AddPending(std::vector<PendingCall>* calls) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void AddActive(ActiveCalls* active) override ABSL_LOCKS_EXCLUDED(mu_);
  void AddOpen(std::vector<std::string>* open) override
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status OnFrame(Link& link, Frame&& frame) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> WantsBody(Link& link, const Frame& frame) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnNoRoom(Link& link, const Frame& frame,
                        absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkClosed(Link& link, absl::Status status) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
  static constexpr absl::Duration kLongestPause = absl::Seconds(1);
  // How long the first of the calls that wait for credit may wait before the
  // log says so, and how often it does.
  static constexpr absl::Duration kWarnAfter = absl::Seconds(1);
  static constexpr absl::Duration kWarnAgain = absl::Seconds(30);

  // A call that has ended, and its callback.
  struct Ended {
    Done done;
    absl::Status status;
    ReplyPtr reply;
    RequestPtr request;
  };
  using Task = std::variant<CallerSession::WakeAt,
                            CallerSession::TellAttachments, Ended>;

  // Gives `event` to the session, its sends to the link, and does the rest.
  void Tell(const CallerSession::Event& event) ABSL_LOCKS_EXCLUDED(mu_);
  void TellLocked(const CallerSession::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveToSession(const CallerSession::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEmitted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is to be done once the lock is gone.
  struct Due {
    bool has_tasks = false;
    std::shared_ptr<Link> link;  // to be drained
    bool must_close = false;     // and then closed
    bool must_watch_credit = false;
  };
  Due TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(const Due& due) ABSL_LOCKS_EXCLUDED(mu_);
  void TellDone(Ended& ended) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the attachments of the reply and ends the call once they are settled,
  // at its deadline at the latest.
  void TellDoneWhenSettled(Ended& ended) ABSL_LOCKS_EXCLUDED(mu_);
  void Settled(uint64_t id, bool taken) ABSL_LOCKS_EXCLUDED(mu_);
  void SetTimer(Instant when) ABSL_LOCKS_EXCLUDED(mu_);

  // Looks after kWarnAfter whether the call that waits first for credit still
  // does. True if a timer must be set for that, by WatchCreditLater.
  bool MustWatchCredit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WatchCreditLater() ABSL_LOCKS_EXCLUDED(mu_);
  void CheckCredit() ABSL_LOCKS_EXCLUDED(mu_);

  // Connects if there is a reason to and nothing under way.
  void ConnectIfNeeded() ABSL_LOCKS_EXCLUDED(mu_);
  void BeginToConnect(ConnectQueue::Place place) ABSL_LOCKS_EXCLUDED(mu_);
  void Connect() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnlyCallersSend() const;
  absl::Status OnWelcome(Link& link, const Welcome& welcome)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the calls if by then no connection has come about since.
  void GiveUpLater(Instant since);
  void GiveUp(Instant since) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WhyUnreachable(Instant since) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Traffic& traffic_;  // of the peer
  Clock& clock_;

  Mutex mu_;
  CallerSession session_ ABSL_GUARDED_BY(mu_);
  IdMap<Done> done_ ABSL_GUARDED_BY(mu_);
  std::vector<CallerSession::Action> emitted_ ABSL_GUARDED_BY(mu_);  // scratch
  ActionQueue<Task> tasks_;                                          // with mu_
  bool must_drain_ ABSL_GUARDED_BY(mu_) = false;
  bool must_close_ ABSL_GUARDED_BY(mu_) = false;

  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mu_);  // connected or about to
  bool connecting_ ABSL_GUARDED_BY(mu_) = false;     // or waiting to try again
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration pause_ ABSL_GUARDED_BY(mu_);
  // While connecting_, once the first attempt has begun.
  Instant failing_since_ ABSL_GUARDED_BY(mu_);
  // The place of the first attempt. Reset outside of the lock: others begin
  // then.
  ConnectQueue::Place place_ ABSL_GUARDED_BY(mu_);
  bool was_welcomed_ ABSL_GUARDED_BY(mu_) = false;
  Instant welcomed_at_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_replied_{false};  // since then
  absl::Status last_failure_ ABSL_GUARDED_BY(mu_);
  bool watches_credit_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t watched_call_ ABSL_GUARDED_BY(mu_) = 0;
  Instant may_warn_at_ ABSL_GUARDED_BY(mu_);
  SessionTimer timer_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_OUTBOUND_H_
