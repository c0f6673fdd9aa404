// SharedRoom: a room whose ranks are in several processes: memory that they
// share, in which each lays down what it has launched. Rank 0 opens the device
// memory of the others, puts the work of all on its stream behind their events,
// and records an event of its own, for which the others' streams wait.
//
//   rank 0's stream          --begun of all--> the work of all --ended--> ...
//   rank r's stream  --begun-----------------------------------+ waits --> ...
//
//   rank r                               rank 0
//   records its event begun
//   writes its blocks, launched := k
//                                        once all have launched k, and the room
//                                        is not closed: as above
//                                        recorded := k, done := k
//   its stream waits for ended
//   once its stream is over: ended := k
//                                        once all have: ended := k
//   and then it has ended
//
// The last two are told on the host: where a process or a device fails, the
// streams of the others go on, with what the work has not computed.
//
// An event is recorded again for k + 1 only when all have waited for k: a rank
// launches k + 1 once its stream waits for k. As in a SameDeviceRoom nothing on
// the device waits for what was not put there yet; a rank that dies takes its
// work along, and with it what others wait for.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_ROOM_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_ROOM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/same_device/rank_of_room.h"
#include "weft/collectives/operation.h"
#include "weft/device/peer_process.h"
#include "weft/device/runtime.h"
#include "weft/device/sharing.h"
#include "weft/memory/segment.h"

namespace weft::collectives {

// By which another process finds a room.
struct RoomHandle {
  int32_t pid = 0;
  int32_t fd = -1;  // there
  uint64_t nonce[2] = {};
};

// Thread-safety: as RankOfRoom.
class SharedRoom final : public RankOfRoom {
 public:
  // The memory of a room of `size` ranks, for rank 0: the others open it while
  // it lives. kResourceExhausted.
  static absl::StatusOr<memory::Segment> MakeMemory(int size);
  // REQUIRES: MakeMemory gave it.
  static RoomHandle HandleOf(const memory::Segment& memory);
  // That of another rank, of this process or another. kUnavailable: it has
  // ended, or has no such room.
  static absl::StatusOr<memory::Segment> OpenMemory(const RoomHandle& handle,
                                                    int size);

  // `rank` of it, which works on `stream`. kFailedPrecondition: it is in there.
  // Errors of the Runtime; kUnimplemented: its memory is of one process.
  static absl::StatusOr<std::unique_ptr<SharedRoom>> Enter(
      memory::Segment memory, int rank, int size, device::Stream stream);
  ~SharedRoom() override;
  SharedRoom(const SharedRoom&) = delete;
  SharedRoom& operator=(const SharedRoom&) = delete;

  // The ranks that have not entered.
  std::vector<int> Absent() const;

  absl::StatusOr<uint64_t> Launch(const Operation& operation) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> IsReady() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> AwaitReady(absl::Duration longest) override
      ABSL_LOCKS_EXCLUDED(mu_);
  bool HasEnded(uint64_t number) override;
  std::vector<int> Missing() override ABSL_LOCKS_EXCLUDED(mu_);
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Head;
  struct Slot;
  struct SlotBlock;

  SharedRoom(memory::Segment memory, int rank, int size, device::Stream stream,
             device::Sharing& sharing,
             std::shared_ptr<device::PeerProcess> first);

  static int64_t SlotBytes(int size);
  static int64_t BytesFor(int size);
  Head& head() const;
  Slot& SlotOf(int rank) const;
  SlotBlock* BlocksOf(int rank) const;

  // The first reason stays; waits for nobody.
  void CloseHead(const absl::Status& why) const;
  // OK, or why it is closed.
  absl::Status ClosedStatus() const;
  // Until rank 0 puts nothing on its stream, or has ended; at most 10 s.
  void AwaitFirst() const;

  // Writes what this rank brings. Errors of the Runtime.
  absl::Status LayDown(const Operation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What `rank` has laid down, with addresses of this process.
  absl::StatusOr<Operation> PickUp(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Blocks> PickUpBlocks(int rank, int from, int count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Rank 0: once all have launched what it has.
  void PutIfAllAreThere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Put() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The event of that rank, opened once.
  absl::StatusOr<const device::Event*> EventOf(int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the stream wait for what rank 0 has put on its own.
  absl::Status Follow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const memory::Segment memory_;
  const int rank_;
  const int size_;
  const device::Stream stream_;
  device::Sharing& sharing_;
  const std::shared_ptr<device::PeerProcess> first_;  // rank 0's
  mutable Mutex mu_;
  // This rank's: begun; of rank 0: ended.
  device::Event own_event_ ABSL_GUARDED_BY(mu_);
  uint64_t launched_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t followed_ ABSL_GUARDED_BY(mu_) = 0;
  Operation operation_ ABSL_GUARDED_BY(mu_);  // the last that was launched
  std::map<int, device::Event> events_ ABSL_GUARDED_BY(mu_);  // by rank
  std::map<device::IpcHandle, void*> opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_ROOM_H_
