// answers: what the worker `answerer` does for those who call it at its unix
// socket.

#ifndef WEFT_TESTS_OUTSIDE_LOCAL_ANSWERS_H_
#define WEFT_TESTS_OUTSIDE_LOCAL_ANSWERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/stream.h"

namespace weft::outside {

// The bytes turned round.
std::string Turned(const std::string& bytes);

// Waits until the file `path` is there, and is `path`.cancelled once its caller
// has given it up. `path`.entered is there meanwhile.
absl::StatusOr<int64_t> Held(rpc::CallContext& context,
                             const std::string& path);

// So many values of so many bytes, and how many of them have been taken, of
// all streams.
absl::Status Flow(rpc::Writer<std::string> out, int64_t values, int64_t bytes);
int64_t Flowed();

// The bytes of all values, of which each takes so long.
absl::StatusOr<int64_t> Drink(rpc::Reader<std::string> in,
                              int64_t milliseconds);

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_LOCAL_ANSWERS_H_
