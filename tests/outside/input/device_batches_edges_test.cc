// Batches on a device in clumsy hands: dropped in flight, of a loader that ends
// early, of two consumers, of datasets that fail, on devices that fail. What is
// expected is what input/data_loader.h and input/device_batches.h say; a
// sentence of theirs stands above each test.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/data_loader.h"
#include "weft/input/dataset.h"
#include "weft/input/device_batches.h"
#include "weft/input/sharded_sampler.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using device::testing::SimulatedDevices;
using input::DataLoader;
using input::DeviceBatches;
using input::Example;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using weft::testing::Becomes;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kLost = absl::StatusCode::kUnavailable;
constexpr int64_t kWidth = 50;

// Example i: a row [50] of i + 1, and i as a label.
class Rows final : public input::Dataset {
 public:
  using Before = std::function<absl::Status(int64_t index)>;
  explicit Rows(int64_t size, Before before = nullptr)
      : size_(size), before_(std::move(before)) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "Rows"));
    if (before_ != nullptr) WEFT_RETURN_IF_ERROR(before_(index));
    return Example{Tensor::Full({kWidth}, static_cast<double>(index + 1)),
                   Tensor::Full({}, static_cast<double>(index), DType::kI64)};
  }

 private:
  const int64_t size_;
  const Before before_;
};

struct Way {
  int threads = 1;
  int prefetch = 4;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.threads << " threads, " << way.prefetch << " ahead";
}

// In the order of the data, so that a batch says which one it is.
input::ShardedSampler InOrder(int64_t size) {
  input::ShardedSampler::Options order;
  order.size = size;
  order.shuffle = false;
  auto sampler = input::ShardedSampler::Create(order);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
}
std::unique_ptr<DataLoader> Load(const input::Dataset& data, const Way& way,
                                 std::shared_ptr<DeviceBatches> batches,
                                 int64_t batch = 4, bool drop_last = false) {
  const input::ShardedSampler sampler = InOrder(data.size());
  DataLoader::Options options;
  options.batch_size = batch;
  options.drop_last = drop_last;
  options.threads = way.threads;
  options.prefetch = way.prefetch;
  options.device_batches = std::move(batches);
  auto loader = DataLoader::Create(data, sampler, options);
  EXPECT_THAT(loader, IsOk());
  return *std::move(loader);
}

std::shared_ptr<DeviceBatches> BatchesOf(SimulatedDevices& devices) {
  auto made = DeviceBatches::Create(Device(devices.context(), 0));
  EXPECT_THAT(made, IsOk());
  return *std::move(made);
}

// Whether `batch` has the examples from `begin` on, and how many.
void ExpectRows(const Example& batch, int64_t begin, int64_t count) {
  std::vector<float> rows;
  std::vector<int64_t> labels;
  for (int64_t i = begin; i < begin + count; ++i) {
    rows.insert(rows.end(), kWidth, static_cast<float>(i + 1));
    labels.push_back(i);
  }
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_FALSE(batch[0].device().is_cpu());
  EXPECT_EQ(batch[0].shape(), Shape({count, kWidth}));
  EXPECT_EQ(batch[0].ToVector<float>(), rows);
  EXPECT_EQ(batch[1].ToVector<int64_t>(), labels);
}

class Batches : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Batches,
                         ::testing::Values(Way{0, 1}, Way{0, 4}, Way{1, 1},
                                           Way{1, 4}, Way{3, 2}, Way{3, 50}));

// "Leaves out a last batch that is smaller", "Nothing at the epoch's end": also
// where that is all.
TEST_P(Batches, OfNoExamplesAreNone) {
  SimulatedDevices devices(1);
  const Rows data(3);
  const auto batches = BatchesOf(devices);
  const auto loader = Load(data, GetParam(), batches, 4, /*drop_last=*/true);
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(loader->remaining(), 0);
    for (int again = 0; again < 3; ++again) {
      WEFT_ASSERT_OK_AND_ASSIGN(const auto batch, loader->Next());
      EXPECT_FALSE(batch.has_value());
    }
    loader->SetEpoch(epoch + 1);
  }
  EXPECT_EQ(batches->pinned_bytes(), 0);
}

