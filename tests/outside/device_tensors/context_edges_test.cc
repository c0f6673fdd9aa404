// Contexts of devices and what leaves them: two with devices of one name, ones
// that end before their tensors, odd names, short memory, many threads, two
// streams, payloads and files.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/check.h"
#include "weft/checkpoint/file_system.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/device/context.h"
#include "weft/device/current.h"
#include "weft/device/open.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/codec.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/norm.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/scan.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/payload.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/device_tensors/throws.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::BytesOf;
using ::weft::testing::ExpectSameOnDevice;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Tensor F32(const Shape& shape) {
  Generator random(3);
  return Normal(shape, 0, 1, random);
}

// --- Contexts and devices. ---------------------------------------------------

TEST(Contexts, LiveAsLongAsTheirTensors) {
  Tensor x, view, pending;
  {
    SimulatedDevices devices(8);
    x = F32({2, 3}).To(Device(devices.context(), 0));
    view = x.Select(0, 1);
    pending = MatMul(x, x.Transpose(0, 1));
  }
  x = Tensor();
  EXPECT_EQ(view.ToVector<float>().size(), 3);
  view = Tensor();
  EXPECT_EQ(BytesOf(pending),
            BytesOf(MatMul(F32({2, 3}), F32({2, 3}).Transpose(0, 1))));
  EXPECT_EQ(Sum(Add(pending, 1.0)).shape(), Shape{});
  // Ends here with work that nobody waits for.
  pending = Exp(pending);
}

TEST(Contexts, EmptyTensorsKeepThemToo) {
  Tensor none;
  {
    SimulatedDevices devices(8);
    none = Tensor::Zeros({0, 3}, DType::kF32, Device(devices.context(), 0));
  }
  EXPECT_EQ(none.device().context()->device_count(), 1);
  EXPECT_EQ(Sum(none).item<float>(), 0);
  EXPECT_THAT(none.To(Device::Cpu()).ToVector<float>(), IsEmpty());
}

TEST(Contexts, TwoWithDevicesOfOneNameAreTwoDevices) {
  SimulatedDevices one(1), two(2);
  const Device a(one.context(), 0), b(two.context(), 0);
  EXPECT_EQ(Name(a), Name(b));
  EXPECT_NE(a, b);
  const Tensor x = F32({2, 2});
  const Tensor at_a = x.To(a), at_b = x.To(b);
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { Add(at_a, at_b); }, [&] { MatMul(at_a, at_b); },
           [&] {
             Concat({at_a, at_b}, 0);
           },
           [&] {
             Stack({at_a, at_b}, 0);
           },
           [&] { Where(Less(at_a, at_a), at_a, at_b); },
           [&] { MseLoss(at_a, at_b); }, [&] { Add_(at_a, at_b); },
           [&] { LayerNorm(at_a, {2}, at_b.Select(0, 0), Tensor()); }}) {
    EXPECT_THAT(StatusOf(call), StatusIs(kInvalid));
  }
  // Copies between them go through.
  EXPECT_EQ(BytesOf(at_a.To(b)), BytesOf(x));
  at_b.Fill(4);
  at_a.CopyFrom(at_b);
  EXPECT_EQ(BytesOf(at_a), BytesOf(Tensor::Full({2, 2}, 4)));
}

TEST(Contexts, HaveNoOtherDevices) {
  SimulatedDevices devices(1, 2);
  for (const int index : {-1, 2, std::numeric_limits<int>::max(),
                          std::numeric_limits<int>::min()}) {
    EXPECT_THAT(StatusOf([&] { Device(devices.context(), index); }),
                StatusIs(kInvalid));
  }
}

