// AllocationCount: how often `new` was called, in a test that links this.

#ifndef WEFT_TESTS_SUPPORT_ALLOCATION_COUNT_H_
#define WEFT_TESTS_SUPPORT_ALLOCATION_COUNT_H_

#include <cstdint>

namespace weft::testing {

// Allocations of the calling thread since it began. Deletions do not count.
int64_t AllocationCount();

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_ALLOCATION_COUNT_H_
