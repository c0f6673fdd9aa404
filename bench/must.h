// Must: the value of a call without which a benchmark cannot go on; an error
// ends the program with its message.

#ifndef WEFT_BENCH_MUST_H_
#define WEFT_BENCH_MUST_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/check.h"

namespace weft::bench {

inline void Must(const absl::Status& status) {
  WEFT_CHECK(status.ok()) << status.ToString();
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

}  // namespace weft::bench

#endif  // WEFT_BENCH_MUST_H_
