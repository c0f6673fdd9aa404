// Meeting: the ranks of a group find out who is on this host, and map one
// segment.
//
// Messages (proto/collectives.proto), as keys of the store, under the meeting's
// name:
//   place/<rank>      Place: where the rank is
//   places/<page>     Places of kRanksOfAPage ranks: by rank 0, once all have
//                     come
//   segment/<leader>  the token under which the leader of a host, its lowest
//                     rank, has sent the segment to the others' sockets; or why
//                     there is none
//   mapped/<rank>     "ok", or why the rank could not map it
//   agreed/<leader>   Agreement: the ranks that have mapped it, and why others
//                     have not; or why there is no segment
//   agreed            Agreements of all hosts: by rank 0
//   left              how many ranks need none of these any more: the last
//                     removes all
// So the store gets a number of requests that is proportional to the number of
// ranks, on however many hosts they are.
//
// The leader alone decides, at half of the time that is left, so all ranks find
// the same. A rank that has not mapped its host's segment by then (it is in
// another container, it is stopped) counts as a host of its own.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_MEETING_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_MEETING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/host/peer_memory.h"
#include "weft/collectives/backends/host/segment_layout.h"
#include "weft/memory/segment.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rendezvous/store.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

struct MeetingOptions {
  // Must outlive the call.
  rendezvous::Store* store = nullptr;
  // No other meeting may use this name until this one has returned on all
  // ranks: the keys of that one would be taken for its own.
  std::string name;
  int rank = 0;
  int size = 1;
  // The job's directory of sockets, of mode 0700, the same on all ranks of a
  // host.
  std::string directory;
  // Ranks of different ones are on different hosts, whatever they share.
  std::string host;
  // What the beginning of a segment that this rank makes is counted against;
  // may be null.
  std::shared_ptr<transport::MemoryBudget> memory_budget;
  // How other hosts reach this rank; may be empty.
  transport::Destination stream;
  // The layout of a segment that so many ranks share.
  std::function<SegmentLayout(int ranks)> layout_for;
  Instant deadline;
  // As GroupTerms::check_wait.
  std::function<absl::Status()> check_wait = nullptr;
};

struct Meeting {
  // The ranks that share `segment`, this one among them, in rising order.
  std::vector<int> ranks;
  std::optional<memory::Segment> segment;  // never nothing
  // If this rank has made it: its place in the budget.
  transport::MemoryBudget::Reservation counted;
  // By the place in `ranks`: none for this process, or where none is possible.
  std::vector<std::optional<rendezvous::ProcessWatch>> watches;
  // By the place in `ranks`: how to read what they do not share.
  std::vector<PeerMemory::Peer> peers;
  // The ranks of each host, in rising order, hosts by their lowest; which of
  // them this is; and how each rank is reached. Equal on all ranks but for
  // own_host.
  std::vector<std::vector<int>> hosts;
  int own_host = 0;
  // Those that could not map their host's segment, and why, for people: "rank
  // 2: NOT_FOUND: ..."; "" if all could. Equal on all ranks.
  std::string not_mapped;
  std::vector<transport::Destination> streams;
};

// kDeadlineExceeded names the ranks that have not come; kResourceExhausted: no
// memory for a segment, on each rank; kInvalidArgument: a rank was given twice;
// and what check_wait says.
absl::StatusOr<Meeting> Meet(const MeetingOptions& options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_MEETING_H_
