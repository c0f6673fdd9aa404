// RollCallCore: how the members of an elastic job agree on who of them makes
// the next group.
//
// Each worker that wants to be in it writes itself into one value of the job's
// store, by compare-and-set. Whoever finds that all have come, or as many as
// may, closes the round in the same way: from then on its roll stands. Who
// comes later begins the next round. The value keeps the last closed rolls, so
// a member that has not looked meanwhile finds its own.
//
// A round is closed when
//   `max` have come, and all that live of the newest roll among them; or
//   at least `min` have, and all whom the selector finds in the view of the
//   one that closes it; or
//   at least `min` have for as long as `last_call`.
// If more than `max` have come, the round takes those of the newest roll, then
// others in the order of a roll; those left over wait for the next round.
// A member that has ended is struck from the open round, and waited for no
// more. A worker that finds a closed roll with such a member ignores that roll
// and comes to the next round.
//
// What holds, in every order of reads, writes, deaths and news of them:
//   R1  All that find themselves in a round find the same roll of it.
//   R2  A roll has min to max entries, of different workers, in the order of
//       their roles, ranks and names, with the incarnations that have come.
//   R3  Without `last_call`, whoever the selector finds at the roll's epoch is
//       on it, unless `max` have come.
//   R4  Without `last_call`, those of a roll who live are on the next one:
//   those
//       who come do not make a group beside the one that is there.
//   R5  Once no one comes, goes or calls again, the living who have come are
//       all on one roll of the living, or wait for some that are named: for as
//       many as `min` lacks, or for those that are there and have not come.
// The exploration in roll_call_simulation_test.cc checks them.
//
// Pure: the driver reads the value, asks On...(), and writes what that says if
// the version is still the one that it has read; else it reads again.

#ifndef WEFT_RENDEZVOUS_CORE_ROLL_CALL_CORE_H_
#define WEFT_RENDEZVOUS_CORE_ROLL_CALL_CORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// The most entries of a roll: the value holds each, twice at most times.
inline constexpr int kMostOnARoll = 4096;

// The terms of a round; the same at all who come to it.
struct RollTerms {
  std::string selector;  // View::Select
  int min = 1;
  int max = kMostOnARoll;
  absl::Duration last_call = absl::InfiniteDuration();

  // kInvalidArgument: min or max below 1, min above max, max above
  // kMostOnARoll, a negative last_call, or what is no selector.
  absl::Status Validate() const;
  // "role=trainer, 2 to 4"; "..., last call after 10s".
  std::string ToString() const;
  friend bool operator==(const RollTerms& a, const RollTerms& b);
  friend bool operator!=(const RollTerms& a, const RollTerms& b) {
    return !(a == b);
  }
};

struct RollEntry {
  std::string name;
  std::string role;
  int rank = 0;
  WorkerKey key;
  uint64_t ticket = 0;  // of this coming: another one when it comes again

  friend bool operator==(const RollEntry& a, const RollEntry& b) {
    return a.name == b.name && a.role == b.role && a.rank == b.rank &&
           a.key == b.key && a.ticket == b.ticket;
  }
};

// Whether `a` comes before `b`: by role, rank and name.
bool InRollOrder(const RollEntry& a, const RollEntry& b);

struct Roll {
  uint64_t round = 0;  // grows with each roll of a name
  Epoch epoch = 0;     // the version of the view by which it was closed
  std::vector<RollEntry> entries;
};

// The value in the store.
struct RollCallState {
  uint64_t round = 1;  // the open one
  RollTerms terms;     // of those who have come to it
  std::vector<RollEntry> present;
  std::vector<Roll> closed;  // the last ones, oldest first

  std::string Encode() const;
  // An empty text is an empty state. kInvalidArgument: Encode writes no such
  // text.
  static absl::StatusOr<RollCallState> Decode(absl::string_view text);
};

// Thread-safety: one thread at a time.
class RollCallCore {
 public:
  // `self`: with a ticket that no other coming has. REQUIRES: terms that
  // Validate takes.
  RollCallCore(std::string name, RollEntry self, RollTerms terms);

  // Nothing is to be done before the value or the view changes, or `until`.
  struct Wait {
    Instant until = Instant::Infinite();
  };
  // Write it in place of what was read, and come back whether it could be
  // written or not.
  struct Write {
    std::string value;
  };
  // A Status is an error, and the end:
  //   kFailedPrecondition  those who have come have other terms
  //   kInternal            the value is none of a roll call
  using Step = std::variant<Wait, Write, Roll, absl::Status>;

  Step OnRead(absl::string_view value, const View& view, Instant now);
  // The same for a worker that no longer wants to be on it. Wait: it is not. A
  // roll that was closed meanwhile stands.
  Step OnGiveUp(absl::string_view value, const View& view);
  // The roll that OnRead returned came to nothing: the worker comes anew.
  void ComeAnew() { ++self_.ticket; }

  // How many had come to the open round when it was read last.
  int present() const { return static_cast<int>(state_.present.size()); }
  // For messages, of what was read last: who has come and for whom is waited.
  std::string Describe(const View& view) const;

 private:
  // The members of `view` that the selector finds and that have not come.
  std::vector<const Member*> Missing(const View& view,
                                     const RollCallState& state) const;
  // Whether somebody of the newest roll lives who has not come.
  bool LacksFormer(const View& view) const;
  bool IsToClose(const View& view, Instant now);
  void Close(Epoch epoch);
  const Roll* FindOwn() const;

  const std::string name_;
  RollEntry self_;
  const RollTerms terms_;
  RollCallState state_;
  // Since when this worker has seen that at least `min` have come to the round.
  uint64_t enough_in_ = 0;
  std::optional<Instant> enough_since_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_ROLL_CALL_CORE_H_
