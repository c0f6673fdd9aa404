// Which optional backends a binary has. Each defines its function; in a binary
// without it the function's address is null.

#ifndef WEFT_COLLECTIVES_LINKED_BACKENDS_H_
#define WEFT_COLLECTIVES_LINKED_BACKENDS_H_

extern "C" {
__attribute__((weak)) void WeftCollectivesHasGloo();
__attribute__((weak)) void WeftCollectivesHasMpi();
__attribute__((weak)) void WeftCollectivesHasNccl();
__attribute__((weak)) void WeftCollectivesHasSameDevice();
}

#endif  // WEFT_COLLECTIVES_LINKED_BACKENDS_H_
