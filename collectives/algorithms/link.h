// Link: what one operation on one rank sends to its peers and receives from
// them. The algorithms run over it; each backend, and the tests, have their
// own.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_LINK_H_
#define WEFT_COLLECTIVES_ALGORITHMS_LINK_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace weft::collectives {

// What one rank sends to another arrives whole, once and in the order of
// sending. Each function waits until the operation's deadline at most. Its
// errors are those of Backend::Run.
//
// Thread-safety: one thread at a time.
class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns once `bytes` may be written again. May wait until `to` receives.
  virtual absl::Status Send(int to, absl::Span<const std::byte> bytes) = 0;

  // The next message of `from`, which must be of bytes.size(): else
  // kFailedPrecondition.
  virtual absl::Status Receive(int from, absl::Span<std::byte> bytes) = 0;

  // Both at once, so that ranks that do this in a ring do not wait for each
  // other for ever.
  virtual absl::Status SendReceive(int to, absl::Span<const std::byte> out,
                                   int from, absl::Span<std::byte> in) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_LINK_H_
