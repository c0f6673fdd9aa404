// WaitBoard: for whom the operations on a server's tables wait, for those who
// ask.

#ifndef WEFT_PS_WAITS_WAIT_BOARD_H_
#define WEFT_PS_WAITS_WAIT_BOARD_H_

#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/rpc/call_context.h"

namespace weft::ps {

// What operations on a table have waited for, for longer than kLongWait.
struct TableWait {
  std::string table;
  std::string why;                   // "round 12 waits for shard 1 of rank 1"
  std::vector<std::string> workers;  // who is to come; as far as it is known
  // Who is to come where shard s is rank s's, as it is unless there are more
  // shards than ranks: only where the rank of the last shard lives.
  std::vector<std::string> expected = {};
  int shards = 0;  // of SYNC
  absl::Duration waited;
};

inline constexpr absl::Duration kLongWait = absl::Seconds(1);

// `trainerN`, the worker that gives parts as rank N.
std::string NameOfTrainer(int rank);

// Set by a server about twice a second, and read without waiting for a table.
//
// Thread-safety: thread-safe.
class WaitBoard {
 public:
  void Set(std::vector<TableWait> waits) ABSL_LOCKS_EXCLUDED(mu_);
  // Of all tables with "".
  std::vector<TableWait> Of(const std::string& table) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<TableWait> waits_ ABSL_GUARDED_BY(mu_);
};

// Table, why, workers and seconds of each TableWait of `table`, or with "" of
// all, at the server, of those workers that live as far as it knows, and of
// those that are expected. Found by
// CallContext::Local<WaitBoard>(); a worker that has none answers nothing. It
// is answered also where all threads of the server's handlers are busy, so that
// a server that does not answer is stopped, gone or cut off.
using WaitAnswer = std::vector<
    std::tuple<std::string, std::string, std::vector<std::string>, double>>;
absl::StatusOr<WaitAnswer> DescribeWaits(rpc::CallContext& context,
                                         const std::string& table);

}  // namespace weft::ps

#endif  // WEFT_PS_WAITS_WAIT_BOARD_H_
