// OpenStandardStreams: what a program does first, for who starts it with
// descriptors 0 to 2 closed.

#ifndef WEFT_LAUNCH_STANDARD_STREAMS_H_
#define WEFT_LAUNCH_STANDARD_STREAMS_H_

namespace weft::launch {

// Opens /dev/null on those of 0 to 2 that are closed. Else they would be given
// to what is opened next, and messages would go to a socket or a pipe.
void OpenStandardStreams();

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STANDARD_STREAMS_H_