// "Next gives tensors of that device, for work on its caller's current stream":
// whatever is dropped while its copy, or work on it, has not run.
TEST_P(Batches, ThatAreDroppedInFlightLeaveTheBitsOfTheOthers) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const Rows data(30);
    const auto loader = Load(data, GetParam(), BatchesOf(devices));
    WEFT_ASSERT_OK_AND_ASSIGN(
        const device::Stream stream,
        devices.runtime().CreateStream(devices.context().device(0)));
    const device::StreamScope scope(stream);
    const Tensor total = Tensor::Zeros({4, kWidth}, DType::kF32, device);
    for (int i = 0; i < 8; ++i) {
      WEFT_ASSERT_OK_AND_ASSIGN(std::optional<Example> batch, loader->Next());
      ASSERT_TRUE(batch.has_value());
      if (i % 3 == 1) continue;  // its copy may not have begun
      if (i == 7) {
        ExpectRows(*batch, 28, 2);  // the last one is smaller
      } else {
        Add_(total, (*batch)[0]);
      }
    }
    WEFT_ASSERT_OK_AND_ASSIGN(const auto none, loader->Next());
    EXPECT_FALSE(none.has_value());
    // Batches 0, 2, 3, 5, 6: rows 4 b + 1 + r.
    std::vector<float> wanted;
    for (int row = 0; row < 4; ++row) {
      wanted.insert(wanted.end(), kWidth, 4.0f * 16 + 5.0f * (1.0f + row));
    }
    EXPECT_EQ(total.ToVector<float>(), wanted);
    WEFT_EXPECT_OK(devices.runtime().Health(devices.context().device(0)));
  }
}

// "Waits for the batches that are being made": what Next gave, and what was
// begun with it, is good after that.
TEST_P(Batches, OutliveTheirLoader) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedDevices devices(seed);
    const Rows data(200);
    std::optional<Example> first, second;
    Tensor sum;
    {
      auto loader = Load(data, GetParam(), BatchesOf(devices));
      WEFT_ASSERT_OK_AND_ASSIGN(first, loader->Next());
      WEFT_ASSERT_OK_AND_ASSIGN(second, loader->Next());
      sum = Add((*first)[0], (*second)[0]);
    }
    ExpectRows(*second, 4, 4);
    ExpectRows(*first, 0, 4);
    EXPECT_EQ(sum.ToVector<float>()[0], 6.0f);
  }
}

// "Goes to the beginning of `epoch` and drops batches made ahead."
TEST_P(Batches, AreThoseOfTheEpochAlsoWhereItBeginsAgain) {
  SimulatedDevices devices(3);
  const Rows data(40);
  const auto loader = Load(data, GetParam(), BatchesOf(devices));
  for (int times = 0; times < 12; ++times) {
    SCOPED_TRACE(times);
    for (int64_t i = 0; i < times % 4; ++i) {
      WEFT_ASSERT_OK_AND_ASSIGN(const auto batch, loader->Next());
      ASSERT_TRUE(batch.has_value());
      ExpectRows(*batch, 4 * i, 4);
    }
    const auto place = loader->state();
    EXPECT_EQ(place.used, 4 * (times % 4));
    loader->SetEpoch(times);
    if (times % 2 == 0) continue;
    // "Continues there": with what is under way dropped as well.
    WEFT_ASSERT_OK(loader->LoadState(place));
    WEFT_ASSERT_OK_AND_ASSIGN(const auto batch, loader->Next());
    ASSERT_TRUE(batch.has_value());
    ExpectRows(*batch, place.used, 4);
    loader->SetEpoch(times);
  }
}

// "An error or exception of the dataset, or of the device, is returned in place
// of its batch, and the next call returns the next batch."
TEST_P(Batches, ThatCannotBeReadAreErrorsInTheirPlace) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const Rows data(24, [](int64_t index) -> absl::Status {
      if (index == 5) return absl::DataLossError("a torn page");
      if (index == 13) throw std::runtime_error("a loose wire");
      if (index == 23) throw 7;
      return absl::OkStatus();
    });
    const auto loader = Load(data, GetParam(), BatchesOf(devices));
    for (int64_t i = 0; i < 6; ++i) {
      const auto batch = loader->Next();
      if (i == 1) {
        EXPECT_THAT(batch, StatusIs(absl::StatusCode::kDataLoss));
        EXPECT_THAT(batch.status().ToString(), HasSubstr("a torn page"));
      } else if (i == 3) {
        EXPECT_THAT(batch.status().ToString(), HasSubstr("a loose wire"));
      } else if (i == 5) {
        EXPECT_FALSE(batch.ok());
      } else {
        ASSERT_THAT(batch, IsOk());
        ASSERT_TRUE(batch->has_value());
        ExpectRows(**batch, 4 * i, 4);
      }
    }
    WEFT_ASSERT_OK_AND_ASSIGN(const auto none, loader->Next());
    EXPECT_FALSE(none.has_value());
  }
}

