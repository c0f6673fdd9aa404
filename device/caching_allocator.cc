#include "weft/device/caching_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"

namespace weft::device {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kUnit = FreeBlocks::kUnitBytes;
constexpr int64_t kSmallBytes = kMiB;  // the largest small request
constexpr int64_t kSmallSegmentBytes = 2 * kMiB;
constexpr int64_t kLargeSegmentBytes = 20 * kMiB;
constexpr int64_t kOwnSegmentBytes = 10 * kMiB;  // from here on, one for each
constexpr int64_t kSegmentUnit = 2 * kMiB;
// The rest of a large block is cut off only if it is larger than this.
constexpr int64_t kSmallestLargeRest = kMiB;
constexpr int64_t kMaxBytes = int64_t{1} << 48;

constexpr absl::string_view kNoOwner = "(no owner)";

int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

absl::Duration Until(std::chrono::steady_clock::time_point deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

// As PyTorch has its current stream: what a model's operations allocate is
// named by who called them. Messages alone depend on it.
thread_local const OwnerScope* innermost_owner = nullptr;

}  // namespace

OwnerScope::OwnerScope(absl::string_view owner)
    : owner_(owner), outer_(innermost_owner) {
  innermost_owner = this;
}

OwnerScope::~OwnerScope() {
  WEFT_CHECK(innermost_owner == this)
      << "an OwnerScope ended out of order or on another thread";
  innermost_owner = outer_;
}

absl::string_view OwnerScope::Current() {
  return innermost_owner == nullptr ? kNoOwner : innermost_owner->owner_;
}

CachingAllocator::CachingAllocator(Runtime& runtime, Device device,
                                   Options options)
    : runtime_(runtime), device_(device), options_(options) {
  WEFT_CHECK(device.kind == runtime.kind()) << Name(device);
  owners_.push_back({std::string(kNoOwner)});  // the id 0
}

CachingAllocator::~CachingAllocator() {
  // A destructor cannot report that the device failed or hangs; then the
  // segments stay taken.
  (void)ReleaseCached();
  MutexLock lock(mu_);
  WEFT_CHECK(handed_out_.empty())
      << "CachingAllocator of " << Name(device_)
      << " ended before what it handed out: " << Describe(owners_);
}

// ----- blocks

CachingAllocator::Pool CachingAllocator::PoolOf(int64_t bytes) {
  return bytes <= kSmallBytes ? kSmall : kLarge;
}

int64_t CachingAllocator::SegmentBytes(int64_t bytes) {
  if (bytes <= kSmallBytes) return kSmallSegmentBytes;
  if (bytes < kOwnSegmentBytes) return kLargeSegmentBytes;
  return RoundUp(bytes, kSegmentUnit);
}

CachingAllocator::Pools& CachingAllocator::PoolsOf(Stream stream) {
  const size_t id = static_cast<size_t>(stream.id());
  if (id >= pools_.size()) pools_.resize(id + 1);
  if (pools_[id] == nullptr) pools_[id] = std::make_unique<Pools>();
  return *pools_[id];
}

int CachingAllocator::OwnerId(absl::string_view owner) {
  if (owner.data() == kNoOwner.data()) return 0;
  const auto it = owner_ids_.find(owner);
  if (it != owner_ids_.end()) return it->second;
  const int id = static_cast<int>(owners_.size());
  owner_ids_.emplace(owner, id);
  owners_.push_back({std::string(owner)});
  return id;
}

CachingAllocator::Block* CachingAllocator::NewBlock() {
  if (spare_blocks_.empty()) return &blocks_.emplace_back();
  Block* const block = spare_blocks_.back();
  spare_blocks_.pop_back();
  return block;
}

void CachingAllocator::DropBlock(Block* block) {
  // Its vector keeps its room for the next use.
  block->other_streams.clear();
  block->address = nullptr;
  block->is_free = false;
  spare_blocks_.push_back(block);
}

CachingAllocator::Block* CachingAllocator::TakeCached(int64_t bytes,
                                                      Stream stream,
                                                      bool in_full) {
  FreeBlocks& free = PoolsOf(stream).pools[PoolOf(bytes)];
  auto* const block = static_cast<Block*>(free.Find(bytes, in_full));
  if (block == nullptr) return nullptr;
  free.Remove(*block);
  block->is_free = false;
  Split(*block, bytes);
  return block;
}

void CachingAllocator::Split(Block& block, int64_t bytes) {
  const int64_t rest_bytes = block.bytes - bytes;
  const bool is_worth_it = block.pool == kSmall
                               ? rest_bytes >= kUnit
                               : rest_bytes > kSmallestLargeRest;
  if (!is_worth_it) return;
  Block& rest = *NewBlock();
  rest.bytes = rest_bytes;
  rest.address = block.address + bytes;
  rest.stream = block.stream;
  rest.pool = block.pool;
  rest.before = &block;
  rest.after = block.after;
  if (rest.after != nullptr) rest.after->before = &rest;
  block.after = &rest;
  block.bytes = bytes;
  rest.is_free = true;
  PoolsOf(rest.stream).pools[rest.pool].Insert(rest);
}

void CachingAllocator::MakeFree(Block& block) {
  FreeBlocks& free = PoolsOf(block.stream).pools[block.pool];
  if (Block* const after = block.after; after != nullptr && after->is_free) {
    free.Remove(*after);
    block.bytes += after->bytes;
    block.after = after->after;
    if (block.after != nullptr) block.after->before = &block;
    DropBlock(after);
  }
  Block* whole = &block;
  if (Block* const before = block.before;
      before != nullptr && before->is_free) {
    free.Remove(*before);
    before->bytes += block.bytes;
    before->after = block.after;
    if (before->after != nullptr) before->after->before = before;
    DropBlock(&block);
    whole = before;
  }
  whole->is_free = true;
  free.Insert(*whole);
}

void CachingAllocator::PutBack(Block& block) {
  statistics_.active_bytes -= block.bytes;
  MakeFree(block);
}

void* CachingAllocator::HandOut(Block& block, int64_t requested_bytes) {
  block.requested_bytes = requested_bytes;
  block.owner = OwnerId(OwnerScope::Current());
  owners_[block.owner].bytes += block.bytes;
  ++owners_[block.owner].blocks;
  Statistics& s = statistics_;
  ++s.allocations;
  s.allocated_bytes += requested_bytes;
  s.active_bytes += block.bytes;
  s.peak_allocated_bytes = std::max(s.peak_allocated_bytes, s.allocated_bytes);
  s.peak_active_bytes = std::max(s.peak_active_bytes, s.active_bytes);
  handed_out_.emplace(block.address, &block);
  return block.address;
}

CachingAllocator::Block& CachingAllocator::TakeBack(void* memory) {
  const auto it = handed_out_.find(memory);
  WEFT_CHECK(it != handed_out_.end())
      << "CachingAllocator of " << Name(device_) << ": " << memory
      << " was not handed out, or was given back before";
  Block& block = *it->second;
  handed_out_.erase(it);
  owners_[block.owner].bytes -= block.bytes;
  --owners_[block.owner].blocks;
  ++statistics_.frees;
  statistics_.allocated_bytes -= block.requested_bytes;
  return block;
}

// ----- allocate

absl::StatusOr<void*> CachingAllocator::Allocate(int64_t bytes, Stream stream) {
  WEFT_CHECK_GE(bytes, 0);
  if (!stream.is_valid() || &stream.runtime() != &runtime_ ||
      stream.device() != device_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(device_), ": Allocate(", bytes,
                     " bytes): for another device's ", Name(stream)));
  }
  if (bytes > kMaxBytes) {
    return OutOfMemory(bytes,
                       absl::ResourceExhaustedError("more than any device has"),
                       absl::OkStatus());
  }
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), kUnit);
  void* const cached = AllocateCached(bytes, rounded, stream, false);
  if (cached != nullptr) return cached;
  return AllocateSlowly(bytes, rounded, stream);
}

