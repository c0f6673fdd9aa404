// CoordinatorCore: decides who is in the job, who is gone, when a barrier opens
// and what the store holds. Pure: OnEvent(event) -> actions.
//
// Its driver carries the actions out in order: a Persist is on disk
// before a later Answer leaves. From the persisted records a successor with a
// higher term goes on where this one stopped; what is lost with the process is
// only who is suspect and which calls were held.
//
// Silence is counted in time during which the core was ticked: a coordinator
// that was itself stopped for a while accuses nobody of it.
//
// Who watches gets what has changed since it looked, so that a change of one
// costs each member a few bytes. A few members are answered at once; where many
// are, the changes of the next `publish_interval` are in one answer. No event
// costs more than the logarithm of the members, besides its answers.

#ifndef WEFT_RENDEZVOUS_CORE_COORDINATOR_CORE_H_
#define WEFT_RENDEZVOUS_CORE_COORDINATOR_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/barrier_table.h"
#include "weft/rendezvous/core/held_calls.h"
#include "weft/rendezvous/core/versioned_map.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time. Copyable, so that an exploration can
// branch.
class CoordinatorCore {
 public:
  struct Options {
    std::string job;  // empty: that of the first to join
    absl::Duration suspect_after = absl::Seconds(3);
    absl::Duration dead_after = absl::Seconds(10);
    // Of one whose process is seen to run (Ran): it is busy.
    absl::Duration busy_dead_after = absl::Minutes(1);
    // A held call is answered after this long at the latest.
    absl::Duration max_wait = absl::Seconds(10);
    int max_names = 16384;  // that were ever in the job
    // Of a Join what all will see: the member, with its labels and its address,
    // and the world.
    int64_t max_member_bytes = int64_t{16} << 10;
    int max_held_calls = 65536;
    int64_t max_tag_bytes = int64_t{1} << 10;  // of a barrier
    BarrierTable::Limits barriers;
    VersionedMap::Limits store;
    // What members bring to one barrier: each of them, and together.
    int64_t max_payload_bytes = int64_t{64} << 10;
    int64_t max_gathered_bytes = int64_t{1} << 20;
    // Which start of the job's ranks it belongs to, from 1, where launchers on
    // several hosts start all of them again after one has failed. Members of a
    // later start have to wait for its coordinator. 0: any.
    uint32_t start = 0;
    // A successor will find this one's records; members are notified.
    bool is_durable = false;
    // After an answer about the view to more than `unpaced_answers` at once, or
    // to as many who asked within `publish_interval`, there is a pause, of
    // `publish_interval`, or of `answer_time` for each if that is more. Whose
    // call may be held waits for its end, if need be a little longer than he
    // allows.
    int unpaced_answers = 64;
    absl::Duration publish_interval = absl::Milliseconds(100);
    absl::Duration answer_time = absl::Microseconds(10);
  };

  // Names one call among those that are held; chosen by the driver.
  using Ticket = uint64_t;
  using Request =
      std::variant<v1::JoinRequest, v1::HeartbeatRequest, v1::WatchRequest,
                   v1::AnnounceRequest, v1::LeaveRequest, v1::ReportExitRequest,
                   v1::BarrierRequest, v1::StoreRequest>;
  using Reply =
      std::variant<v1::JoinReply, v1::HeartbeatReply, v1::WatchReply,
                   v1::AnnounceReply, v1::LeaveReply, v1::ReportExitReply,
                   v1::BarrierReply, v1::StoreReply>;

  struct Call {
    Ticket ticket;
    Request request;
  };
  struct Tick {};
  struct CallerGone {  // the caller of a held call is no longer there
    Ticket ticket;
  };
  // The process of this member has used the processor, as somebody of its host
  // has seen: it is not gone, however late it is heard.
  struct Ran {
    std::string name;
    uint64_t incarnation;
  };
  using Event = std::variant<Call, Tick, CallerGone, Ran>;

  // A view, or what has changed in it, that many are sent: encoded once.
  struct Told {
    explicit Told(v1::View told)
        : view(std::move(told)), bytes(view.SerializeAsString()) {}
    const v1::View view;
    const std::string bytes;  // of `view`
  };
  struct Answer {
    Ticket ticket;
    absl::Status status;
    Reply reply;  // if status is ok
    // The view of a JoinReply or a WatchReply, which `reply` is without.
    std::shared_ptr<const Told> told = nullptr;