// "kResourceExhausted: no memory, of the device or pinned", in place of one
// batch; the epoch goes on.
TEST_P(Batches, WhoseDeviceLacksMemoryOnceAreErrorsInTheirPlace) {
  SimulatedDevices devices(2);
  const Rows data(20);
  const auto loader = Load(data, GetParam(), BatchesOf(devices));
  const auto own = devices.context().device(0);
  devices.runtime().FailAllocations(own, 1);
  int errors = 0;
  for (int64_t i = 0; i < 5; ++i) {
    const auto batch = loader->Next();
    if (!batch.ok()) {
      ++errors;
      EXPECT_THAT(batch, StatusIs(kExhausted));
      EXPECT_THAT(batch.status().ToString(), HasSubstr("simulated:0"));
      continue;
    }
    ASSERT_TRUE(batch->has_value());
    ExpectRows(**batch, 4 * i, 4);
  }
  // The allocator may have tried again by itself.
  EXPECT_LE(errors, 1);
  WEFT_EXPECT_OK(devices.runtime().Health(own));
}

// A batch that the device can never hold: each Next says so, and none hangs.
TEST_P(Batches, ThatAreLargerThanTheDeviceSayWhatTheyWanted) {
  device::SimulatedRuntime::Options small;
  small.memory_bytes = int64_t{1} << 12;
  auto runtime = device::SimulatedRuntime::Create(small);
  ASSERT_THAT(runtime, IsOk());
  auto context = device::Context::Create(*std::move(runtime), {});
  ASSERT_THAT(context, IsOk());
  auto batches = DeviceBatches::Create(Device(**context, 0));
  ASSERT_THAT(batches, IsOk());
  const Rows data(200);
  const auto loader = Load(data, GetParam(), *batches, 100);
  for (int i = 0; i < 2; ++i) {
    const auto batch = loader->Next();
    EXPECT_THAT(batch, StatusIs(kExhausted));
    EXPECT_THAT(batch.status().ToString(), HasSubstr("simulated:0"));
  }
  WEFT_ASSERT_OK_AND_ASSIGN(const auto none, loader->Next());
  EXPECT_FALSE(none.has_value());
}

// "kUnavailable  the device is lost [...] final": each batch from then on, with
// its name; batches, loader and device end in any order.
TEST_P(Batches, OfALostDeviceAreErrors) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const Rows data(100);
    auto batches = BatchesOf(devices);
    auto loader = Load(data, GetParam(), batches);
    WEFT_ASSERT_OK_AND_ASSIGN(auto first, loader->Next());
    ASSERT_TRUE(first.has_value());
    devices.runtime().LoseDevice(devices.context().device(0));
    for (int i = 0; i < 10; ++i) {
      const auto batch = loader->Next();
      EXPECT_THAT(batch, StatusIs(kLost));
      EXPECT_THAT(batch.status().ToString(), HasSubstr("simulated:0"));
    }
    if (seed % 2 == 0) batches.reset();
    loader.reset();
    first.reset();
  }
}

// "does not wait for that": nor does Next for a device that stands still, nor
// the end of a loader for ever.
TEST_P(Batches, OfADeviceThatHangsComeAtOnceAndEnd) {
  SimulatedDevices devices(4);
  const Rows data(12);
  const auto batches = BatchesOf(devices);
  auto loader = Load(data, GetParam(), batches);
  devices.runtime().SetHangs(batches->stream(), true);
  std::vector<Example> kept;
  for (int i = 0; i < 3; ++i) {
    WEFT_ASSERT_OK_AND_ASSIGN(auto batch, loader->Next());
    ASSERT_TRUE(batch.has_value());
    kept.push_back(*std::move(batch));
  }
  loader.reset();
  devices.runtime().SetHangs(batches->stream(), false);
  for (int64_t i = 0; i < 3; ++i) ExpectRows(kept[i], 4 * i, 4);
}