void* CachingAllocator::AllocateCached(int64_t bytes, int64_t rounded,
                                       Stream stream, bool in_full) {
  bool collect = false;
  {
    MutexLock lock(mu_);
    collect = !awaited_.empty();
    if (!collect) {
      Block* const block = TakeCached(rounded, stream, in_full);
      if (block == nullptr) return nullptr;
      ++statistics_.cache_hits;
      return HandOut(*block, bytes);
    }
  }
  // Only asks, and does not wait: the next call reports an error.
  (void)CollectAwaited(false, {});
  MutexLock lock(mu_);
  Block* const block = TakeCached(rounded, stream, in_full);
  if (block == nullptr) return nullptr;
  ++statistics_.cache_hits;
  return HandOut(*block, bytes);
}

absl::StatusOr<void*> CachingAllocator::AllocateSlowly(int64_t bytes,
                                                       int64_t rounded,
                                                       Stream stream) {
  const Pool pool = PoolOf(rounded);
  absl::StatusOr<Block*> block =
      TakeSegment(SegmentBytes(rounded), pool, stream);
  if (absl::IsResourceExhausted(block.status())) {
    {
      MutexLock lock(mu_);
      ++statistics_.releases;
    }
    // What was awaited may be free now and fit; if not, whole segments went
    // back to the device.
    const absl::Status released = ReleaseCached();
    void* const cached = AllocateCached(bytes, rounded, stream, true);
    if (cached != nullptr) return cached;
    block = TakeSegment(SegmentBytes(rounded), pool, stream);
    // Where no usual segment fits, one of just this size may.
    if (absl::IsResourceExhausted(block.status())) {
      block = TakeSegment(rounded, pool, stream);
    }
    if (absl::IsResourceExhausted(block.status())) {
      return OutOfMemory(bytes, block.status(), released);
    }
  }
  if (!block.ok()) return block.status();
  MutexLock lock(mu_);
  Split(**block, rounded);
  return HandOut(**block, bytes);
}

