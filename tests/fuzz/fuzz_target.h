// FuzzTarget: a parser of what others wrote, and what to try on it.
//
//   void Run(absl::string_view input) { ... }
//   WEFT_FUZZ_TARGET(address, Seeds, Words, Run);   // at the end of its file

#ifndef WEFT_TESTS_FUZZ_FUZZ_TARGET_H_
#define WEFT_TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::testing {

struct FuzzTarget {
  std::string name;
  // Small well-formed inputs, from which the first mutations are made.
  std::vector<std::string> (*seeds)();
  // Bytes that mean something in this format, to be inserted.
  std::vector<std::string> (*words)();
  // Must return for every input; sanitizers and aborts report what is wrong.
  void (*run)(absl::string_view input);
};

// All that are linked in, filled before main.
inline std::vector<FuzzTarget>& FuzzTargets() {
  static auto* const targets = new std::vector<FuzzTarget>();
  return *targets;
}

inline bool AddFuzzTarget(FuzzTarget target) {
  FuzzTargets().push_back(std::move(target));
  return true;
}

// What a parser promises does not hold: ends the process, which keeps the
// input.
inline void Hold(bool promise) {
  if (!promise) __builtin_trap();
}

inline std::vector<std::string> NoWords() { return {}; }

}  // namespace weft::testing

#define WEFT_FUZZ_TARGET(name, seeds, words, run)                \
  [[maybe_unused]] static const bool weft_fuzz_target_is_added = \
      ::weft::testing::AddFuzzTarget({#name, seeds, words, run})

#endif  // WEFT_TESTS_FUZZ_FUZZ_TARGET_H_