TEST(OpenDevice, RefusesOddTexts) {
  for (const absl::string_view text :
       {"", " ", "CPU", "gpu", "cuda:-1", "simulated:", "simulated:-1",
        "simulated:99999999999999999999", "simulated:0x1", "simulated:1 ",
        "auto:0", "cpu:0", "cpu:1", "auto,cpu", "simulated:1:2"}) {
    EXPECT_THAT(device::OpenDevice(text), StatusIs(kInvalid)) << text;
    EXPECT_THAT(device::CheckDeviceText(text), StatusIs(kInvalid)) << text;
  }
  for (const absl::string_view text : {"cpu", "simulated", "auto"}) {
    EXPECT_THAT(device::OpenDevice(text, -1), StatusIs(kInvalid)) << text;
  }
}

TEST(OpenDevice, OpensSimulatedOnes) {
  for (const int local_rank : {0, 3, std::numeric_limits<int>::max()}) {
    WEFT_ASSERT_OK_AND_ASSIGN(const device::OpenedDevice opened,
                              device::OpenDevice("simulated", local_rank));
    ASSERT_NE(opened.context, nullptr);
    const Device device(*opened.context, opened.index);
    EXPECT_EQ(Sum(Tensor::Ones({3}, DType::kF32, device)).item<float>(), 3);
  }
  WEFT_ASSERT_OK_AND_ASSIGN(const device::OpenedDevice many,
                            device::OpenDevice("simulated:15"));
  EXPECT_EQ(many.index, 15);
  EXPECT_EQ(many.context->device_count(), 16);
  const Device device(*many.context, 15);
  EXPECT_EQ(Tensor::Ones({1}, DType::kF32, device).item<float>(), 1);
}

TEST(OpenDevice, OfMoreSimulatedDevicesThanThereCanBeIsAnError) {
  for (const absl::string_view text :
       {"simulated:2147483647", "simulated:100000000"}) {
    const absl::StatusOr<device::OpenedDevice> opened =
        device::OpenDevice(text);
    EXPECT_TRUE(opened.status().code() == kInvalid ||
                opened.status().code() == absl::StatusCode::kResourceExhausted)
        << text << ": " << opened.status();
  }
}

// --- Short memory. -----------------------------------------------------------

