// Link: what one operation on one rank sends to its peers and receives from
// them. The algorithms run over it; each backend, and the tests, have their
// own.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_LINK_H_
#define WEFT_COLLECTIVES_ALGORITHMS_LINK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
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
  // Takes a message piece by piece, in order; `offset` is that of `piece` in
  // the message. A piece is of whole items, aligned for them, and valid for the
  // call only.
  using TakePiece = absl::FunctionRef<void(int64_t offset,
                                           absl::Span<const std::byte> piece)>;

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

  // As SendReceive, of a message of `bytes` bytes that is handed to `take` as
  // it comes: a reduction overlaps the transfer and needs no memory for it.
  // `item` is the size of an item, a power of 2 and at most 8. `take` does not
  // write to `out`.
  virtual absl::Status SendReduce(int to, absl::Span<const std::byte> out,
                                  int from, int64_t bytes, int64_t item,
                                  TakePiece take) {
    (void)item;
    std::vector<std::byte> in(bytes);
    absl::Status status = SendReceive(to, out, from, absl::MakeSpan(in));
    if (status.ok()) take(0, in);
    return status;
  }
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_LINK_H_
