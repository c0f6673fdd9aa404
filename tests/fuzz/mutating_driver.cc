// mutating_driver: runs fuzz targets on mutations of their seeds.
//
//   fuzz_test                         every target
//   fuzz_test --target=NAME [FILE...] one; on these inputs only
//   --inputs=N --seed=S               N of each; the same S gives the same ones
//   --write-corpus=DIR                the seeds as files, for libFuzzer
//
// It knows nothing of coverage; libFuzzer does, and needs clang. Before each
// input it is kept, so that a crash leaves it as fuzz-crash in the directory
// for outputs ($TEST_UNDECLARED_OUTPUTS_DIR, else here). Bazel's shards share
// the targets.

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr size_t kMaxBytes = 4096;

class Mutator {
 public:
  Mutator(const FuzzTarget& target, uint64_t seed)
      : random_(seed), seeds_(target.seeds()), words_(target.words()) {}

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

// What the command line says.
struct Settings {
  std::string target;  // empty: all
  int64_t inputs = 200000;
  uint64_t seed = 1;
  std::string corpus;
  std::vector<std::string> files;
};

Settings Read(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--inputs=")) {
      settings.inputs = std::atoll(word.data());
    } else if (absl::ConsumePrefix(&word, "--seed=")) {
      settings.seed = std::strtoull(word.data(), nullptr, 10);
    } else if (absl::ConsumePrefix(&word, "--target=")) {
      settings.target = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--write-corpus=")) {
      settings.corpus = std::string(word);
    } else {
      settings.files.emplace_back(word);
    }
  }
  return settings;
}

void Run(const FuzzTarget& target, const std::string& input) {
  *current_input = input;
  // A copy of its own, so that a read past the end is one past an allocation.
  const std::vector<char> bytes(input.begin(), input.end());
  target.run(absl::string_view(bytes.data(), bytes.size()));
}

void RunMutations(const FuzzTarget& target, const Settings& settings) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& input : target.seeds()) Run(target, input);
  Mutator mutator(target, settings.seed);
  for (int64_t i = 0; i < settings.inputs; ++i) Run(target, mutator.Next());
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  std::printf("%-12s %lld inputs passed, --seed=%llu, %.1f s\n",
              target.name.c_str(), static_cast<long long>(settings.inputs),
              static_cast<unsigned long long>(settings.seed), took.count());
  std::fflush(stdout);
}

void WriteCorpus(const FuzzTarget& target, const std::string& directory) {
  const std::string own = directory + "/" + target.name;
  std::filesystem::create_directories(own);
  int number = 0;
  for (const std::string& seed : target.seeds()) {
    std::ofstream(own + "/" + std::to_string(number++)) << seed;
  }
}

void Apply(const FuzzTarget& target, const Settings& settings) {
  if (!settings.corpus.empty()) return WriteCorpus(target, settings.corpus);
  if (settings.files.empty()) return RunMutations(target, settings);
  for (const std::string& file : settings.files) {
    std::ifstream in(file, std::ios::binary);
    Run(target, {std::istreambuf_iterator<char>(in), {}});
  }
}

// The targets of this shard, by name.
std::vector<FuzzTarget> ChosenTargets(const Settings& settings) {
  const auto number = [](const char* name, size_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
  };
  const size_t shards = number("TEST_TOTAL_SHARDS", 1);
  const size_t shard = number("TEST_SHARD_INDEX", 0);
  if (const char* status = std::getenv("TEST_SHARD_STATUS_FILE")) {
    std::ofstream touched(status);
  }
  std::vector<FuzzTarget> all = FuzzTargets();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<FuzzTarget> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!settings.target.empty() ? all[i].name == settings.target
                                 : i % shards == shard) {
      chosen.push_back(all[i]);
    }
  }
  return chosen;
}

int Main(int argc, char** argv) {
  static std::string input;
  current_input = &input;
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) {
    std::signal(signal, KeepInput);
  }
  google::protobuf::SetLogHandler(nullptr);  // a line for each bad string
  const Settings settings = Read(argc, argv);
  const std::vector<FuzzTarget> chosen = ChosenTargets(settings);
  for (const FuzzTarget& target : chosen) Apply(target, settings);
  if (!chosen.empty()) return 0;
  std::fprintf(stderr, "no target %s; there are:", settings.target.c_str());
  for (const FuzzTarget& target : FuzzTargets()) {
    std::fprintf(stderr, " %s", target.name.c_str());
  }
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace
}  // namespace weft::testing

int main(int argc, char** argv) { return weft::testing::Main(argc, argv); }
