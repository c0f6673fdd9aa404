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
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/barrier_table.h"
#include "weft/rendezvous/core/held_calls.h"
#include "weft/rendezvous/core/member_table.h"
#include "weft/rendezvous/core/store_table.h"
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
    // Whether the first member to join may set both (World::suspect_after_ms,
    // dead_after_ms): a coordinator of its own has no settings of the job's
    // workers. From 100 ms to an hour, suspicion first; else they are ignored.
    bool takes_silence_limits = false;
    // The same for one whose process is seen to run (Ran): it is busy.
    absl::Duration busy_dead_after = absl::Minutes(1);
    // A held call is answered after this long at the latest.
    absl::Duration max_wait = absl::Seconds(10);
    int max_names = 16384;  // that were ever in the job
    // What all will see of a Join has no more: the member, with its labels and
    // its address, and the world.
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

  using Told = MemberTable::Told;
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
    bool is_warning = false;  // a member is lost, or may be
  };
  using Action = std::variant<Persist, Answer, Note>;
  using Actions = std::vector<Action>;

  // `term` is higher than any that `history` knows, and already on disk.
  // Members of `history` that hosted an earlier term are gone: this process has
  // taken the place of theirs.
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
  const v1::View& view() const { return members_.Whole()->view; }
  Epoch version() const { return members_.version(); }  // of the view
  int members() const { return members_.size(); }

 private:
  using Slot = MemberTable::Slot;
  struct Watcher {
    uint64_t known_version = 0;
    bool takes_changes = false;
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
  // The slot of that incarnation if it is in; else why it is not.
  absl::StatusOr<Slot*> FindLive(const v1::WorkerKey& key,
                                 uint64_t incarnation);

  void Admit(Ticket ticket, const v1::JoinRequest& request);
  void RemoveEarlierHosts();
  // The names for which the barrier waits; an error says what is wrong with the
  // request.
  absl::StatusOr<BarrierTable::Names> CheckBarrier(
      const v1::BarrierRequest& request, const std::string& caller);
  // Fails the barriers that name a member that is gone.
  void FailIfGone(const BarrierTable::Names& members);
  void Remove(Slot& slot, const std::string& reason, bool left);
  void PersistJoined(const Slot& slot);
  void Hear(Slot& slot);  // and it is suspect no more
  void OnRan(const Ran& ran);
  void Adopt(const v1::Departed& departed, const std::string& reporter);
  // Decides the joins that waited to know whether `name` is alive.
  void SettleHeldJoins(const std::string& name, bool holder_lives);
  void CheckSilentMembers();
  void AnswerExpired();
  // Answers the calls that wait for the view, if it is time.
  void Publish();
  void AnswerWatch(Ticket ticket, const Watcher& watcher);
  void CountAnswer();  // to a Watch that was not held
  void AnswerJoin(Ticket ticket, const v1::Member& admitted);
  void Report(BarrierTable::Result result);
  void Change(Ticket ticket, const v1::StoreRequest& request);

  Instant Until(uint32_t wait_ms) const;
  int64_t held() const;
  void Ok(Ticket ticket, Reply reply);
  void Fail(Ticket ticket, absl::Status status);
  void Say(std::string text, bool is_warning = false);

  void TakeSilenceLimits(const v1::World& world);

  Options options_;
  const uint32_t term_;
  MemberTable members_;
  BarrierTable::Names everyone_;  // of a fixed world; null: not wanted so far
  Epoch published_ = 0;           // the version that those who waited were told
  bool is_behind_ = false;        // one of those who wait, of published_
  Instant next_publishing_;       // the earliest; until then it is a pause
  int counted_ = 0;               // answers to calls that were not held...
  Instant counted_since_;         // ...in this publish_interval
  std::map<Ticket, v1::Member> admitted_;  // whose joins are to be answered

  StoreTable store_;
  BarrierTable barriers_;
  HeldCalls<v1::JoinRequest> held_joins_;  // for the worker's name
  HeldCalls<Watcher> held_watches_;
  Instant now_;
  absl::Duration attended_;  // how long this core has been watching
  Actions actions_;          // of the event in progress
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_COORDINATOR_CORE_H_