    // The bytes of the whole reply. REQUIRES: status is ok.
    std::string Encode() const;
  };
  struct Persist {
    v1::LogRecord record;
  };
  struct Note {  // for the log that people read
    std::string text;
  };
  using Action = std::variant<Persist, Answer, Note>;
  using Actions = std::vector<Action>;

  // `term` is higher than any that `history` knows, and already on disk. Of the
  // members in it those that hosted an earlier term are gone: theirs was the
  // process whose place this one has taken.
  CoordinatorCore(Options options, uint32_t term,
                  const std::vector<v1::LogRecord>& history, Instant now);

  // `now` does not go back.
  Actions OnEvent(Instant now, Event event);

  // When the next Tick has something to do, as far as is known now.
  Instant NextTick() const;

  // Records that make the same core: what a compacted log holds.
  std::vector<v1::LogRecord> Snapshot() const;

  // Whether `request` is of a size that one of `options` takes; else
  // kInvalidArgument says what is too long. Any thread, so that what is refused
  // need not be kept until the core's turn comes: OnEvent refuses it too.
  static absl::Status CheckSize(const Options& options, const Request& request);

  // Whether it is a member that is silent.
  bool is_suspect(const std::string& name) const;
  uint32_t term() const { return term_; }
  const std::string& job() const { return options_.job; }
  // Whole. The reference holds until the next event.
  const v1::View& view() const { return Whole()->view; }
  Epoch version() const { return version_; }  // of the view
  int members() const { return static_cast<int>(incarnations_.size()); }

 private:
  struct Slot {         // a name that has been in the job
    v1::Member member;  // the present incarnation, if is_in
    bool is_in = false;
    v1::Departed departed;  // the last incarnation that is gone, if any
    // Both of `attended_`: when it was heard, and from when its silence counts.
    absl::Duration heard_at;
    absl::Duration silent_from;
    Epoch changed_at = 0;  // the first view that has it as it is
    uint64_t digest = 0;   // its part of `digest_`
    uint32_t id() const {
      return is_in ? member.key().id() : departed.key().id();
    }
    const std::string& name() const {
      return is_in ? member.name() : departed.name();
    }
  };
  struct Watcher {
    uint64_t known_version = 0;
    bool takes_changes = false;
  };
  struct StoreWait {
    std::string key;
    uint64_t version;  // that is known
  };
  // Of members: when each was heard, and its id.
  using Hearing = std::set<std::pair<absl::Duration, uint32_t>>;
  struct LastChange {  // of one client of the store, applied or not
    uint64_t sequence = 0;
    absl::StatusOr<v1::StoreReply> reply;
  };

  void On(Ticket ticket, const v1::JoinRequest& request);
  void On(Ticket ticket, const v1::HeartbeatRequest& request);
  void On(Ticket ticket, const v1::WatchRequest& request);
  void On(Ticket ticket, const v1::AnnounceRequest& request);
  void On(Ticket ticket, const v1::LeaveRequest& request);
  void On(Ticket ticket, const v1::ReportExitRequest& request);
  void On(Ticket ticket, const v1::BarrierRequest& request);
  void On(Ticket ticket, const v1::StoreRequest& request);
  void OnTick();
  void OnCallerGone(Ticket ticket);
  void Replay(const v1::LogRecord& record);

  absl::Status CheckJob(const std::string& job) const;
  absl::Status CheckJoin(const v1::JoinRequest& request) const;
  absl::Status CheckStart(const v1::JoinRequest& request) const;
  absl::Status CheckStore(const v1::StoreRequest& request) const;
  Slot* FindSlot(uint32_t id);
  // The slot of that incarnation if it is in; else why it is not.
  absl::StatusOr<Slot*> FindLive(const v1::WorkerKey& key,
                                 uint64_t incarnation);