absl::StatusOr<CachingAllocator::Block*> CachingAllocator::TakeSegment(
    int64_t segment_bytes, Pool pool, Stream stream) {
  {
    // Counted before it is taken, so that two threads keep to the budget.
    MutexLock lock(mu_);
    if (segment_bytes > options_.budget_bytes - statistics_.reserved_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a segment of ", segment_bytes,
                       " bytes passes the budget of ", options_.budget_bytes));
    }
    statistics_.reserved_bytes += segment_bytes;
  }
  absl::StatusOr<void*> memory = runtime_.Allocate(device_, segment_bytes);
  MutexLock lock(mu_);
  Statistics& s = statistics_;
  if (!memory.ok()) {
    s.reserved_bytes -= segment_bytes;
    return memory.status();
  }
  ++s.segments_taken;
  s.peak_reserved_bytes = std::max(s.peak_reserved_bytes, s.reserved_bytes);
  Block* const block = NewBlock();
  block->bytes = segment_bytes;
  block->address = static_cast<char*>(*memory);
  block->before = nullptr;
  block->after = nullptr;
  block->stream = stream;
  block->pool = pool;
  return block;
}

absl::Status CachingAllocator::OutOfMemory(int64_t bytes,
                                           const absl::Status& cause,
                                           const absl::Status& released) {
  std::string message =
      absl::StrCat(Name(device_), ": Allocate(", bytes, " bytes) for ",
                   OwnerScope::Current(), ": ", cause.message(),
                   "; held: ", Describe(holders()));
  MutexLock lock(mu_);
  Statistics& s = statistics_;
  ++s.failures;
  absl::StrAppend(&message, "; ", s.reserved_bytes,
                  " bytes are taken from the device, ", s.cached_bytes(),
                  " of them cached in pieces, ", s.awaited_blocks,
                  " blocks await other streams");
  if (options_.budget_bytes != std::numeric_limits<int64_t>::max()) {
    absl::StrAppend(&message, "; the budget is ", options_.budget_bytes);
  }
  if (!released.ok()) {
    absl::StrAppend(&message,
                    "; the cache could not be released: ", released.message());
  }
  return absl::ResourceExhaustedError(message);
}

