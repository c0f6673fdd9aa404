// StreamBuffer: the values of one stream, between the function that writes them
// and the caller that pulls them.

#ifndef WEFT_RPC_STREAM_BUFFER_H_
#define WEFT_RPC_STREAM_BUFFER_H_

#include <cstddef>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
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

  explicit StreamBuffer(Driver& driver) : driver_(driver) {}

  // The function that writes has come. A reader may come before it.
  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_open() const ABSL_LOCKS_EXCLUDED(mu_);

  // Ready when there is room for the next one, at once if there is.
  Future<void> Write(Slices value) ABSL_LOCKS_EXCLUDED(mu_);
  // No value follows. Ready when the reader has pulled all and knows.
  Future<void> End() ABSL_LOCKS_EXCLUDED(mu_);
  // What waits, and what comes, fails with `why`; the first one stays.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // All values that are here; waits for one. kFailedPrecondition while another
  // waits.
  Future<Batch> Pull() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return bytes_ < kWindowBytes && values_.size() < kWindowValues;
  }
  // What a reader gets now, if it gets anything. Those whom this makes room for
  // and who wait for the end are to be told.
  std::optional<Batch> Take(std::vector<Promise<void>>* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Driver& driver_;
  mutable Mutex mu_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::vector<Slices> values_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Promise<void>> writers_ ABSL_GUARDED_BY(mu_);  // want room
  std::vector<Promise<void>> ending_ ABSL_GUARDED_BY(mu_);   // want the end
  std::optional<Promise<Batch>> reader_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_STREAM_BUFFER_H_
