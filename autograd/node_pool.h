// Node pool: where the engine's many small, short-lived objects get their
// memory.
//
// A free list for each size and thread, so that a node costs a few nanoseconds
// and no lock. It holds only memory: which thread frees a block changes
// nothing.
//
// Thread-safety: thread-safe.

#ifndef WEFT_AUTOGRAD_NODE_POOL_H_
#define WEFT_AUTOGRAD_NODE_POOL_H_

#include <cstddef>

namespace weft {

// Memory for an object of `bytes`, aligned as by operator new. Throws
// std::bad_alloc.
void* AllocateNode(std::size_t bytes);

// Gives back what AllocateNode(bytes) returned, on any thread.
void FreeNode(void* block, std::size_t bytes) noexcept;

}  // namespace weft

#endif  // WEFT_AUTOGRAD_NODE_POOL_H_