// ----- give back

void CachingAllocator::Free(void* memory) {
  if (memory == nullptr) return;
  Block* block = nullptr;
  {
    MutexLock lock(mu_);
    block = &TakeBack(memory);
    if (block->other_streams.empty() && !options_.poison) {
      return PutBack(*block);
    }
    if (!block->other_streams.empty()) ++statistics_.awaited_blocks;
  }
  if (block->other_streams.empty()) {
    PoisonAndPutBack({block});
  } else {
    Await(*block);
  }
}

void CachingAllocator::RecordStream(void* memory, Stream stream) {
  WEFT_CHECK(stream.is_valid() && &stream.runtime() == &runtime_)
      << Name(stream);
  MutexLock lock(mu_);
  const auto it = handed_out_.find(memory);
  WEFT_CHECK(it != handed_out_.end())
      << "CachingAllocator of " << Name(device_) << ": RecordStream of "
      << memory << ", which is not handed out";
  Block& block = *it->second;
  std::vector<Stream>& others = block.other_streams;
  if (stream == block.stream ||
      std::find(others.begin(), others.end(), stream) != others.end()) {
    return;
  }
  others.push_back(stream);
}

void CachingAllocator::Await(Block& block) {
  // Nobody else has the block: it is neither handed out nor free.
  std::vector<Awaited> events;
  for (const Stream stream : block.other_streams) {
    absl::StatusOr<Event> event = runtime_.CreateEvent(stream.device());
    // Only of a device that failed: nothing runs there any more.
    if (!event.ok() || !runtime_.RecordEvent(*event, stream).ok()) continue;
    events.push_back({*std::move(event), stream.id(), &block});
  }
  block.other_streams.clear();
  block.awaited = static_cast<int>(events.size());
  if (events.empty()) {
    PoisonAndPutBack({&block});
    MutexLock lock(mu_);
    --statistics_.awaited_blocks;
    return;
  }
  MutexLock lock(mu_);
  std::move(events.begin(), events.end(), std::back_inserter(awaited_));
}

absl::Status CachingAllocator::CollectAwaited(bool wait, Deadline deadline) {
  std::deque<Awaited> events;
  {
    MutexLock lock(mu_);
    while (is_collecting_) {
      if (!wait) return absl::OkStatus();
      if (!collected_.WaitUntil(mu_, deadline) && is_collecting_) {
        return absl::DeadlineExceededError(
            absl::StrCat(Name(device_), ": another thread waits for it"));
      }
    }
    is_collecting_ = true;
    events.swap(awaited_);
  }
  // Without the lock: a Query of a simulated device runs its tasks. Events of
  // one stream are over in their order, so the first that is not decides.
  absl::Status status;
  std::vector<int> busy_streams;
  std::deque<Awaited> left;
  std::vector<Awaited> over;
  for (Awaited& event : events) {
    const auto is_over = [&]() -> absl::StatusOr<bool> {
      if (std::find(busy_streams.begin(), busy_streams.end(), event.stream) !=
          busy_streams.end()) {
        return false;
      }
      if (!wait) return runtime_.Query(event.event);
      WEFT_RETURN_IF_ERROR(runtime_.Synchronize(event.event, Until(deadline)));
      return true;
    };
    const absl::StatusOr<bool> asked = is_over();
    if (!asked.ok()) status.Update(asked.status());
    // On a device that failed nothing runs any more: the block is free.
    const bool hangs = absl::IsDeadlineExceeded(asked.status());
    if (hangs || (asked.ok() && !*asked)) {
      busy_streams.push_back(event.stream);
      left.push_back(std::move(event));
    } else {
      over.push_back(std::move(event));
    }
  }
  std::vector<Block*> free;
  {
    MutexLock lock(mu_);
    for (const Awaited& event : over) {
      if (--event.block->awaited == 0) free.push_back(event.block);
    }
    // Before those that came meanwhile, so that they stay in order.
    std::move(awaited_.begin(), awaited_.end(), std::back_inserter(left));
    awaited_.swap(left);
    statistics_.awaited_blocks -= static_cast<int64_t>(free.size());
    is_collecting_ = false;
    collected_.NotifyAll();
  }
  PoisonAndPutBack(free);
  return status;
}