  void Admit(Ticket ticket, const v1::JoinRequest& request);
  void BuryEarlierHosts();
  void ForgetMisnumbered();
  // Whom it waits for; an error says what is wrong with it.
  absl::StatusOr<BarrierTable::Names> CheckBarrier(
      const v1::BarrierRequest& request, const std::string& caller);
  // Fails the barriers that name one who has gone.
  void FailIfGone(const BarrierTable::Names& members);
  void Remove(Slot& slot, const std::string& reason, bool left);
  void PersistJoined(const Slot& slot);
  // What is looked up follows from the slots: of all after a replay, and of one
  // that is in from now on, or until now.
  void Index();
  void Enter(const Slot& slot);
  void Exit(const Slot& slot);
  static uint64_t DigestOf(const Slot& slot);
  // `slot` has changed: a new version.
  void Touch(Slot& slot);
  // Whose silence is judged.
  void Listen(const Slot& slot);
  void StopListening(const Slot& slot);
  void Hear(Slot& slot);  // and it is suspect no more
  void OnRan(const Ran& ran);
  void Adopt(const v1::Departed& departed, const std::string& reporter);
  uint32_t IdFor(const v1::JoinRequest& request) const;
  // Decides the joins that waited to know whether `name` is alive.
  void SettleHeldJoins(const std::string& name, bool holder_lives);
  void JudgeSilence();
  void AnswerExpired();
  // Answers those who wait for the view, if it is time.
  void Publish();
  void AnswerWatch(Ticket ticket, const Watcher& watcher);
  void CountAnswer();  // to a Watch that was not held
  void AnswerJoin(Ticket ticket, const v1::Member& admitted);
  std::shared_ptr<const Told> Whole() const;
  std::shared_ptr<const Told> TellTo(const Watcher& watcher);
  v1::View ChangesSince(Epoch version) const;
  static void AddTo(v1::View& view, const Slot& slot);
  void Report(BarrierTable::Result result);
  void Change(Ticket ticket, const v1::StoreRequest& request);
  void AnswerChange(Ticket ticket, absl::StatusOr<v1::StoreReply> reply);

  Instant Until(uint32_t wait_ms) const;
  int64_t held() const;
  void Ok(Ticket ticket, Reply reply);
  void Fail(Ticket ticket, absl::Status status);
  void Say(std::string text);
  Epoch NextEpoch() { return MakeEpoch(term_, ++counter_); }

  Options options_;
  const uint32_t term_;
  uint32_t counter_ = 0;
  v1::World world_;
  bool has_world_ = false;
  Epoch world_at_ = 0;            // the first view that has the world
  BarrierTable::Names everyone_;  // of a fixed world; null: not wanted so far
  std::map<std::string, Slot> slots_;  // by name
  // Of `slots_`, see Index().
  std::map<uint32_t, std::string> names_;                    // by id
  std::set<std::pair<uint64_t, std::string>> incarnations_;  // of those in
  std::set<std::string> gone_;            // who was in, and is not
  int present_ = 0;                       // who is in, but for admins
  std::map<Epoch, std::string> changes_;  // by changed_at
  Hearing heard_;                         // of those who are not suspect
  Hearing suspects_;

  Epoch version_ = 0;
  uint64_t digest_ = 0;  // of the view
  // Who knows an earlier version gets a whole view.
  Epoch changes_from_ = 0;
  mutable std::shared_ptr<const Told> whole_;  // of version_, once made
  // Of version_, by what the watcher knows.
  std::map<Epoch, std::shared_ptr<const Told>> told_;
  Epoch published_ = 0;      // the version that those who waited were told
  bool is_behind_ = false;   // one of those who wait, of published_
  Instant next_publishing_;  // the earliest; until then it is a pause
  int counted_ = 0;          // answers to calls that were not held...
  Instant counted_since_;    // ...in this publish_interval
  std::map<Ticket, v1::Member> admitted_;  // whose joins are to be answered

  VersionedMap store_;
  BarrierTable barriers_;
  std::map<uint64_t, LastChange> last_changes_;  // by client
  HeldCalls<v1::JoinRequest> held_joins_;        // for the worker's name
  HeldCalls<Watcher> held_watches_;
  HeldCalls<StoreWait> held_waits_;  // for the key
  Instant now_;
  absl::Duration attended_;  // how long this core has been watching
  Actions actions_;          // of the event in progress
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_COORDINATOR_CORE_H_
