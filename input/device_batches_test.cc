#include "weft/input/device_batches.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/data_loader.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::input {
namespace {

using ::testing::Each;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kSeeds = 20;
constexpr int64_t kSize = 46;

// Example i is {f32 [3] of i + 1, i64 [] = i, f32 [0]}.
class Numbers final : public Dataset {
 public:
  int64_t size() const override { return kSize; }
  absl::StatusOr<Example> Get(int64_t index) const override {
    return Example{Tensor::Full({3}, static_cast<double>(index + 1)),
                   Tensor::Scalar<int64_t>(index), Tensor::Zeros({0})};
  }
};

class Batches : public ::testing::TestWithParam<int> {
 protected:
  Batches() : devices_(GetParam()) {
    auto batches = DeviceBatches::Create(device_);
    EXPECT_THAT(batches, testing::IsOk());
    batches_ = *std::move(batches);
  }

  std::unique_ptr<DataLoader> Load(std::shared_ptr<DeviceBatches> batches,
                                   int threads = 2) {
    ShardedSampler::Options order;
    order.size = kSize;
    DataLoader::Options options;
    options.batch_size = 10;
    options.threads = threads;
    options.device_batches = std::move(batches);
    return *DataLoader::Create(data_, *ShardedSampler::Create(order), options);
  }
  device::Stream NewStream() {
    return *devices_.runtime().CreateStream(device_.id());
  }

  const Numbers data_;
  SimulatedDevices devices_;
  const Device device_{devices_.context(), 0};
  std::shared_ptr<DeviceBatches> batches_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, Batches, ::testing::Range(0, kSeeds));

TEST_P(Batches, AreThoseOfTheCpuWhateverTheConsumersStreamDoes) {
  const device::StreamScope scope(
      GetParam() % 2 == 0 ? NewStream() : *devices_.context().CurrentStream(0));
  const auto wanted = Load(nullptr), found = Load(batches_, GetParam() % 3);
  int count = 0;
  for (;;) {
    const auto one = wanted->Next(), other = found->Next();
    WEFT_ASSERT_OK(one);
    WEFT_ASSERT_OK(other);
    ASSERT_EQ(one->has_value(), other->has_value());
    if (!one->has_value()) break;
    ++count;
    for (size_t i = 0; i < 3; ++i) {
      const Tensor &x = (**one)[i], &y = (**other)[i];
      EXPECT_EQ(y.device(), device_);
      EXPECT_EQ(y.shape(), x.shape());
      ASSERT_EQ(y.dtype(), x.dtype());
    }
    // Also where it is written to at once.
    Mul_((**other)[0], 2);
    Mul_((**one)[0], 2);
    EXPECT_EQ((**other)[0].ToVector<float>(), (**one)[0].ToVector<float>());
    EXPECT_EQ((**other)[1].ToVector<int64_t>(), (**one)[1].ToVector<int64_t>());
  }
  EXPECT_EQ(count, 5);
}

// No call waits, whichever of the two streams makes no progress.
TEST_P(Batches, AreGivenToTheHostWhileTheDeviceIsBehind) {
  const device::Stream training = NewStream();
  const device::StreamScope scope(training);
  const Tensor steps = Tensor::Zeros({1}, DType::kF32, device_);
  for (const device::Stream hanging : {training, batches_->stream()}) {
    devices_.runtime().SetHangs(hanging, true);
    const auto loader = Load(batches_);
    std::vector<Tensor> results;
    std::vector<Tensor> wanted;
    const auto cpu = Load(nullptr);
    for (int i = 0; i < 5; ++i) {
      Add_(steps, 1);
      const auto batch = loader->Next();
      WEFT_ASSERT_OK(batch);
      // The batch itself is dropped before anything of this has run.
      results.push_back(Mul((**batch)[0], 2));
      wanted.push_back(Mul((**cpu->Next())[0], 2));
    }
    devices_.runtime().SetHangs(hanging, false);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].ToVector<float>(), wanted[i].ToVector<float>());
    }
  }
}

// While the stream of the training hangs, copies to the device go on.
TEST_P(Batches, AreCopiedBesideTheTraining) {
  const device::Stream training = NewStream();
  const device::StreamScope scope(training);
  const Tensor busy = Tensor::Zeros({1}, DType::kF32, device_);
  devices_.runtime().SetHangs(training, true);
  Add_(busy, 1);
  const auto batch = batches_->Copy({Tensor::Full({100}, 7)});
  WEFT_ASSERT_OK(batch);
  WEFT_EXPECT_OK(devices_.runtime().Synchronize(*batch->copied, kPatience));
  devices_.runtime().SetHangs(training, false);
  EXPECT_THAT((*batches_->Use(*batch))[0].ToVector<float>(), Each(7));
}

TEST_P(Batches, DeviceThatIsLostIsNamed) {
  const auto loader = Load(batches_);
  WEFT_ASSERT_OK(loader->Next());
  devices_.runtime().LoseDevice(device_.id());
  EXPECT_THAT(loader->Next(),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
}

TEST_P(Batches, PinnedMemoryIsUsedAgain) {
  for (int i = 0; i < 30; ++i) {
    const auto batch = batches_->Copy({Tensor::Full({2000}, i)});
    WEFT_ASSERT_OK(batch);
    EXPECT_THAT((*batches_->Use(*batch))[0].ToVector<float>(), Each(i));
  }
  EXPECT_LE(batches_->pinned_bytes(), 2 * 16'384);
}

// In how many of the seeds a batch that was copied in this way is right for
// another stream, which waits for it or does not.
int CountRight(bool is_pinned, bool waits) {
  int right = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const auto batches = *DeviceBatches::Create(device);
    const Tensor batch = Tensor::Full({100}, 7);
    const Tensor to = Tensor::Full({100}, 1, DType::kF32, device);
    EXPECT_TRUE(devices.runtime().Synchronize(device.id(), kPatience).ok());
    device::Event copied = *devices.runtime().CreateEvent(device.id());
    DeviceBatches::Batch made;
    if (is_pinned) {
      made = *batches->Copy({batch});
    } else {
      EXPECT_TRUE(devices.runtime()
                      .CopyAsync(to.address(), batch.raw(), batch.bytes(),
                                 batches->stream())
                      .ok());
      made.tensors = {to};
      EXPECT_TRUE(
          devices.runtime().RecordEvent(copied, batches->stream()).ok());
      made.copied = std::make_shared<device::Event>(std::move(copied));
    }
    const Tensor used = waits ? (*batches->Use(made))[0] : made.tensors[0];
    const std::vector<float> found = used.ToVector<float>();
    right += found == std::vector<float>(100, 7);
  }
  return right;
}

TEST(DeviceBatches, StreamThatDoesNotWaitForTheCopyFindsSomethingElse) {
  for (const bool is_pinned : {true, false}) {
    EXPECT_EQ(CountRight(is_pinned, /*waits=*/true), kSeeds) << is_pinned;
    EXPECT_LT(CountRight(is_pinned, /*waits=*/false), kSeeds) << is_pinned;
  }
}

TEST(DeviceBatches, CpuIsRefused) {
  EXPECT_THAT(DeviceBatches::Create(Device::Cpu()),
              StatusIs(absl::StatusCode::kInvalidArgument, "found the CPU"));
}

}  // namespace
}  // namespace weft::input