TEST(Memory, ThatIsShortIsAnErrorAndTheTensorsStay) {
  SimulatedDevices devices(9);
  const Device device(devices.context(), 0);
  const Tensor x = F32({10}).To(device);
  for (const int64_t elements :
       {int64_t{1} << 30, int64_t{1} << 40, int64_t{1} << 60}) {
    const absl::Status status =
        StatusOf([&] { Tensor::Empty({elements}, DType::kF32, device); });
    EXPECT_TRUE(status.code() == absl::StatusCode::kResourceExhausted ||
                status.code() == kInvalid)
        << status;
  }
  EXPECT_THAT(StatusOf([&] {
                x.View({10, 1}).Expand({10, int64_t{1} << 30}).Contiguous();
              }),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(BytesOf(Add(x, x)), BytesOf(Add(F32({10}), F32({10}))));
}

// --- Threads and streams. ----------------------------------------------------

TEST(Threads, ManyOnOneDeviceGetTheBitsOfTheCpu) {
  SimulatedDevices devices(10);
  const Device device(devices.context(), 0);
  const Tensor shared = F32({16, 16}).To(device);
  std::vector<std::string> found(6);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back([&, t] {
      Tensor x = F32({16, 16}).To(device);
      for (int i = 0; i < 20; ++i) x = Tanh(MatMul(x, shared));
      found[t] = BytesOf(x);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Tensor wanted = F32({16, 16});
  for (int i = 0; i < 20; ++i) wanted = Tanh(MatMul(wanted, F32({16, 16})));
  for (const std::string& bytes : found) EXPECT_TRUE(bytes == BytesOf(wanted));
}

// y = x + 1, made on one stream and read on another.
bool SeesIt(uint64_t seed, bool with_event) {
  SimulatedDevices devices(seed);
  const Device device(devices.context(), 0);
  device::Runtime& runtime = devices.runtime();
  const Tensor x = Tensor::Ones({64}, DType::kF32, device);
  WEFT_CHECK(runtime.Synchronize(device.id(), absl::Minutes(1)).ok());
  const device::Stream one = *runtime.CreateStream(device.id());
  const device::Stream two = *runtime.CreateStream(device.id());
  device::Event event = *runtime.CreateEvent(device.id());
  Tensor y, z;
  {
    const device::StreamScope scope(one);
    y = Add(x, 1.0);
    WEFT_CHECK(runtime.RecordEvent(event, one).ok());
  }
  {
    const device::StreamScope scope(two);
    if (with_event) WEFT_CHECK(runtime.StreamWaitEvent(two, event).ok());
    z = Sum(y);
    y = Tensor();  // its memory must wait for `two`
    const device::StreamScope inner(one);
    const Tensor other = Tensor::Full({64}, 9, DType::kF32, device);
  }
  const device::StreamScope scope(two);
  return z.item<float>() == 128;
}

TEST(Streams, AreOrderedByEventsAlone) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(SeesIt(seed, true)) << seed;
    wrong += SeesIt(seed, false) ? 0 : 1;
  }
  EXPECT_GT(wrong, 0) << "the simulation shows no missing event";
}

TEST(Streams, ThatHangEndTheWaitOfTheHostAndNothingElse) {
  SimulatedDevices devices(4);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Ones({3}, DType::kF32, device);
  WEFT_ASSERT_OK_AND_ASSIGN(const device::Stream stream,
                            devices.context().CurrentStream(0));
  devices.runtime().SetHangs(stream, true);
  const Tensor sum = Sum(x);
  constexpr absl::StatusCode kLate = absl::StatusCode::kDeadlineExceeded;
  EXPECT_THAT(StatusOf([&] { sum.item<float>(); }),
              StatusIs(kLate, "simulated:0"));
  EXPECT_THAT(StatusOf([&] { sum.ToVector<float>(); }), StatusIs(kLate));
  EXPECT_THAT(StatusOf([&] { ToString(sum); }), StatusIs(kLate));
  EXPECT_THAT(StatusOf([&] { Payload::Snapshot(sum); }), StatusIs(kLate));
  EXPECT_THAT(StatusOf([&] { AllFinite(x); }), StatusIs(kLate));
  devices.runtime().SetHangs(stream, false);
  EXPECT_EQ(sum.item<float>(), 3);
  EXPECT_THAT(devices.runtime().Health(device.id()), IsOk());
}

// --- What leaves the process. ------------------------------------------------

TEST(Payloads, OfADevicesTensorAreCopies) {
  SimulatedDevices devices(11);
  const Device device(devices.context(), 0);
  const Tensor x = F32({3, 4});
  for (const Tensor& view : weft::testing::ViewsOf(F32({24}).To(device))) {
    const std::string wanted = BytesOf(view);
    for (const Payload& payload :
         {Payload::Snapshot(view), Payload::Borrow(view),
          Payload::FreezeByMove(view)}) {
      EXPECT_EQ(payload.shape(), view.shape());
      WEFT_ASSERT_OK_AND_ASSIGN(const Bytes bytes, payload.Elements());
      EXPECT_EQ(std::string(bytes.view()), wanted);
    }
  }
  const Tensor there = x.To(device);
  const Payload borrowed = Payload::Borrow(there);
  there.Fill(0);  // a copy was made: nothing is lost
  EXPECT_THAT(borrowed.Elements(), IsOk());
  const Payload empty =
      Payload::Snapshot(Tensor::Zeros({0, 2}, DType::kF32, device));
  EXPECT_EQ(empty.bytes(), 0);
}

TEST(Payloads, OfALostDeviceAreATypedError) {
  SimulatedDevices devices(11);
  const Tensor x = F32({3, 4}).To(Device(devices.context(), 0));
  devices.runtime().LoseDevice(x.device().id());
  EXPECT_THAT(StatusOf([&] { Payload::Snapshot(x); }),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
  EXPECT_THAT(StatusOf([&] { x.To(Device::Cpu()); }),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
  EXPECT_THAT(StatusOf([&] { ToString(x); }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(StatusOf([&] { Add(x, x); }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(StatusOf([&] { Tensor::Zeros({2}, DType::kF32, x.device()); }),
              StatusIs(absl::StatusCode::kUnavailable));
  // Views and shapes are no work of the device.
  EXPECT_EQ(x.Transpose(0, 1).shape(), (Shape{4, 3}));
  EXPECT_THAT(x.Describe(), HasSubstr("f32[3, 4]"));
}

TEST(Calls, RefuseADevicesTensorByName) {
  SimulatedDevices devices(11);
  const Device device(devices.context(), 0);
  for (const Tensor& x : {F32({3, 4}).To(device), F32({100, 100}).To(device),
                          Tensor::Empty({0}, DType::kF32, device)}) {
    for (const bool is_moved : {false, true}) {
      rpc::Encoder encoder;
      EXPECT_THAT(StatusOf([&] {
                    if (is_moved) {
                      encoder.Write(Tensor(x.Clone()));
                    } else {
                      encoder.Write(1.0, x);
                    }
                  }),
                  IsOk())
          << "it fails the encoding and should not throw";
      EXPECT_THAT(std::move(encoder).Finish(),
                  StatusIs(kInvalid, "simulated:0"));
    }
    rpc::Encoder borrows;
    std::vector<Payload> borrowed;
    EXPECT_THAT(
        StatusOf([&] { rpc::internal::EncodeBorrowed(x, borrows, borrowed); }),
        IsOk());
    EXPECT_THAT(std::move(borrows).Finish(), StatusIs(kInvalid, "simulated:0"));
  }
}

TEST(Codec, OfADevicesTensorEndsNoProcess) {
  SimulatedDevices devices(11);
  const Tensor x = F32({3, 4});
  tensor::v1::Tensor message;
  const absl::Status status = StatusOf(
      [&] { message = EncodeTensor(x.To(Device(devices.context(), 0))); });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kInvalid, "simulated:0"));
    return;
  }
  WEFT_ASSERT_OK_AND_ASSIGN(const Tensor back, DecodeTensor(message));
  EXPECT_EQ(BytesOf(back), BytesOf(x));
}

class MemoryFile final : public checkpoint::WritableFile {
 public:
  explicit MemoryFile(std::string& content) : content_(content) {}
  absl::Status Append(absl::string_view bytes) override {
    content_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  std::string& content_;
};

TEST(Safetensors, OfADevicesTensorsAreThoseOfTheCpu) {
  SimulatedDevices devices(11);
  const Device device(devices.context(), 0);
  const auto write = [](const Tensor& base) {
    checkpoint::Safetensors content;
    content.tensors["none"] = base.Slice(0, 0, 0);
    content.tensors["view"] = weft::testing::ViewsOf(base)[1];
    content.tensors["whole"] = base;
    std::string file;
    MemoryFile out(file);
    WEFT_EXPECT_OK(checkpoint::WriteSafetensors(content, out));
    return file;
  };
  EXPECT_EQ(write(F32({24}).To(device)), write(F32({24})));
}

TEST(Safetensors, OfALostDeviceAreAStatus) {
  SimulatedDevices devices(11);
  checkpoint::Safetensors content;
  content.tensors["x"] = F32({2}).To(Device(devices.context(), 0));
  devices.runtime().LoseDevice(device::Device::Simulated(0));
  std::string file;
  MemoryFile out(file);
  absl::Status written;
  EXPECT_THAT(
      StatusOf([&] { written = checkpoint::WriteSafetensors(content, out); }),
      IsOk())
      << "it returns a Status and should not throw";
  EXPECT_FALSE(written.ok());
}

}  // namespace
}  // namespace weft::outside
