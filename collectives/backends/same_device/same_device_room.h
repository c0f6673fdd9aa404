// SameDeviceRoom: where the ranks of one communicator, threads of one process,
// lay down what they have launched. The last to come puts the work of all on
// its stream, behind the streams of the others, and has theirs wait for it.
//
//   rank 0's stream  --begun--+                          +--> goes on
//   rank 1's stream  --begun--+--> the work of all ------+--> goes on
//
// So nothing on the device waits for what was not put there yet: a rank that
// does not come leaves the others' streams as they are, and only the host
// waits.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_ROOM_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_ROOM_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/same_device/rank_of_room.h"
#include "weft/collectives/operation.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: thread-safe. Its lock is held while work is put on streams, so
// that nothing is put there once Close has returned.
class SameDeviceRoom {
 public:
  explicit SameDeviceRoom(int size) : size_(size), parts_(size) {}

  int size() const { return size_; }

  // kFailedPrecondition: it is in there.
  absl::Status Enter(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether all ranks have entered it.
  bool is_complete() ABSL_LOCKS_EXCLUDED(mu_);

  // What `rank` does next; its blocks may be used behind what is on `stream`
  // now. The last of all ranks puts it all on the streams; where that fails,
  // the room is closed. Errors of the Runtime, or why it was closed. REQUIRES:
  // IsReady(rank).
  absl::Status Launch(int rank, const Operation& operation,
                      device::Stream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether what `rank` has launched is on its stream, or why it will not be.
  absl::StatusOr<bool> IsReady(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, after at most `longest` if it is not.
  absl::StatusOr<bool> AwaitReady(int rank, absl::Duration longest)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whom `rank`, which has launched, waits for.
  std::vector<int> MissingFor(int rank) ABSL_LOCKS_EXCLUDED(mu_);

  // Nothing that is not on a stream yet comes there. The first reason stays.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Part {
    bool has_entered = false;
    int64_t launched = 0;  // operations of this rank
    Operation operation;   // the last of them
    device::Stream stream;
    device::Event begun;
  };

  absl::StatusOr<bool> ReadyLocked(int rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The work of all, of which `last` is the last to come.
  absl::Status PutOnStreams(int last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int size_;
  Mutex mu_;
  CondVar changed_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;         // operations, on all streams
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);  // by rank
};

// One rank in it, which works on `stream`.
class RankOfThreads final : public RankOfRoom {
 public:
  RankOfThreads(std::shared_ptr<SameDeviceRoom> room, int rank,
                device::Stream stream)
      : room_(std::move(room)), rank_(rank), stream_(stream) {}

  absl::StatusOr<uint64_t> Launch(const Operation& operation) override {
    const absl::Status status = room_->Launch(rank_, operation, stream_);
    if (!status.ok()) return status;
    return uint64_t{0};
  }
  // A device that fails is that of all.
  bool HasEnded(uint64_t /*number*/) override { return true; }
  absl::StatusOr<bool> IsReady() override { return room_->IsReady(rank_); }
  absl::StatusOr<bool> AwaitReady(absl::Duration longest) override {
    return room_->AwaitReady(rank_, longest);
  }
  std::vector<int> Missing() override { return room_->MissingFor(rank_); }
  void Close(const absl::Status& why) override { room_->Close(why); }

 private:
  const std::shared_ptr<SameDeviceRoom> room_;
  const int rank_;
  const device::Stream stream_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_ROOM_H_
