// Checkpoints that are loaded to a device.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::testing::SizeIs;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

std::unique_ptr<CheckpointDirectory> OpenOn(FakeFileSystem& files) {
  CheckpointDirectory::Options options;
  options.path = "/ck";
  options.files = &files;
  auto directory = CheckpointDirectory::Open(options);
  EXPECT_THAT(directory, IsOk());
  return *std::move(directory);
}

NamedTensors Weights(float value) {
  return {{"layer.bias", Tensor::FromVector<float>({value})},
          {"layer.mask", Tensor::FromVector<bool>({true, false, true})},
          {"layer.weight", Tensor::FromVector<float>({value, -value, 0.5f})}};
}

std::string ShardOf(const std::string& name) {
  return "/ck/" + name + "/shard-00000.safetensors";
}

std::string BytesOf(const Tensor& tensor) {
  const Tensor here = tensor.To(Device::Cpu());
  return {static_cast<const char*>(here.raw()),
          static_cast<size_t>(here.bytes())};
}

TEST(LoadToDevice, HasTheBitsOfALoadToTheCpu) {
  const TempDir dir;
  CheckpointDirectory::Options options;
  options.path = dir.Path("ck");
  const auto directory = CheckpointDirectory::Open(options);
  WEFT_ASSERT_OK(directory);
  std::mt19937 random(7);
  NamedTensors saved;
  for (const int64_t size : {3, 0, 2'200'000, 1000}) {  // three pieces
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(random());
    saved[absl::StrCat("of ", size)] = Tensor::FromVector<float>(values);
  }
  const auto name = (*directory)->Save(3, saved, {{"epoch", "1"}});
  WEFT_ASSERT_OK(name);
  const auto wanted = (*directory)->Load(*name);
  WEFT_ASSERT_OK(wanted);
  for (int seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const auto found = (*directory)->LoadLatest(device);
    WEFT_ASSERT_OK(found);
    EXPECT_EQ(found->name, *name);
    EXPECT_EQ(found->manifest.step, 3);
    ASSERT_EQ(found->tensors.size(), saved.size());
    for (const auto& [key, tensor] : wanted->tensors) {
      const Tensor& there = found->tensors.at(key);
      EXPECT_EQ(there.device(), device);
      EXPECT_EQ(there.shape(), tensor.shape());
      EXPECT_TRUE(BytesOf(there) == BytesOf(tensor)) << key << " seed " << seed;
    }
    EXPECT_EQ(devices.runtime().pinned_blocks(), 0);
  }
}

// The host has a piece that it has read from the file, and the pinned ones.
TEST(LoadToDevice, NeedsNoMoreOfTheHostThanThreePieces) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const Tensor large = Tensor::Full({7 << 20}, 3);  // 28 MiB
  const auto name = directory->Save(1, {{"a", large}}, {});
  WEFT_ASSERT_OK(name);
  const auto file_bytes =
      static_cast<int64_t>(files.Content(ShardOf(*name)).size());
  ASSERT_GT(file_bytes, 6 * kPieceBytes);
  SimulatedDevices devices(1);
  int64_t wanted = 0, most_wanted = 0, most_pinned = 0;
  files.OnReadAt([&](int64_t most) {
    wanted += most;
    most_wanted = std::max(most_wanted, most);
    most_pinned = std::max(most_pinned, devices.runtime().pinned_blocks());
  });
  const auto found = directory->Load(*name, Device(devices.context(), 0));
  WEFT_ASSERT_OK(found);
  EXPECT_LE(most_wanted, kPieceBytes);
  EXPECT_EQ(most_pinned, 2);
  EXPECT_EQ(wanted, file_bytes + kPieceBytes);  // once, and a look for more
  EXPECT_EQ(devices.runtime().pinned_blocks(), 0);
  EXPECT_TRUE(BytesOf(found->tensors.at("a")) == BytesOf(large));

  WEFT_EXPECT_OK(directory->Verify(*name));
  EXPECT_LE(most_wanted, kPieceBytes);
}

TEST(LoadToDevice, SaysOfADamagedFileWhatALoadToTheCpuSays) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const auto name = directory->Save(1, Weights(2), {});
  WEFT_ASSERT_OK(name);
  SimulatedDevices devices(2);
  const Device device(devices.context(), 0);
  const std::string whole = files.Content(ShardOf(*name));
  const auto manifest = directory->ReadManifest(*name);
  WEFT_ASSERT_OK(manifest);
  const FileRecord& record = manifest->files[0];
  const auto compare = [&](absl::string_view how, size_t at) {
    const auto cpu = directory->LoadShard(*name, record);
    const auto there = directory->LoadShard(*name, record, device);
    EXPECT_THAT(cpu, StatusIs(absl::StatusCode::kDataLoss, "cut or damaged"));
    EXPECT_EQ(there.status(), cpu.status()) << how << " at " << at;
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    files.Content(ShardOf(*name)) = whole;
    files.Content(ShardOf(*name))[at] ^= 1 << at % 8;
    compare("flipped", at);
    files.Content(ShardOf(*name)) = whole.substr(0, at);
    compare("cut", at);
  }
  files.Content(ShardOf(*name)) = whole + "x";
  compare("grown", 0);
  files.Content(ShardOf(*name)) = whole;
  WEFT_EXPECT_OK(directory->LoadShard(*name, record, device));
}

TEST(LoadToDevice, FileThatIsCutWhileItIsReadIsDamaged) {
  for (const int read : {1, 2, 3, 4}) {
    for (const bool is_on_cpu : {false, true}) {
      FakeFileSystem files;
      const auto directory = OpenOn(files);
      const auto name = directory->Save(1, Weights(2), {});
      WEFT_ASSERT_OK(name);
      SimulatedDevices devices(read);
      int reads = 0;
      files.OnReadAt([&](int64_t) {
        std::string& bytes = files.Content(ShardOf(*name));
        if (++reads == read) bytes.resize(bytes.size() - 9);
      });
      EXPECT_THAT(
          directory->Load(
              *name, is_on_cpu ? Device::Cpu() : Device(devices.context(), 0)),
          StatusIs(absl::StatusCode::kDataLoss, "cut or damaged"));
    }
  }
}

TEST(LoadToDevice, NewestThatIsDamagedIsPassedOverADeviceThatFailsIsNot) {
  FakeFileSystem files;
  const auto directory = OpenOn(files);
  const auto old = directory->Save(1, Weights(1), {});
  const auto newest = directory->Save(2, Weights(2), {});
  WEFT_ASSERT_OK(old);
  WEFT_ASSERT_OK(newest);
  SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  devices.runtime().FailAllocations(device.id(), 1000);
  EXPECT_THAT(directory->LoadLatest(device),
              StatusIs(absl::StatusCode::kResourceExhausted, "simulated:0"));
  devices.runtime().FailAllocations(device.id(), 0);
  files.Content(ShardOf(*newest)).back() ^= 1;
  const auto found = directory->LoadLatest(device);
  WEFT_ASSERT_OK(found);
  EXPECT_EQ(found->name, *old);
  EXPECT_THAT(found->skipped, SizeIs(1));
  EXPECT_EQ(found->tensors.at("layer.bias").item<float>(), 1);
}

}  // namespace
}  // namespace weft::checkpoint
