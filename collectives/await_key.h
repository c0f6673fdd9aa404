// AwaitKey: waits for a key of the store, and looks meanwhile whether to go on.

#ifndef WEFT_COLLECTIVES_AWAIT_KEY_H_
#define WEFT_COLLECTIVES_AWAIT_KEY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/rendezvous/store.h"

namespace weft::collectives {

// The value of `key` once it exists; errors are those of Store::Wait until
// `deadline`. An error of `check`, which may be null, ends the wait and is its
// result: after 0.1 s at first, later after a quarter of the time that was
// waited, at most 2 s, for each look is a call of the store, which may take
// long to answer.
absl::StatusOr<std::string> AwaitKey(
    rendezvous::Store& store, const std::string& key, Instant deadline,
    const std::function<absl::Status()>& check);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_AWAIT_KEY_H_
