// StreamBuffer: the values of one direction of a stream, between who writes
// them and who pulls them.

#ifndef WEFT_RPC_STREAM_BUFFER_H_
#define WEFT_RPC_STREAM_BUFFER_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"

namespace weft::rpc {

// Thread-safety: thread-safe. Nothing is called under its lock.
class StreamBuffer {
 public:
  // A writer waits once so much lies here.
  static constexpr size_t kWindowBytes = size_t{1} << 20;
  static constexpr size_t kWindowValues = 1024;

  // Whether that was the end, and else the next values.
  using Batch = std::tuple<bool, std::vector<Slices>>;

  // `is_pushed`: a peer writes, whose credit counts what it writes while that
  // waits for room.
  explicit StreamBuffer(Driver& driver, bool is_pushed = false)
      : driver_(driver), is_pushed_(is_pushed) {}

  // The function has come. Its caller may pull and write before.
  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_open() const ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the values; none follows if `is_last`. Ready when the buffer is open
  // and there is room for the next, at once if so. kFailedPrecondition after
  // the last.
  Future<void> Write(absl::Span<Slices> values, bool is_last = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  Future<void> Write(Slices value) { return Write(absl::MakeSpan(&value, 1)); }
  // No value follows. Ready when the reader has pulled all and knows.
  Future<void> End() ABSL_LOCKS_EXCLUDED(mu_);
  // What waits, and what comes, fails with `why`; the first one stays.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // The same: nobody reads any more.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mu_);

  // The values that are here, of more than a window the first; waits for one.
  // kFailedPrecondition while another waits.
  Future<Batch> Pull() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return bytes_ < kWindowBytes && values_.size() < kWindowValues;
  }
  bool IsOverfull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_pushed_ &&
           (bytes_ - TotalSize(values_.back()) >= 2 * kWindowBytes ||
            values_.size() > 2 * kWindowValues);
  }
  // The values that a reader gets now, if any. Adds to `told` the writers that
  // wait for room, if there is room now, and the waiters for the end.
  std::optional<Batch> Take(std::vector<Promise<void>>* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Driver& driver_;
  const bool is_pushed_;
  mutable Mutex mu_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::deque<Slices> values_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // More came at once than a writer sends that keeps to the window. Its values
  // may share memory: it is notified of room once none is left, in the reader
  // either, so that its credit counts all of it until then.
  bool is_overfull_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Promise<void>> writers_ ABSL_GUARDED_BY(mu_);  // want room
  std::vector<Promise<void>> ending_ ABSL_GUARDED_BY(mu_);   // want the end
  std::optional<Promise<Batch>> reader_ ABSL_GUARDED_BY(mu_);
};

// Both directions of a stream at its function.
struct StreamBuffers {
  explicit StreamBuffers(Driver& driver)
      : to_caller(driver), to_function(driver, /*is_pushed=*/true) {}

  StreamBuffer to_caller;
  StreamBuffer to_function;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_STREAM_BUFFER_H_
