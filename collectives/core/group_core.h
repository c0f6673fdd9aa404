// GroupCore: what one rank of a group knows of the others and says to them: who
// has come, what each has called, refused or sent, who leaves, is silent or has
// ended, and how much may be under way.
//
// Pure: no lock, clock, thread or stream. Frames come in by Receive, what is to
// be done comes out by TakeActions; the caller tells the time. So all orders of
// events of a small group can be explored (group_core_exploration_test).
//
// What holds, for any orders of delivery, ends of ranks, and calls:
//   A message is taken only by a rank that has called the same operation.
//   A barrier is OK on a rank only if all ranks have called the same up to it.
//   Ranks that call the same, refuse nothing and do not end get no error.
//   A rank that waits while another calls something else, refuses, leaves or
//   ends hears of it, once the frames that are under way have come and it has
//   asked: no rank waits for ever.
//   Of two ranks that call different operations both get an error, or a report
//   where they have left with OK. In a larger group at least one does: where
//   rank 3 fails because rank 5 has left, ranks that differ from rank 5 may
//   have left before, and hear of neither.
//
// Numbers of operations are those on the wire, from 1; each rank begins its
// own in rising order, one at a time. A frame that Receive refuses, of a rank
// or of somebody who has its stream, ends that stream and no more.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_COLLECTIVES_CORE_GROUP_CORE_H_
#define WEFT_COLLECTIVES_CORE_GROUP_CORE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/collectives/core/called_operations.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/core/inbox.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

struct GroupCoreOptions {
  std::string group;  // its name, unique among those of the transport
  int rank = 0;
  int size = 1;
  // names[r]: what rank r is called in messages, and what it must prove to be
  // where connections prove anything. Empty: "rank r".
  std::vector<std::string> names;
  int64_t max_unasked_bytes = kMostUnaskedBytes;
  // A peer that does not answer for so long is taken for dead.
  absl::Duration dead_after = absl::Seconds(10);
};

class GroupCore {
 public:
  explicit GroupCore(GroupCoreOptions options);

  const GroupCoreOptions& options() const { return options_; }
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // One thing to do. Actions of one peer are done in their order.
  struct Action {
    enum Kind {
      kPost,     // write `frame` to the peer's stream
      kRelease,  // nothing more is to be said or heard: drop its stream, and
                 // what waits to be written to it
    };
    Kind kind = kPost;
    int peer = 0;
    Frame frame;
    // The frame answers a question: a peer that asks and does not read is to be
    // given up (Close).
    bool is_answer = false;
  };
  // What has come of the events since the last call.
  struct Actions {
    std::vector<Action> todo;
    bool wakes = false;  // who waits for anything looks again
    // The group is broken now, for this reason; not after Leave.
    std::optional<absl::Status> broken;
    // A difference between the ranks that no caller here will hear of.
    std::string report;
  };
  // Replaces what `into` holds, whose memory is used again.
  void TakeActions(Actions& into);

  // --- The life of a group. ---

  // This rank has opened a stream to `peer`, a higher rank, and says who it is.
  // False: it is closed already.
  bool Open(int peer);
  // A peer has opened a stream, and its first frame, which Receive gets next,
  // says that it is this rank. `proven`: the name that the stream proves, if
  // any. kInvalidArgument: that rank opens no streams to this one;
  // kPermissionDenied: it is another; kAlreadyExists: it has one already. The
  // stream is then the caller's to end.
  absl::Status Accept(int peer, const std::string& proven, Instant now);
  // `peer` has a stream, and who it is is known: neither says hello.
  void Join(int peer, Instant now);
  // A frame of `peer`, or why it is none.
  void Receive(int peer, absl::StatusOr<Frame> frame, Instant now);
  // Nothing more comes from `peer`, for this reason.
  void Close(int peer, const absl::Status& why);
  // Nothing more comes from anybody.
  void CloseAll(const absl::Status& why);

  // Whether all have said who they are; also once the group is broken.
  // kUnavailable names one that has gone, a higher one, which may come yet,
  // only if this `is_late`; kDeadlineExceeded, if it is, those that are
  // missing.
  absl::StatusOr<bool> HaveAllCome(bool is_late) const;
  // The higher ranks whose streams were refused: they may be opened again.
  std::vector<int> TakeRefused();

  // Says so to the others. A difference that is found from here on, or was and
  // nobody has heard of it, is reported.
  void Leave();
  // Breaks the group for all, unless it is broken.
  void Abort(const absl::Status& why);
  // Why the group is broken; OK: it is not. Health is for a caller to hear.
  const absl::Status& broken() const { return broken_; }
  absl::Status Health();
  // As in Backend; the last kMostShrinks that were ended are known. In a group
  // that broke before all had come some pairs of ranks have no stream yet: who
  // hears of the end passes it on once, and each stream that comes later is
  // told.
  void EndShrink(uint64_t key, const absl::Status& why);
  absl::Status CheckShrink(uint64_t key) const;
  bool HasLeft(int peer) const { return peers_[peer].has_left; }
  // After Leave: whether `peer` has all that this rank has sent.
  bool KnowsOfLeave(int peer) const { return peers_[peer].knows_of_leave; }
  // Whether all peers have, except those that have ended; true before Leave.
  bool IsDelivered() const;
  // Whether nothing more will come or go: this rank has left, and so have all
  // others.
  bool IsOver() const;

  // --- What is called. ---