// "Several loaders may have one", each on the thread and the stream of its own.
TEST_P(Batches, OfManyConsumersAreEachOnesOwn) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const Rows data(60);
    const auto batches = BatchesOf(devices);
    std::vector<std::thread> consumers;
    for (int who = 0; who < 3; ++who) {
      consumers.emplace_back([&] {
        auto stream =
            devices.runtime().CreateStream(devices.context().device(0));
        ASSERT_THAT(stream, IsOk());
        const device::StreamScope scope(*stream);
        const auto loader = Load(data, GetParam(), batches);
        std::vector<Tensor> doubled;
        for (int64_t i = 0; i < 15; ++i) {
          auto batch = loader->Next();
          ASSERT_THAT(batch, IsOk());
          ASSERT_TRUE(batch->has_value());
          if (i % 2 == 0) {
            ExpectRows(**batch, 4 * i, 4);
          } else {
            doubled.push_back(Add((**batch)[0], (**batch)[0]));
          }
        }
        for (size_t i = 0; i < doubled.size(); ++i) {
          EXPECT_EQ(doubled[i].ToVector<float>()[0],
                    2.0f * (1 + 4 * (2 * static_cast<float>(i) + 1)));
        }
      });
    }
    for (std::thread& consumer : consumers) consumer.join();
    WEFT_EXPECT_OK(devices.runtime().Health(devices.context().device(0)));
  }
}

// "pinned memory, as much as batches were under way at one time".
TEST_P(Batches, TakePinnedMemoryForThoseUnderWayAlone) {
  SimulatedDevices devices(5);
  const Rows data(400);
  const auto batches = BatchesOf(devices);
  {
    const auto loader = Load(data, GetParam(), batches);
    for (int64_t i = 0; i < 100; ++i) {
      WEFT_ASSERT_OK_AND_ASSIGN(const auto batch, loader->Next());
      ASSERT_TRUE(batch.has_value());
      ExpectRows(*batch, 4 * i, 4);
    }
  }
  // A batch has 832 bytes; a block may be as large as a page of the runtime.
  const int64_t under_way = GetParam().prefetch + GetParam().threads + 2;
  EXPECT_GT(batches->pinned_bytes(), 0);
  EXPECT_LE(batches->pinned_bytes(), under_way * 8192);
}

// "kInvalidArgument names the option, its value and what is allowed."
TEST(BatchOptions, ThatMakeNoSenseAreNamed) {
  SimulatedDevices devices(1);
  const Rows data(8);
  const input::ShardedSampler sampler = InOrder(8);
  const auto create = [&](const std::function<void(DataLoader::Options&)>& f) {
    DataLoader::Options options;
    options.device_batches = BatchesOf(devices);
    f(options);
    return DataLoader::Create(data, sampler, options).status();
  };
  struct Wrong {
    const char* name;
    const char* value;
    std::function<void(DataLoader::Options&)> set;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {"prefetch", "0", [](auto& o) { o.prefetch = 0; }},
           {"prefetch", "-3", [](auto& o) { o.prefetch = -3; }},
           {"threads", "-1", [](auto& o) { o.threads = -1; }},
           {"batch_size", "0", [](auto& o) { o.batch_size = 0; }},
           {"batch_size", "-5", [](auto& o) { o.batch_size = -5; }},
       }) {
    const absl::Status status = create(wrong.set);
    EXPECT_THAT(status, StatusIs(kInvalid)) << wrong.name << wrong.value;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(wrong.name), HasSubstr(wrong.value)));
  }
}

// "kInvalidArgument for the CPU."
TEST(BatchOptions, OfTheCpuAreRefused) {
  EXPECT_THAT(DeviceBatches::Create(Device::Cpu()), StatusIs(kInvalid));
}

