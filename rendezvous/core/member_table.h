// MemberTable: the names that have been in a job, who of them is in, and the
// view of them, with what has changed in it since each version. Pure.

#ifndef WEFT_RENDEZVOUS_CORE_MEMBER_TABLE_H_
#define WEFT_RENDEZVOUS_CORE_MEMBER_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// Nothing costs more than the logarithm of the names, but for Index, Snapshot
// and a view that has not been made. Moments are those of
// CoordinatorCore::attended_.
//
// Thread-safety: one thread at a time. Copyable.
class MemberTable {
 public:
  struct Slot {         // a name that has been in the job
    v1::Member member;  // the present incarnation, if is_in
    bool is_in = false;
    v1::Departed departed;  // the last incarnation that is gone, if any
    absl::Duration heard_at;
    absl::Duration silent_from;  // from when its silence counts
    Epoch changed_at = 0;        // the first view that has it as it is
    uint64_t digest = 0;         // its part of the view's
    uint32_t id() const {
      return is_in ? member.key().id() : departed.key().id();
    }
    const std::string& name() const {
      return is_in ? member.name() : departed.name();
    }
  };
  // A view, or what has changed in it, that many are sent: encoded once.
  struct Told {
    explicit Told(v1::View told)
        : view(std::move(told)), bytes(view.SerializeAsString()) {}
    const v1::View view;
    const std::string bytes;  // of `view`
  };

  explicit MemberTable(uint32_t term) : term_(term) {}

  // What an earlier term has recorded, and once all is: what is looked up.
  void ReplayWorld(const v1::World& world, Epoch version);
  void ReplayJoined(const v1::Member& member, Epoch version);
  const Slot& ReplayDeparted(const v1::Departed& departed, Epoch version);
  void Index();
  // Appends the records of all that.
  void Snapshot(std::vector<v1::LogRecord>* records) const;

  const v1::World& world() const { return world_; }
  bool has_world() const { return has_world_; }
  Epoch version() const { return version_; }  // of the view
  std::map<std::string, Slot>& slots() { return slots_; }
  const std::map<std::string, Slot>& slots() const { return slots_; }
  // Null if there is none.
  Slot* Find(const std::string& name);
  const Slot* Find(const std::string& name) const;
  Slot* FindById(uint32_t id);
  // The name of the member that is in with that incarnation; null: none.
  const std::string* NameOf(uint64_t incarnation) const;
  int size() const { return static_cast<int>(incarnations_.size()); }
  int present() const { return present_; }  // who is in, but for admins
  // The names that were in and are not any more.
  const std::set<std::string>& gone() const { return gone_; }

  // Each is a new version of the view.
  //
  // Admits a member, with a new key. `world`: the job's world from now on;
  // null: the job has one, or an admin joins.
  Slot& Admit(v1::Member member, const v1::World* world, absl::Duration now);
  // REQUIRES: it is in.
  void Remove(Slot& slot, const std::string& reason, bool left);
  void SetPhase(Slot& slot, v1::Phase phase);
  void SetSuspect(Slot& slot, bool is_suspect);

  // The member was heard. Returns whether it was suspect, and is no more.
  bool Hear(Slot& slot, absl::Duration now);
  // Its silence counts from then on.
  void SetSilentFrom(Slot& slot, absl::Duration silent_from);
  // The members, of those that are suspect or of the others, that have been
  // silent since `from`.
  std::vector<Slot*> SilentSince(bool is_suspect, absl::Duration from);
  // Since when the one that has been silent longest is silent; nothing if there
  // is none.
  std::optional<absl::Duration> LongestSilence(bool is_suspect) const;

  // The whole view.
  std::shared_ptr<const Told> Whole() const;
  // What has changed since `known`, if that is enough; else the whole view.
  std::shared_ptr<const Told> TellTo(Epoch known, bool takes_changes);

 private:
  // From when the silence of each member counts, and its id.
  using Hearing = std::set<std::pair<absl::Duration, uint32_t>>;

  void ForgetMisnumbered();
  // Whether all members of the world are in.
  bool IsComplete() const;
  uint32_t IdFor(const v1::Member& member) const;
  // Keep the indexes: of a slot that is in from now on, and of one that was
  // until now.
  void Enter(const Slot& slot);
  void Exit(const Slot& slot);
  // `slot` has changed: a new version.
  void Touch(Slot& slot);
  // Begin and end to watch the silence of a member.
  void Listen(const Slot& slot);
  void StopListening(const Slot& slot);
  static uint64_t DigestOf(const Slot& slot);
  static void AddTo(v1::View& view, const Slot& slot);
  v1::View ChangesSince(Epoch version) const;
  Epoch NextEpoch() { return MakeEpoch(term_, ++counter_); }

  uint32_t term_;
  uint32_t counter_ = 0;
  v1::World world_;
  bool has_world_ = false;
  Epoch world_at_ = 0;                 // the first view that has the world
  Epoch complete_at_ = 0;              // View::complete_at; not in the log
  std::map<std::string, Slot> slots_;  // by name
  // These index `slots_`: see Index().
  std::map<uint32_t, std::string> names_;                    // by id
  std::set<std::pair<uint64_t, std::string>> incarnations_;  // of those in
  std::set<std::string> gone_;
  int present_ = 0;
  std::map<Epoch, std::string> changes_;  // by changed_at
  Hearing heard_;                         // of those who are not suspect
  Hearing suspects_;

  Epoch version_ = 0;
  uint64_t digest_ = 0;  // of the view
  // A watcher that knows an earlier version gets the whole view.
  Epoch changes_from_ = 0;
  mutable std::shared_ptr<const Told> whole_;  // of version_, once made
  // What is told of version_, by what the watcher knows.
  std::map<Epoch, std::shared_ptr<const Told>> told_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_MEMBER_TABLE_H_
