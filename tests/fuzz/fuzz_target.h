// What a fuzz target defines: libFuzzer's entry, and the seeds to mutate.

#ifndef WEFT_TESTS_FUZZ_FUZZ_TARGET_H_
#define WEFT_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::testing {

// Small well-formed inputs, from which the first mutations are made.
std::vector<std::string> FuzzSeeds();

// Bytes that mean something in this format, to be inserted.
std::vector<std::string> FuzzWords();

}  // namespace weft::testing

// Must return for every input; sanitizers and aborts report what is wrong.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // WEFT_TESTS_FUZZ_FUZZ_TARGET_H_
