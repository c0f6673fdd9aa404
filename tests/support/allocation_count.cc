#include "weft/tests/support/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;
}  // namespace

// In a file of its own: a compiler that could inline only one of the pair would
// call it mismatched.
void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace weft::testing {

int64_t AllocationCount() { return allocations; }

}  // namespace weft::testing
