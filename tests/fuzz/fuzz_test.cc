// Each fuzz target on its seeds, on each seed cut short or with one byte
// changed, and on mutations drawn from a fixed seed. run.sh goes further: by
// coverage, and under sanitizers.

#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr size_t kLongest = 8192;
constexpr size_t kMostCutsOfASeed = 256;
constexpr int kMutations = 20000;

// What runs, for the report of a signal.
std::string* running = nullptr;

// The input as text that absl::CUnescape reads. Formatting allocates, which a
// handler should not do; the process ends here in any case.
void ReportInput(int signal) {
  const std::string text =
      absl::StrCat("the input that ended it, escaped as in C:\n",
                   absl::CEscape(*running), "\n");
  (void)!write(STDERR_FILENO, text.data(), text.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::vector<std::string> words)
      : seeds_(std::move(seeds)), words_(std::move(words)) {}

  std::string Next() {
    std::string input = OneOf(seeds_);
    for (size_t left = 1 + Below(4); left > 0; --left) Mutate(input);
    input.resize(std::min(input.size(), kLongest));
    return input;
  }

 private:
  // 0 where `end` is 0.
  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& OneOf(const std::vector<std::string>& all) {
    static const std::string* const kNone = new std::string();
    return all.empty() ? *kNone : all[Below(all.size())];
  }

  void Mutate(std::string& input) {
    const size_t at = Below(input.size() + 1);
    const size_t length = Below(input.size() - at + 1);
    switch (Below(6)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(Below(256));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(Below(input.size()), length));
        break;
      case 4:
        input.insert(at, OneOf(words_));
        break;
      default:
        input.replace(at, input.npos, OneOf(seeds_).substr(0, at + length));
    }
  }

  const std::vector<std::string> seeds_, words_;
  std::mt19937_64 random_{1};
};

class FuzzTargetTest : public ::testing::TestWithParam<FuzzTarget> {
 protected:
  FuzzTargetTest() {
    google::protobuf::SetLogHandler(nullptr);  // a line for each bad string
    running = &input_;
    for (const int signal : {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGABRT}) {
      std::signal(signal, ReportInput);
    }
  }
  ~FuzzTargetTest() override {
    for (const int signal : {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGABRT}) {
      std::signal(signal, SIG_DFL);
    }
    running = nullptr;
  }

  void Run(std::string input) {
    input_ = std::move(input);
    GetParam().run(input_);
    ++runs_;
  }

  std::string input_;
  int64_t runs_ = 0;
};

// A promise that does not hold ends the process.
TEST_P(FuzzTargetTest, HoldsItsPromises) {
  const std::vector<std::string> seeds = GetParam().seeds();
  Run("");
  for (const std::string& seed : seeds) {
    // run.sh starts from them, and libFuzzer would cut a longer one.
    EXPECT_LE(seed.size(), kLongest);
    Run(seed);
    const size_t step = seed.size() / kMostCutsOfASeed + 1;
    for (size_t at = 0; at < seed.size(); at += step) {
      Run(seed.substr(0, at));
      for (const int mask : {0x01, 0x80, 0xff}) {
        std::string changed = seed;
        changed[at] ^= static_cast<char>(mask);
        Run(std::move(changed));
      }
    }
  }
  Mutator mutator(seeds, GetParam().words());
  for (int i = 0; i < kMutations; ++i) Run(mutator.Next());
  EXPECT_GT(runs_, kMutations);
  RecordProperty("inputs", std::to_string(runs_));
}

INSTANTIATE_TEST_SUITE_P(Each, FuzzTargetTest,
                         ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return info.param.name; });

TEST(FuzzTargets, AreThere) { EXPECT_GE(FuzzTargets().size(), 40u); }

}  // namespace
}  // namespace weft::testing