// "kDeadlineExceeded after `timeout`; the next call waits for the same batch
// again."
TEST(SlowBatches, ComeInTheirPlaceOnceTheyAreThere) {
  SimulatedDevices devices(1);
  std::atomic<bool> may_go{false};
  const Rows data(8, [&](int64_t index) {
    if (index == 4) (void)Becomes([&] { return may_go.load(); });
    return absl::OkStatus();
  });
  const input::ShardedSampler sampler = InOrder(8);
  DataLoader::Options options;
  options.batch_size = 4;
  options.timeout = absl::Milliseconds(20);
  options.device_batches = BatchesOf(devices);
  auto loader = DataLoader::Create(data, sampler, options);
  ASSERT_THAT(loader, IsOk());
  ASSERT_TRUE(Becomes([&] {
    const auto first = (*loader)->Next();
    return first.ok() && first->has_value();
  }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT((*loader)->Next(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ((*loader)->state().used, 4);
  }
  may_go = true;
  ASSERT_TRUE(Becomes([&] {
    const auto batch = (*loader)->Next();
    if (!batch.ok()) return false;
    if (batch->has_value()) ExpectRows(**batch, 4, 4);
    return batch->has_value();
  }));
  EXPECT_EQ((*loader)->state().used, 8);
}

// "Has the tensors of `batch`, which are on the CPU, copied to tensors of the
// device": whatever these are.
TEST(OddBatches, KeepShapesDTypesAndElements) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    const auto batches = BatchesOf(devices);
    const Tensor base = Tensor::Arange(24, DType::kF32);
    Example odd = {Tensor::Zeros({0, 3}),
                   Tensor::Full({}, 5),
                   base.View({4, 6}).Transpose(0, 1),
                   base.View({4, 6}).Slice(1, 2, 4),
                   Tensor::Full({1}, 3).Expand({1000}),
                   base,
                   base};
    for (const DType dtype : kAllDTypes) {
      odd.push_back(Tensor::Full({7}, 1, dtype));
    }
    WEFT_ASSERT_OK_AND_ASSIGN(auto copied, batches->Copy(odd));
    WEFT_ASSERT_OK_AND_ASSIGN(const Example found,
                              batches->Use(std::move(copied)));
    ASSERT_EQ(found.size(), odd.size());
    for (size_t i = 0; i < odd.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(found[i].device(), Device(devices.context(), 0));
      EXPECT_EQ(found[i].shape(), odd[i].shape());
      EXPECT_EQ(found[i].dtype(), odd[i].dtype());
      const Tensor here = found[i].To(Device::Cpu());
      if (here.numel() == 0) continue;
      EXPECT_EQ(here.To(DType::kF64).ToVector<double>(),
                odd[i].Contiguous().To(DType::kF64).ToVector<double>());
    }
  }
}

TEST(OddBatches, OfNothingAreNothing) {
  SimulatedDevices devices(1);
  const auto batches = BatchesOf(devices);
  for (const Example& nothing : {Example{}, Example{Tensor::Zeros({0})}}) {
    WEFT_ASSERT_OK_AND_ASSIGN(auto copied, batches->Copy(nothing));
    WEFT_ASSERT_OK_AND_ASSIGN(const Example found,
                              batches->Use(std::move(copied)));
    EXPECT_EQ(found.size(), nothing.size());
  }
}

// "`batch` may be dropped at once", and be written to, too; batches that were
// copied may be used in any order, or never.
TEST(OddBatches, MayBeOverwrittenAtOnceAndUsedInAnyOrder) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedDevices devices(seed);
    auto batches = BatchesOf(devices);
    const Tensor source = Tensor::Zeros({300});
    std::vector<DeviceBatches::Batch> copied;
    for (int i = 0; i < 9; ++i) {
      source.Fill(i);
      auto one = batches->Copy({source});
      ASSERT_THAT(one, IsOk());
      copied.push_back(*std::move(one));
    }
    source.Fill(-1);
    std::vector<std::pair<int, Example>> used;
    for (const int i : {8, 0, 5, 2, 7}) {
      WEFT_ASSERT_OK_AND_ASSIGN(auto one, batches->Use(std::move(copied[i])));
      used.emplace_back(i, std::move(one));
    }
    copied.clear();
    batches.reset();
    for (const auto& [i, batch] : used) {
      EXPECT_EQ(batch[0].ToVector<float>(),
                std::vector<float>(300, static_cast<float>(i)));
    }
  }
}

}  // namespace
}  // namespace weft::outside
