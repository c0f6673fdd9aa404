#include "weft/checkpoint/elements.h"

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/device_elements.h"
#include "weft/checkpoint/fake_file_system.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::checkpoint {
namespace {

using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::StatusIs;

constexpr int kSeeds = 20;
constexpr char kPath[] = "/d/f";

std::string BytesOf(const Tensor& tensor) {
  const Tensor here = tensor.To(Device::Cpu()).Contiguous();
  return {static_cast<const char*>(here.raw()),
          static_cast<size_t>(here.bytes())};
}

// Tensors of 0 to 79 elements of several dtypes.
Safetensors Content(int tensors) {
  std::mt19937_64 random(1);
  Safetensors content;
  for (int i = 0; i < tensors; ++i) {
    const auto size = static_cast<int64_t>(random() % 80);
    const DType dtypes[] = {DType::kF32, DType::kF64, DType::kU8, DType::kBool};
    const DType dtype = dtypes[i % 4];
    const Tensor tensor = Tensor::Empty({size}, dtype);
    auto* const bytes = static_cast<char*>(tensor.raw());
    for (int64_t b = 0; b < tensor.bytes(); ++b) {
      bytes[b] =
          static_cast<char>(random() % (dtype == DType::kBool ? 2 : 256));
    }
    content.tensors[absl::StrCat("t", i)] = tensor;
  }
  content.metadata = {{"made_by", "a test"}};
  return content;
}

class DeviceElementsTest : public ::testing::TestWithParam<int> {
 protected:
  DeviceElementsTest() : devices_(GetParam()), content_(Content(30)) {
    WEFT_EXPECT_OK(files_.MakeDirectories("/d"));
    WEFT_EXPECT_OK(WriteSafetensors(content_, **files_.Create(kPath)));
    whole_ = files_.Content(kPath);
  }

  std::unique_ptr<DeviceElements> Make(int pieces = 2) {
    auto made = DeviceElements::Create(
        device_, {pieces, /*piece_bytes=*/64, absl::Seconds(30)});
    EXPECT_THAT(made, testing::IsOk());
    return *std::move(made);
  }
  absl::StatusOr<Safetensors> Read(Elements& elements) {
    return ReadSafetensors(files_, kPath, static_cast<int64_t>(whole_.size()),
                           elements, [](absl::string_view) {});
  }
  void ExpectIsContent(const Safetensors& found) {
    EXPECT_EQ(found.metadata, content_.metadata);
    ASSERT_EQ(found.tensors.size(), content_.tensors.size());
    for (const auto& [name, tensor] : content_.tensors) {
      const Tensor& there = found.tensors.at(name);
      EXPECT_EQ(there.device(), device_) << name;
      EXPECT_EQ(there.shape(), tensor.shape()) << name;
      EXPECT_EQ(there.dtype(), tensor.dtype()) << name;
      EXPECT_EQ(BytesOf(there), BytesOf(tensor)) << name;
    }
  }

  SimulatedDevices devices_;
  const Device device_{devices_.context(), 0};
  const Safetensors content_;
  FakeFileSystem files_;
  std::string whole_;  // the file
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceElementsTest,
                         ::testing::Range(0, kSeeds));

// A piece that is written before its last copy is over changes elements that
// were read before.
TEST_P(DeviceElementsTest, TensorsHaveTheBitsOfTheFile) {
  for (const int pieces : {1, 2, 3}) {
    const auto elements = Make(pieces);
    const auto found = Read(*elements);
    WEFT_ASSERT_OK(found);
    ExpectIsContent(*found);
    EXPECT_EQ(devices_.runtime().pinned_blocks(), pieces);
  }
  EXPECT_EQ(devices_.runtime().pinned_blocks(), 0);
}

TEST_P(DeviceElementsTest, TensorsMayBeUsedOnAnyStreamAndGiveTheirMemoryBack) {
  for (int i = 0; i < 3; ++i) {
    const device::StreamScope scope(
        *devices_.runtime().CreateStream(device_.id()));
    const auto elements = Make();
    absl::StatusOr<Safetensors> found = Read(*elements);
    WEFT_ASSERT_OK(found);
    const device::StreamScope other(
        *devices_.runtime().CreateStream(device_.id()));
    ExpectIsContent(*found);
  }
}

TEST_P(DeviceElementsTest, FileThatIsCutWhileItIsReadIsDataLoss) {
  const auto elements = Make();
  int reads = 0;
  files_.OnReadAt([&](int64_t) {
    if (++reads == 10) files_.Content(kPath).resize(1500);
  });
  EXPECT_THAT(Read(*elements),
              StatusIs(absl::StatusCode::kDataLoss,
                       absl::StrCat("/d/f: wanted ", whole_.size(),
                                    " bytes, found no byte ")));
  WEFT_EXPECT_OK(elements->failure());
}

// What came before does not show in the file after.
TEST_P(DeviceElementsTest, ReadsAnotherFileAfterOneThatWasDamaged) {
  const auto elements = Make();
  for (const size_t size : {whole_.size() / 2, whole_.size() - 1}) {
    files_.OnReadAt([&](int64_t) { files_.Content(kPath).resize(size); });
    EXPECT_THAT(Read(*elements), StatusIs(absl::StatusCode::kDataLoss, kPath));
    files_.OnReadAt(nullptr);
    files_.Content(kPath) = whole_;
  }
  const auto found = Read(*elements);
  WEFT_ASSERT_OK(found);
  ExpectIsContent(*found);
}

TEST_P(DeviceElementsTest, DeviceThatFailsIsNamedAndNotTheFile) {
  {
    const auto elements = Make();
    devices_.runtime().FailAllocations(device_.id(), 1000);
    EXPECT_THAT(Read(*elements), StatusIs(absl::StatusCode::kResourceExhausted,
                                          "from a file to simulated:0: "));
    EXPECT_THAT(elements->failure(),
                StatusIs(absl::StatusCode::kResourceExhausted, "simulated:0"));
    devices_.runtime().FailAllocations(device_.id(), 0);
  }
  {
    const auto elements = Make();
    int reads = 0;
    files_.OnReadAt([&](int64_t) {
      if (++reads == 10) devices_.runtime().LoseDevice(device_.id());
    });
    EXPECT_THAT(Read(*elements),
                StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
    EXPECT_THAT(elements->failure(),
                StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
  }
  EXPECT_EQ(devices_.runtime().pinned_blocks(), 0);
}

TEST_P(DeviceElementsTest, StreamThatHangsEndsAtTheTimeout) {
  const device::Stream stream = *devices_.runtime().CreateStream(device_.id());
  const device::StreamScope scope(stream);
  const auto elements = Make();
  devices_.runtime().SetHangs(stream, true);
  EXPECT_THAT(Read(*elements),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "simulated:0"));
  devices_.runtime().SetHangs(stream, false);
}

TEST(HostElements, BoolThatIsNeitherIsRefusedAlsoInALaterPiece) {
  FakeFileSystem files;
  WEFT_ASSERT_OK(files.MakeDirectories("/d"));
  const Safetensors content = {
      {{"b", Tensor::Zeros({kPieceBytes + 10}, DType::kBool)}}, {}};
  WEFT_ASSERT_OK(WriteSafetensors(content, **files.Create(kPath)));
  files.Content(kPath).back() = 2;
  HostElements elements;
  EXPECT_THAT(ReadSafetensors(files, kPath, files.Content(kPath).size(),
                              elements, [](absl::string_view) {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "/d/f: \"b\" is BOOL and has a byte above 1"));
  EXPECT_EQ(files.largest_read(), kPieceBytes);
}

}  // namespace
}  // namespace weft::checkpoint
