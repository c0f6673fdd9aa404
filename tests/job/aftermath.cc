#include "weft/tests/job/aftermath.h"

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"

namespace weft::testing {
namespace {

using ::testing::IsEmpty;

std::vector<std::string> ProcessesOf(const std::string& runtime_directory) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    const std::string name = entry.path().filename();
    if (!absl::SimpleAtoi(name, &pid)) continue;
    std::ifstream file("/proc/" + name + "/environ");
    std::string variable;
    while (std::getline(file, variable, '\0')) {
      if (variable == "XDG_RUNTIME_DIR=" + runtime_directory) {
        found.push_back(name);
      }
    }
  }
  return found;
}

std::vector<std::string> FilesOf(const std::string& runtime_directory) {
  std::vector<std::string> found;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(runtime_directory)) {
    // The directory of all jobs of the user stays.
    if (entry.path() == runtime_directory + "/weft") continue;
    found.push_back(entry.path());
  }
  return found;
}

}  // namespace

std::string NewestName(const std::string& directory) {
  const std::vector<std::string> names = Checkpoints(directory);
  return names.empty() ? "" : names.back();
}

absl::StatusOr<checkpoint::CheckpointDirectory::Loaded> LoadNewest(
    const std::string& directory) {
  checkpoint::CheckpointDirectory::Options options;
  options.path = directory;
  auto opened = checkpoint::CheckpointDirectory::Open(options);
  if (!opened.ok()) return opened.status();
  return (*opened)->LoadLatest();
}

void ExpectNear(const checkpoint::NamedTensors& wanted,
                const checkpoint::NamedTensors& found, double tolerance) {
  ASSERT_EQ(wanted.size(), found.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    if (tensor.dtype() != DType::kF32) continue;
    const auto a = tensor.ToVector<float>();
    const auto b = found.at(name).ToVector<float>();
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], tolerance) << name << " " << i;
    }
  }
}

void ExpectNothingLeft(const std::string& runtime_directory) {
  EXPECT_TRUE(Becomes([&] { return ProcessesOf(runtime_directory).empty(); }));
  EXPECT_THAT(FilesOf(runtime_directory), IsEmpty());
}

}  // namespace weft::testing
