// SharedRun: one operation among ranks that share memory.
//
// Each operation begins with a phase in which every rank shows its record; all
// compare all of them, so each finds the same mismatch. What is small travels
// in that phase. Larger things that lie in the ranks' arenas are read and
// written where they are; others are read from the memory of their ranks, where
// all can (PeerMemory), or pass through the slots in pieces.
//
// Cost of an all-reduce of S bytes on n ranks, in bytes that each rank reads
// and writes: in the arena 2 S and two phases; by PeerMemory 4 S - 2 S / n and
// three phases; through the slots 6 S - 4 S / n, a phase a piece and one more.
// On each of these ways 2 S - 2 S / n of the bytes come from another core's
// cache.
// Source: the owner of a slice reads all inputs and writes all outputs, as in
// Jain et al., "Framework for scalable intra-node collective operations using
// shared memory", 2018.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_SHARED_RUN_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_SHARED_RUN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/backends/host/host_segment.h"
#include "weft/collectives/backends/host/peer_memory.h"
#include "weft/collectives/backends/host/phases.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Thread-safety: one thread at a time.
class SharedRun {
 public:
  using Check =
      absl::FunctionRef<absl::Status(const std::vector<int>& missing)>;

  // What is read from the memory of other ranks: as HostOptions says.
  struct Reading {
    const PeerMemory& peers;
    int64_t least_bytes;
  };

  // All must outlive it. `check`: see Phases::Await.
  SharedRun(const HostSegment& segment, const Reading& reading, Phases& phases,
            const Operation& operation, Check check)
      : segment_(segment),
        reading_(reading),
        phases_(phases),
        operation_(operation),
        check_(check),
        item_(ItemSize(operation.dtype)) {}

  // As Backend::Run. kAborted if another rank refused; of any other error the
  // caller tells the others.
  absl::Status Run();

  // Shows the others, in place of Run, that this rank refuses.
  absl::Status Refuse(const absl::Status& why);

 private:
  using Pieces = std::vector<const std::byte*>;
  // Gets the place of each rank's piece, elements [begin, begin + count).
  using Consume = absl::FunctionRef<void(const Pieces& pieces, int64_t begin,
                                         int64_t count)>;

  // How an all-reduce through the slots cuts its elements: into pieces, of each
  // of which each rank reduces a slice. A slot holds the slices of all ranks
  // but its own.
  class SliceCut {
   public:
    SliceCut(int64_t elements, DType dtype, int ranks);
    int64_t pieces() const { return (elements_ + piece_ - 1) / piece_; }
    // The slice of `rank`.
    Range SliceOf(int64_t piece, int rank) const;
    // Where that is in the slot of `owner`, in bytes. REQUIRES: another rank.
    int64_t PlaceOf(int owner, int rank) const {
      return (rank < owner ? rank : rank - 1) * room_;
    }

   private:
    const int64_t elements_;
    const DType dtype_;
    const int ranks_;
    const int64_t room_;   // of a slice, in bytes
    const int64_t piece_;  // elements
  };

  int rank() const { return segment_.rank(); }
  int size() const { return segment_.size(); }
  Slot& SlotNow(int rank, uint64_t phase) const {
    return segment_.SlotOf(rank, phase);
  }
  std::atomic<uint64_t>& FingerprintOf(int rank, uint64_t phase) const {
    return segment_.ControlOf(rank).fingerprints[phase % 2];
  }

  // This rank's slot of the next phase, once it may be written.
  absl::StatusOr<Slot*> BeginPhase();
  // Arrives in it and waits for its end.
  absl::Status EndPhase();
  // The first phase, with `staged` bytes written by `stage`.
  absl::Status Announce(absl::FunctionRef<void(std::byte* staged)> stage);
  bool AreFingerprintsEqual(uint64_t phase) const;
  absl::Status CompareRecords(uint64_t phase);
  OperationRecord::Places OwnPlaces() const;
  // The arena memory of every rank's input or output; empty if some is not in
  // an arena.
  std::vector<std::byte*> InArenas(uint64_t OperationRecord::Places::*which,
                                   int64_t bytes, uint64_t phase) const;

  // Where that is in each rank's process; empty if some rank's is not to be
  // read.
  std::vector<uint64_t> InPeers(uint64_t OperationRecord::Places::*which,
                                uint64_t phase) const;
  absl::Status ReadFrom(int rank, uint64_t address, int64_t bytes,
                        std::byte* to);
  // Reduces `count` elements at those addresses, of which this rank's own are
  // at `own`, into `output`.
  absl::Status ReduceFromPeers(const std::vector<uint64_t>& inputs,
                               const std::byte* own, int64_t count,
                               std::byte* output);
  absl::Status AllReduceFromPeers(const std::vector<uint64_t>& inputs,
                                  const std::vector<uint64_t>& outputs);
  // A phase in which nothing is shown: what all did before it is done.
  absl::Status Meet();

  absl::Status AllReduce();
  absl::Status AllReduceInArenas(const std::vector<std::byte*>& inputs,
                                 const std::vector<std::byte*>& outputs);
  void StagePiece(const SliceCut& cut, int64_t piece, std::byte* staged) const;
  // Both work on what is staged in the slots of `phase`.
  void ReduceSlice(const SliceCut& cut, int64_t piece, uint64_t phase);
  void TakeSlices(const SliceCut& cut, int64_t piece, uint64_t phase) const;
  // `is_staged`: all have staged the first piece in the last phase.
  absl::Status AllReduceThroughSlots(const SliceCut& cut, bool is_staged);
  void ReducePieces(const Pieces& pieces, int64_t count, std::byte* output);
  absl::Status Broadcast();
  absl::Status Reduce();
  absl::Status AllGather();
  absl::Status ReduceScatter();
  absl::Status Exchange();

  // Each rank shows `own`, of at most `most` elements, to all others, piece by
  // piece. Small ones in the first phase, which this is with `is_first`.
  absl::Status Spread(const Block& own, int64_t most, Consume consume);
  // Each rank shows blocks[r] to rank r, piece by piece.
  absl::Status SpreadTo(const Blocks& blocks, int64_t most, Consume consume);
  absl::Status CheckCounts(uint64_t phase, int64_t* most) const;

  const HostSegment& segment_;
  const Reading reading_;
  Phases& phases_;
  const Operation& operation_;
  Check check_;
  const int64_t item_;
  // The factor of each rank's reduction, from the records of the first phase,
  // which later phases overwrite.
  absl::InlinedVector<double, 8> factors_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_SHARED_RUN_H_
