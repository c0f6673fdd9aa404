// CachingAllocator: memory of one device, kept when it is given back, for the
// next who asks on the same stream. One code for all runtimes.
//
//   CachingAllocator allocator(runtime, Device::Cuda(0), {});
//   WEFT_ASSIGN_OR_RETURN(void* a, allocator.Allocate(bytes, stream));
//   ... work on `stream` that uses a ...
//   allocator.Free(a);   // at once, though the work has not run
//
// A block belongs to the stream that it was allocated for. Who gets it next, on
// the same stream, puts its work behind the work that used it before: nothing
// has to be waited for. If another stream uses it too, say so (RecordStream),
// or it may be written while that stream reads.
//
// Requests are rounded up to 512 bytes. Those up to 1 MiB are cut from segments
// of 2 MiB, those below 10 MiB from segments of 20 MiB, and larger ones have a
// segment of whole 2 MiB each, or of what is left of the budget. A free block
// is joined with its free neighbours. Source: PyTorch's
// c10/cuda/CUDACachingAllocator, which these figures are from; free blocks are
// found as in device/free_blocks.h, in O(1).
//
// Short of memory, by the budget or by the device, it waits for what other
// streams still use, gives back each segment that is all free, and tries once
// more. If that fails too: kResourceExhausted, with who holds what.

#ifndef WEFT_DEVICE_CACHING_ALLOCATOR_H_
#define WEFT_DEVICE_CACHING_ALLOCATOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/device/free_blocks.h"
#include "weft/device/runtime.h"

namespace weft::device {

// Until its end, what this thread allocates is said to be held by `owner`
// ("gradients"). The innermost counts. `owner` must outlive the scope.
// Thread-safety: lives on the thread that made it, ends in the reverse order.
class OwnerScope {
 public:
  explicit OwnerScope(absl::string_view owner);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

  // The owner of the innermost scope of this thread; "(no owner)" without a
  // scope.
  static absl::string_view Current();

 private:
  const absl::string_view owner_;
  const OwnerScope* const outer_;
};

// Thread-safety: thread-safe.
class CachingAllocator {
 public:
  struct Options {
    // The most that is taken from the device, handed out or cached.
    int64_t budget_bytes = std::numeric_limits<int64_t>::max();
    // How long a wait for the device may take when memory is short, and in the
    // destructor.
    absl::Duration release_timeout = absl::Seconds(30);
    // Fills what is given back with 0xFF (NaN), on its stream: who uses it too
    // late computes NaN. For tests: it costs a MemsetAsync for each Free.
    bool poison = false;
  };

  struct Statistics {
    int64_t allocated_bytes = 0;  // asked for, and not given back
    int64_t active_bytes = 0;     // handed out or awaited, as rounded up
    int64_t reserved_bytes = 0;   // taken from the device
    int64_t peak_allocated_bytes = 0;
    int64_t peak_active_bytes = 0;
    int64_t peak_reserved_bytes = 0;
    int64_t allocations = 0;  // since the start, as all below
    int64_t frees = 0;
    int64_t cache_hits = 0;      // allocations served without the device
    int64_t segments_taken = 0;  // from the device
    int64_t segments_returned = 0;
    int64_t releases = 0;  // times that memory was short and the cache went
    int64_t failures = 0;  // that ended in kResourceExhausted
    int64_t awaited_blocks = 0;  // now: given back, in use by another stream

    int64_t cached_bytes() const { return reserved_bytes - active_bytes; }
  };

  struct Holder {
    std::string owner;
    int64_t bytes = 0;  // as rounded up
    int64_t blocks = 0;
  };

  // `runtime` must outlive it. REQUIRES: `device` is of the runtime's kind.
  CachingAllocator(Runtime& runtime, Device device, Options options);
  // Waits for the device as ReleaseCached does; what it cannot wait for stays
  // taken. REQUIRES: all that was handed out was given back.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // At least `bytes`, aligned to 512, for work on `stream`; not initialised.
  // For 0 bytes, a pointer to give back as any other. kInvalidArgument if
  // `stream` is not of the device; kResourceExhausted; the Runtime's errors.
  // REQUIRES: bytes >= 0.
  absl::StatusOr<void*> Allocate(int64_t bytes, Stream stream)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Gives back what Allocate returned; null is let pass. Work that uses it may
  // still be on its stream, and on those of RecordStream; none may follow.
  // REQUIRES: it was not given back before.
  void Free(void* memory) ABSL_LOCKS_EXCLUDED(mu_);