  // This rank calls it. kFailedPrecondition if another rank has called another
  // under its number, which breaks the group; else Health().
  absl::Status Begin(Announcement mine);
  // This rank refuses its part.
  void Refuse(Announcement mine);
  // Asks all others what they do, if this rank has called that one last.
  void Ask(uint64_t sequence);
  // Asks `peer`, or all others for -1, what it does, whatever this rank has
  // called.
  void AskPeer(int peer);
  // As Backend::DescribePeer.
  std::string DescribePeer(int peer, absl::string_view lacks,
                           Instant since) const;
  // Asks those to which messages were sent since they were asked whether they
  // have called what this rank has.
  void AskCompared();
  // A rank that has not answered yet; -1: all have.
  int AwaitedAnswer() const;
  // Why an operation that needs `peer` cannot end; OK: it may.
  absl::Status CheckPeer(uint64_t sequence, int peer);
  // Whether `peer` was silent for dead_after, and at least from `since` on; it
  // has ended then. To be asked every second or so: a rank that has not asked
  // for much longer stood still, and waits for as long again.
  bool IsSilent(int peer, Instant since, Instant now);
  // "rank 2 has not called it and last called X"; empty: all have.
  std::string DescribeRanksBefore(uint64_t sequence) const {
    return called_.DescribeRanksBefore(sequence, rank(), options_.names);
  }
  // The same; where all have, what is known of `peer`. And whether `peer`,
  // which this rank waits for and has asked, has said anything after `since`.
  std::string DescribeWait(uint64_t sequence, int peer, Instant since) const;

  // --- Messages of operations. ---

  // Takes room for a frame of a message with so many bytes of content.
  bool TakePartRoom(int to, int64_t bytes, bool is_first);
  // Sends it, as the `index`-th message to that rank in its operation;
  // `is_compared`: the operation compares all that was called before it ends.
  // `part`: sequence, total, offset, content.
  void SendPart(int to, uint64_t index, Frame part, bool is_compared);
  // The next message of `from` in that operation, of so many bytes; null:
  // nothing of it has come that was not taken. kFailedPrecondition: it is of
  // another operation, or of another size.
  absl::StatusOr<Message*> NextPart(uint64_t sequence, int from, int64_t bytes);
  // `bytes` of it were taken; true if that was all.
  bool TookOfPart(int from, uint64_t bytes);

  // --- Messages of Sends. ---

  // Takes room for one of so many bytes.
  bool TakeTransferRoom(int to, int64_t bytes);
  // A frame of the one for which room was taken last.
  void SendTransfer(int to, Frame frame);
  // The first message of `from` with that tag, if it is whole.
  // kResourceExhausted, if `is_only_source`: others have used up the room.
  absl::StatusOr<std::optional<Message>> TakeTransfer(int from, uint64_t tag,
                                                      bool is_only_source);
  // Why nothing more comes from `peer`, or, if that is below 0, from anybody.
  absl::Status CheckTransferPeer(int peer) const;

  // All of the state as text, but for times: equal texts, equal states. For
  // explorations.
  std::string Snapshot() const;

 private:
  struct Peer {
    explicit Peer(int64_t most_kept) : inbox(most_kept) {}

    bool is_open = false;     // frames can be written to it
    bool has_stream = false;  // it has opened one
    bool has_said_hello = false;
    bool has_left = false;
    bool knows_of_leave = false;
    absl::Status gone;  // why it says no more
    Instant heard;
    Inbox inbox;
    bool has_uncompared = false;       // parts were sent since it was asked
    uint64_t asked = 0, answered = 0;  // of AskCompared
    int64_t parts_under_way = 0;       // bytes sent, and no ack has come
    uint64_t transfers_sent = 0;
    int64_t transfers_under_way = 0;
  };

  void Post(int peer, Frame frame, bool is_answer = false);
  void PostToAll(const Frame& frame, int but = -1);
  // Sends the first frames of a stream to `peer`: who this rank is, which
  // Shrinks have ended, and whether it has broken or left the group.
  void SendHello(int peer);
  Frame Hello() const;
  static Frame AbortFrame(const absl::Status& why);
  // `is_passed_on`: the sender has heard of it from another.
  static Frame EndOfShrinkFrame(uint64_t key, const absl::Status& why,
                                bool is_passed_on);
  static Frame FrameOf(Frame::Kind kind, const Announcement& mine,
                       uint64_t tag = 0);
  std::string NameOf(int peer) const;
  void Break(const absl::Status& why, bool tell);
  // False: it is known.
  bool KeepEndOfShrink(uint64_t key, const absl::Status& why);
  void ReportIfUnheard();
  // An error if `peer` must say no more.
  absl::Status Take(int peer, Frame frame);
  absl::Status TakeHello(int peer, const Frame& hello);
  absl::Status TakeAnnouncement(int peer, Frame frame);
  absl::Status TakeLeave(int peer);
  static absl::Status TakeAck(uint64_t bytes, int64_t& under_way);
  // Compares it; an error if `peer` must say no more.
  absl::Status Record(int peer, Announcement announcement);
  void AckParts(int peer);
  void OnGone(int peer, const absl::Status& why);
  void ReleaseIfOver(int peer);
  // What this rank has called, if that is the last.
  const Announcement* FindOwn(uint64_t sequence) const;

  GroupCoreOptions options_;
  std::vector<Peer> peers_;
  CalledOperations called_;
  Instant looked_;       // when IsSilent was called last
  Instant awake_since_;  // when it was called for the first time after a pause
  int untold_ = 0;       // operations since all were told
  uint64_t asked_ = 0;
  bool has_left_ = false;
  absl::Status broken_;
  static constexpr size_t kMostShrinks = 16;
  std::deque<std::pair<uint64_t, absl::Status>> ended_shrinks_;
  bool is_heard_ = false;  // a caller has heard of broken_
  Actions actions_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CORE_GROUP_CORE_H_
