// mutating_driver: runs a fuzz target on mutations of its seeds.
//
//   x_fuzz [--inputs=N] [--seed=S]    N inputs; the same S gives the same ones
//   x_fuzz FILE...                    these inputs
//
// It knows nothing of coverage; libFuzzer does, and needs clang. Before each
// input it is kept, so that a crash leaves it as fuzz-crash in the directory
// for outputs ($TEST_UNDECLARED_OUTPUTS_DIR, else here).

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr size_t kMaxBytes = 4096;

class Mutator {
 public:
  explicit Mutator(uint64_t seed)
      : random_(seed), seeds_(FuzzSeeds()), words_(FuzzWords()) {}

  // A seed, with one to eight changes: most inputs get past the first check.
  std::string Next() {
    std::string input = seeds_[Below(seeds_.size())];
    for (size_t changes = 1 + Below(8); changes > 0; --changes) Change(&input);
    if (input.size() > kMaxBytes) input.resize(kMaxBytes);
    return input;
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  void Change(std::string* input) {
    const size_t at = Below(input->size() + 1);
    const size_t size = Below(input->size() - at + 1);
    switch (Below(8)) {
      case 0:
        return static_cast<void>(input->insert(at, 1, Byte()));
      case 1:
        return static_cast<void>(input->erase(at, 1 + Below(8)));
      case 2:
        return input->resize(at);  // cut
      case 3:
        if (!words_.empty()) input->insert(at, words_[Below(words_.size())]);
        return;
      case 4:  // repeat a part
        return static_cast<void>(
            input->insert(at, input->substr(at, std::min<size_t>(size, 64))));
      case 5: {  // cross with another seed
        const std::string& other = seeds_[Below(seeds_.size())];
        return static_cast<void>(
            input->replace(at, size, other, Below(other.size() + 1), size));
      }
      case 6:
        if (at < input->size()) (*input)[at] = Byte();
        return;
      default:
        if (at < input->size())
          (*input)[at] ^= static_cast<char>(1 << Below(8));
        return;
    }
  }

  // Often one at a border.
  char Byte() {
    static constexpr char kBorders[] = {0, 1, '\x7f', '\x80', '\xff'};
    if (Below(2) == 0) return kBorders[Below(sizeof(kBorders))];
    return static_cast<char>(Below(256));
  }

  std::mt19937_64 random_;
  const std::vector<std::string> seeds_;
  const std::vector<std::string> words_;
};

// The input that runs, for the handler of a crash: a process has one.
std::string* current_input = nullptr;

void KeepInput(int signal) {
  const char* directory = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string path =
      std::string(directory != nullptr ? directory : ".") + "/fuzz-crash";
  std::ofstream(path) << *current_input;
  std::fprintf(stderr, "the input that failed is kept in %s\n", path.c_str());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const std::string& input) {
  *current_input = input;
  // A copy of its own, so that a read past the end is one past an allocation.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int RunMutations(int64_t inputs, uint64_t seed) {
  std::printf("%lld inputs, --seed=%llu\n", static_cast<long long>(inputs),
              static_cast<unsigned long long>(seed));
  for (const std::string& input : FuzzSeeds()) Run(input);
  Mutator mutator(seed);
  for (int64_t i = 0; i < inputs; ++i) Run(mutator.Next());
  std::printf("%lld inputs passed\n", static_cast<long long>(inputs));
  return 0;
}

int Main(int argc, char** argv) {
  static std::string input;
  current_input = &input;
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) {
    std::signal(signal, KeepInput);
  }
  int64_t inputs = 200000;
  uint64_t seed = 1;
  bool ran_files = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--inputs=", 9) == 0) {
      inputs = std::atoll(argv[i] + 9);
    } else if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
    } else {
      std::ifstream in(argv[i], std::ios::binary);
      Run({std::istreambuf_iterator<char>(in), {}});
      ran_files = true;
    }
  }
  return ran_files ? 0 : RunMutations(inputs, seed);
}

}  // namespace
}  // namespace weft::testing

int main(int argc, char** argv) { return weft::testing::Main(argc, argv); }
