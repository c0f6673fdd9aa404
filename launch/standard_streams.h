// OpenStandardStreams: what a program does first, for who starts it with
// descriptors 0 to 2 closed; FlushOutput: what it does last.

#ifndef WEFT_LAUNCH_STANDARD_STREAMS_H_
#define WEFT_LAUNCH_STANDARD_STREAMS_H_

#include "absl/status/status.h"

namespace weft::launch {

// Opens /dev/null on those of 0 to 2 that are closed. Else they would be given
// to what is opened next, and messages would go to a socket or a pipe.
void OpenStandardStreams();

// Flushes standard output. An error with ExitCode kResource if what was printed
// cannot be written (a full disk, a reader that has closed it).
absl::Status FlushOutput();

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STANDARD_STREAMS_H_
