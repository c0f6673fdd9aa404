// RankOfRoom: where one rank of a communicator lays down what it has launched:
// among threads of this process (same_device_room.h), or among processes
// (shared_room.h).

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_RANK_OF_ROOM_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_RANK_OF_ROOM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Thread-safety: thread-safe; Launch, one thread at a time.
class RankOfRoom {
 public:
  virtual ~RankOfRoom() = default;

  // What this rank does next; its blocks may be used behind what is on its
  // stream now. Its number, for HasEnded. Errors of the Runtime, or why the
  // room was closed. REQUIRES: IsReady.
  virtual absl::StatusOr<uint64_t> Launch(const Operation& operation) = 0;
  // Whether what was launched is on the stream, or why it will not be.
  virtual absl::StatusOr<bool> IsReady() = 0;
  // The same, after at most `longest` if it is not.
  virtual absl::StatusOr<bool> AwaitReady(absl::Duration longest) = 0;
  // Whether all ranks have done it: asked once this rank's stream has.
  virtual bool HasEnded(uint64_t number) = 0;
  // Whom this rank, which has launched, waits for.
  virtual std::vector<int> Missing() = 0;
  // Nothing that is not on a stream yet comes there once this has returned; the
  // stream of this rank waits for what uses its blocks. The first reason stays.
  virtual void Close(const absl::Status& why) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_RANK_OF_ROOM_H_