  // `stream` uses it too: after Free it waits for what is then on `stream`.
  // REQUIRES: Allocate returned it, and it was not given back.
  void RecordStream(void* memory, Stream stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the segments that are all free back to the device, after their
  // streams. kDeadlineExceeded if those take longer than `release_timeout`; the
  // Runtime's errors.
  absl::Status ReleaseCached() ABSL_LOCKS_EXCLUDED(mu_);

  Statistics statistics() const ABSL_LOCKS_EXCLUDED(mu_);
  // The holders of memory, most bytes first.
  std::vector<Holder> holders() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  enum Pool { kSmall = 0, kLarge = 1 };

  // A piece of a segment. Its neighbours are next to it in memory.
  struct Block : FreeBlock {
    char* address = nullptr;
    Block* before = nullptr;
    Block* after = nullptr;
    int64_t requested_bytes = 0;
    Stream stream;
    Pool pool = kSmall;
    bool is_free = false;
    int owner = 0;
    int awaited = 0;                    // events that are not over
    std::vector<Stream> other_streams;  // of RecordStream

    bool is_segment() const { return before == nullptr && after == nullptr; }
  };
  struct Awaited {
    Event event;
    int stream = 0;  // its id
    Block* block = nullptr;
  };
  struct Pools {
    Stream stream;
    FreeBlocks pools[2];
  };

  static Pool PoolOf(int64_t bytes);
  static int64_t SegmentBytes(int64_t bytes);

  Pools& PoolsOf(Stream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int OwnerId(absl::string_view owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Block* NewBlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropBlock(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A cached block of at least `bytes`, cut to them; null if there is none.
  Block* TakeCached(int64_t bytes, Stream stream, bool in_full)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cuts off and frees what `block` has beyond `bytes`, if it is worth it.
  void Split(Block& block, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a block that nobody uses free, joined with its free neighbours.
  void MakeFree(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PutBack(Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void* HandOut(Block& block, int64_t requested_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The block of `memory`, which is no longer handed out; not free yet.
  Block& TakeBack(void* memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Free whole segments, which are not free any more.
  std::vector<Block*> TakeFreeSegments() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // What the cache holds for it, or null.
  void* AllocateCached(int64_t bytes, int64_t rounded, Stream stream,
                       bool in_full) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> AllocateSlowly(int64_t bytes, int64_t rounded,
                                       Stream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // A new segment of the device, as one block that is not free.
  absl::StatusOr<Block*> TakeSegment(int64_t segment_bytes, Pool pool,
                                     Stream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees a block that was taken back, once its other streams are done.
  void Await(Block& block) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the awaited blocks whose events are over; with `wait`, all of them,
  // at `deadline` at the latest.
  absl::Status CollectAwaited(bool wait, Deadline deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void PoisonAndPutBack(const std::vector<Block*>& blocks)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OutOfMemory(int64_t bytes, const absl::Status& cause,
                           const absl::Status& released)
      ABSL_LOCKS_EXCLUDED(mu_);

  Runtime& runtime_;
  const Device device_;
  const Options options_;

  mutable Mutex mu_;
  CondVar collected_;
  bool is_collecting_ ABSL_GUARDED_BY(mu_) = false;  // a thread has awaited_
  std::vector<std::unique_ptr<Pools>> pools_ ABSL_GUARDED_BY(mu_);  // by stream
  absl::flat_hash_map<const void*, Block*> handed_out_ ABSL_GUARDED_BY(mu_);
  std::deque<Awaited> awaited_ ABSL_GUARDED_BY(mu_);
  std::deque<Block> blocks_ ABSL_GUARDED_BY(mu_);          // all that were made
  std::vector<Block*> spare_blocks_ ABSL_GUARDED_BY(mu_);  // of them, unused
  absl::flat_hash_map<std::string, int> owner_ids_ ABSL_GUARDED_BY(mu_);
  std::vector<Holder> owners_ ABSL_GUARDED_BY(mu_);  // by id
  Statistics statistics_ ABSL_GUARDED_BY(mu_);
};

// For messages: "gradients 1048576 bytes in 2 blocks, (no owner) ...".
std::string Describe(const std::vector<CachingAllocator::Holder>& holders);

}  // namespace weft::device

#endif  // WEFT_DEVICE_CACHING_ALLOCATOR_H_
