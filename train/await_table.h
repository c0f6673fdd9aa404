// AwaitTable: waits for an operation on tables. A trainer that is asked to stop
// no longer waits for servers that are gone.

#ifndef WEFT_TRAIN_AWAIT_TABLE_H_
#define WEFT_TRAIN_AWAIT_TABLE_H_

#include <algorithm>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/ps/client.h"
#include "weft/worker/worker.h"

namespace weft::train {

// How often a trainer that waits for tables looks whether it is to stop.
inline constexpr absl::Duration kLookAround = absl::Milliseconds(50);

// As operation.Wait(timeout). Once `is_asked_to_stop`, the operations of
// `client`, whose table it is of, give up on servers that are gone: kCancelled.
template <typename T>
weft::Result<T> AwaitTable(const Future<T>& operation, absl::Duration timeout,
                           ps::Client& client,
                           absl::FunctionRef<bool()> is_asked_to_stop) {
  const Instant give_up = SteadyClock().Now() + timeout;
  while (!operation.IsReady()) {
    if (is_asked_to_stop()) client.GiveUpOnGoneServers();
    const absl::Duration left = give_up - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) break;
    (void)operation.Wait(std::min(left, kLookAround));
  }
  return operation.Wait(absl::ZeroDuration());
}

// worker::TableClientOptions of a trainer whose openings of tables give up,
// too, once it is asked to stop by a signal.
ps::ClientOptions TrainersClient(worker::Worker& worker,
                                 absl::Duration timeout);

// What the trainer `name` ends with if it is asked to stop and gives up on
// servers: `why`, as the end by a signal; else `why` itself.
absl::Status EndOfWait(const absl::Status& why, const std::string& name,
                       bool is_asked_to_stop);

}  // namespace weft::train

#endif  // WEFT_TRAIN_AWAIT_TABLE_H_