void CachingAllocator::PoisonAndPutBack(const std::vector<Block*>& blocks) {
  if (options_.poison) {
    for (const Block* block : blocks) {
      // It fails only if the device has: then nobody reads it either.
      (void)runtime_.MemsetAsync(block->address, 0xFF, block->bytes,
                                 block->stream);
    }
  }
  MutexLock lock(mu_);
  for (Block* block : blocks) PutBack(*block);
}

std::vector<CachingAllocator::Block*> CachingAllocator::TakeFreeSegments() {
  std::vector<Block*> segments;
  for (Block& block : blocks_) {
    if (!block.is_free || !block.is_segment()) continue;
    PoolsOf(block.stream).pools[block.pool].Remove(block);
    block.is_free = false;
    segments.push_back(&block);
  }
  return segments;
}

absl::Status CachingAllocator::ReleaseCached() {
  const Deadline deadline = SteadyDeadline(options_.release_timeout);
  absl::Status status = CollectAwaited(true, deadline);
  std::vector<Block*> segments;
  {
    MutexLock lock(mu_);
    segments = TakeFreeSegments();
  }
  // Free for their stream's next user is not yet free for all: the work that
  // used them may still run.
  std::vector<Stream> waited;
  std::vector<Stream> hanging;
  const auto is_in = [](const std::vector<Stream>& streams, Stream stream) {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  };
  for (Block* segment : segments) {
    const Stream stream = segment->stream;
    if (!is_in(waited, stream)) {
      waited.push_back(stream);
      const absl::Status idle = runtime_.Synchronize(stream, Until(deadline));
      status.Update(idle);
      if (absl::IsDeadlineExceeded(idle)) hanging.push_back(stream);
    }
    if (is_in(hanging, stream)) {
      MutexLock lock(mu_);
      MakeFree(*segment);
      continue;
    }
    status.Update(runtime_.Free(device_, segment->address));
    MutexLock lock(mu_);
    statistics_.reserved_bytes -= segment->bytes;
    ++statistics_.segments_returned;
    DropBlock(segment);
  }
  return status;
}

// ----- what it says

CachingAllocator::Statistics CachingAllocator::statistics() const {
  MutexLock lock(mu_);
  return statistics_;
}

std::vector<CachingAllocator::Holder> CachingAllocator::holders() const {
  std::vector<Holder> found;
  {
    MutexLock lock(mu_);
    std::copy_if(owners_.begin(), owners_.end(), std::back_inserter(found),
                 [](const Holder& owner) { return owner.blocks > 0; });
  }
  std::stable_sort(
      found.begin(), found.end(),
      [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return found;
}

std::string Describe(const std::vector<CachingAllocator::Holder>& holders) {
  if (holders.empty()) return "nothing";
  return absl::StrJoin(holders, ", ",
                       [](std::string* out, const CachingAllocator::Holder& h) {
                         absl::StrAppend(out, h.owner, " ", h.bytes,
                                         " bytes in ", h.blocks, " blocks");
                       });
}

}  // namespace weft::device
