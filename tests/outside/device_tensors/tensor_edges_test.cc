// Tensors on devices as a user who guesses would use them: empty ones, views,
// every dtype, copies between devices, wrapped memory, contexts that end, short
// memory, many threads and two streams.

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

// --- Nothing, in every kind of operation. ------------------------------------

TEST(EmptyTensors, InArithmeticAreAsOnTheCpu) {
  for (const Shape& shape :
       {Shape{0}, Shape{0, 3}, Shape{3, 0}, Shape{2, 0, 4}}) {
    ExpectSameOnDevice("arithmetic", {F32(shape), F32(shape), F32({1})},
                       [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
                         const Tensor mask = Less(in[0], in[1]);
                         Add_(in[0], in[2]);
                         Axpy_(in[0], 2, in[1]);
                         Relu_(in[0]);
                         return {in[0],
                                 Add(in[0], in[1]),
                                 Div(in[0], 2.0),
                                 Exp(in[0]),
                                 Pow(in[0], 2),
                                 Gelu(in[0]),
                                 mask,
                                 Where(mask, in[0], in[1]),
                                 Neg(in[0]),
                                 MaskedFill(in[0], mask, 1),
                                 in[0].Clone(),
                                 in[0].To(DType::kF64),
                                 Clamp(in[0], 0, 1),
                                 LogicalNot(mask)};
                       });
  }
}

TEST(EmptyTensors, InReductionsAreAsOnTheCpu) {
  for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}}) {
    ExpectSameOnDevice(
        "reductions", {F32(shape)},
        [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
          return {Sum(in[0]),          Sum(in[0], {0}),  Sum(in[0], {1}, true),
                  Mean(in[0], {0}),    Mean(in[0], {1}), Mean(in[0]),
                  Var(in[0], {0}),     Std(in[0]),       Centered(in[0], {0}),
                  Cumsum(in[0], 0),    Cumsum(in[0], 1), Softmax(in[0], 0),
                  LogSoftmax(in[0], 1)};
        });
    SimulatedDevices devices(1);
    const Tensor x = F32(shape).To(Device(devices.context(), 0));
    EXPECT_TRUE(AllFinite(x));
    EXPECT_EQ(SquaredNorm(x), 0);
    EXPECT_THAT(StatusOf([&] { Max(x); }), StatusIs(kInvalid));
    EXPECT_THAT(StatusOf([&] { ArgMax(x, shape[0] == 0 ? 0 : 1); }),
                StatusIs(kInvalid));
    EXPECT_THAT(devices.runtime().Health(x.device().id()), IsOk());
  }
}

TEST(EmptyTensors, InProductsAreAsOnTheCpu) {
  for (const auto& [a, b] : {std::pair<Shape, Shape>{{0, 3}, {3, 2}},
                             {{2, 0}, {0, 3}},
                             {{2, 3}, {3, 0}},
                             {{0, 0}, {0, 0}},
                             {{0, 2, 3}, {3, 4}}}) {
    ExpectSameOnDevice("products", {F32(a), F32(b)},
                       [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
                         return {
                             MatMul(in[0], in[1]),
                             Linear(in[0], in[1].Transpose(0, 1), Tensor())};
                       });
  }
}

TEST(EmptyTensors, InIndexingAreAsOnTheCpu) {
  const Tensor none = Tensor::Empty({0}, DType::kI64);
  ExpectSameOnDevice(
      "indexing",
      {F32({4, 3}), none, F32({0, 3}), Tensor::Empty({0, 3}, DType::kI64)},
      [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
        IndexAdd_(in[0], 0, in[1], in[2]);
        ScatterAdd_(in[0], 0, in[3], in[2]);
        const SparseRows rows = EmbeddingBackward(in[2], in[1], 4);
        const SparseRows sums = Coalesce(rows);
        AddRows_(in[0], 2, rows);
        return {in[0],
                IndexSelect(in[0], 0, in[1]),
                Gather(in[0], 0, in[3]),
                Concat({in[2], in[0], in[2]}, 0),
                Concat({in[2], in[2]}, 0),
                Stack({in[2], in[2]}, 1),
                OneHot(in[1], 5),
                Tril(in[2]),
                Embedding(in[0], in[1]),
                ToDense(rows),
                ToDense(sums),
                sums.values,
                sums.indices,
                EmbeddingBag(in[0], in[1], in[1], BagMode::kMean),
                TopK(in[0], 0, 0).values,
                TopK(in[2], 2, 1).indices};
      });
}

TEST(EmptyTensors, InLossesAndNormsAreAsOnTheCpu) {
  ExpectSameOnDevice(
      "losses",
      {F32({0, 3}), Tensor::Empty({0}, DType::kI64), F32({0, 3}), F32({3})},
      [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
        std::vector<Tensor> out;
        for (const Reduction reduction :
             {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
          out.push_back(CrossEntropy(in[0], in[1], reduction).loss);
          out.push_back(NllLoss(in[0], in[1], reduction));
          out.push_back(MseLoss(in[0], in[2], reduction));
          out.push_back(HuberLoss(in[0], in[2], 1, reduction));
          out.push_back(BceWithLogits(in[0], in[2], reduction));
        }
        out.push_back(LayerNorm(in[0], {3}, in[3], in[3]).y);
        out.push_back(RmsNorm(in[0], {3}, in[3]).y);
        return out;
      });
}

TEST(EmptyTensors, OfEveryDTypeCanBeMovedCopiedAndPrinted) {
  SimulatedDevices devices(2, 2);
  for (const DType dtype : kAllDTypes) {
    SCOPED_TRACE(std::string(Name(dtype)));
    for (int index = 0; index < 2; ++index) {
      const Device device(devices.context(), index);
      const Tensor x = Tensor::Zeros({2, 0, 3}, dtype, device);
      EXPECT_EQ(x.device(), device);
      EXPECT_EQ(Tensor::Empty({0}, dtype).To(device).device(), device);
      EXPECT_EQ(ToString(x.To(Device::Cpu())).empty(), ToString(x).empty());
      x.Fill(1);
      x.CopyFrom(Tensor::Empty({2, 0, 3}));
      x.CopyFrom(Tensor::Ones({1, 1, 1}).To(Device(devices.context(), 0)));
      EXPECT_EQ(x.Transpose(0, 2).Contiguous().shape(), (Shape{3, 0, 2}));
      EXPECT_EQ(x.Slice(0, 1, 1).Clone().numel(), 0);
      EXPECT_EQ(x.Reshape({0, 6}).To(DType::kF64).device(), device);
      EXPECT_EQ(x.To(Device(devices.context(), 1 - index)).numel(), 0);
    }
  }
}

TEST(ScalarTensors, Of0DimensionsAreAsOnTheCpu) {
  ExpectSameOnDevice("scalars",
                     {F32({}), F32({}), Tensor::Scalar<int64_t>(0), F32({3})},
                     [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
                       return {Add(in[0], in[1]),
                               Add(in[3], in[0]),
                               Sum(in[0]),
                               Mean(in[0]),
                               Max(in[0]),
                               in[0].Expand({2, 3}),
                               in[0].Reshape({1, 1}),
                               in[0].Unsqueeze(0),
                               OneHot(in[2], 3),
                               Embedding(in[3].View({3, 1}), in[2]),
                               Stack({in[0], in[1]}, 0),
                               in[0].Clone()};
                     });
}

TEST(Random, DrawsByADevicesWeightsAreThoseOfTheCpuOrATypedError) {
  SimulatedDevices devices(2);
  const Device device(devices.context(), 0);
  const Tensor weights = Abs(F32({3, 5}));
  for (const bool of_logits : {false, true}) {
    const auto draw = [&](const Tensor& from) {
      Generator random(7);
      return of_logits ? Categorical(from, random)
                       : Multinomial(from, 4, true, random);
    };
    Tensor found;
    const absl::Status status =
        StatusOf([&] { found = draw(weights.To(device)); });
    if (status.ok()) {
      EXPECT_EQ(BytesOf(found), BytesOf(draw(weights)));
    } else {
      EXPECT_THAT(status, StatusIs(kInvalid, "simulated:0"));
    }
  }
  EXPECT_THAT(devices.runtime().Health(device.id()), IsOk());
}

// --- To, of what is not contiguous, of every dtype. --------------------------

TEST(To, TakesViewsOfEveryDTypeThereAndBack) {
  SimulatedDevices devices(5, 2);
  const Device first(devices.context(), 0), second(devices.context(), 1);
  for (const DType dtype : kAllDTypes) {
    SCOPED_TRACE(std::string(Name(dtype)));
    const Tensor base = Tensor::Arange(24).To(dtype);
    const Tensor there = base.To(first);
    const std::vector<Tensor> wanted = weft::testing::ViewsOf(base);
    const std::vector<Tensor> found = weft::testing::ViewsOf(there);
    for (size_t i = 0; i < wanted.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(BytesOf(found[i]), BytesOf(wanted[i]));
      const Tensor other = found[i].To(second);
      EXPECT_TRUE(other.is_contiguous());
      EXPECT_EQ(other.device(), second);
      EXPECT_EQ(BytesOf(other), BytesOf(wanted[i]));
      EXPECT_EQ(BytesOf(wanted[i].To(first)), BytesOf(wanted[i]));
      EXPECT_EQ(BytesOf(found[i].Contiguous()), BytesOf(wanted[i]));
      EXPECT_EQ(ToString(found[i]).substr(0, 3),
                ToString(wanted[i]).substr(0, 3));
      for (const DType to : kAllDTypes) {
        EXPECT_EQ(BytesOf(found[i].To(to)), BytesOf(wanted[i].To(to)))
            << Name(to);
      }
    }
  }
}

TEST(To, TheSameDeviceIsTheSameTensorAndACopyIsIndependent) {
  SimulatedDevices devices(5);
  const Device device(devices.context(), 0);
  const Tensor x = F32({2, 3});
  const Tensor y = x.To(device);
  EXPECT_TRUE(y.To(device).IsSameAs(y));
  EXPECT_TRUE(x.To(Device::Cpu()).IsSameAs(x));
  const std::string before = BytesOf(x);
  x.Fill(7);  // after the copy was asked for
  EXPECT_EQ(BytesOf(y), before);
  const Tensor back = y.To(Device::Cpu());
  y.Fill(9);
  EXPECT_EQ(BytesOf(back), before);
}

TEST(Host, NeedsToCpuFirstAndTheMessageSaysSo) {
  SimulatedDevices devices(5);
  const Tensor x = F32({2}).To(Device(devices.context(), 0));
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { x.data<float>(); }, [&] { x.raw(); },
           [&] { x.span<float>(); }}) {
    EXPECT_THAT(StatusOf(call), StatusIs(kInvalid, "simulated:0"));
  }
  EXPECT_THAT(StatusOf([&] { x.item<float>(); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { x.ToVector<double>(); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { x.Select(0, 0).item<int64_t>(); }),
              StatusIs(kInvalid));
  EXPECT_THAT(x.Describe(), HasSubstr("simulated:0"));
  std::ostringstream out;
  out << x;
  EXPECT_THAT(out.str(), HasSubstr("f32[2]"));
}

// --- Writes. -----------------------------------------------------------------

TEST(CopyFrom, AcrossDevicesCastsAndStretches) {
  SimulatedDevices devices(7, 2);
  const Device places[] = {Device::Cpu(), Device(devices.context(), 0),
                           Device(devices.context(), 1)};
  const Tensor source = Tensor::FromVector<double>({-1.5, 0, 2.75}, {1, 3});
  for (const Device to : places) {
    for (const Device from : places) {
      for (const DType dtype :
           {DType::kF32, DType::kI64, DType::kF16, DType::kBool}) {
        SCOPED_TRACE(Name(from) + " -> " + Name(to) + " " +
                     std::string(Name(dtype)));
        const Tensor wanted = Tensor::Zeros({3, 2}, dtype);
        wanted.Transpose(0, 1).CopyFrom(source);
        const Tensor found = Tensor::Zeros({3, 2}, dtype, to);
        const uint64_t version = found.version();
        found.Transpose(0, 1).CopyFrom(source.To(from));
        EXPECT_GT(found.version(), version);
        EXPECT_EQ(BytesOf(found), BytesOf(wanted));
      }
    }
  }
}

TEST(CopyFrom, MayOverlap) {
  ExpectSameOnDevice("overlap", {F32({6}), F32({3, 3}), F32({4})},
                     [](absl::Span<const Tensor> in) -> std::vector<Tensor> {
                       in[0].Slice(0, 1, 6).CopyFrom(in[0].Slice(0, 0, 5));
                       in[0].Slice(0, 0, 5).CopyFrom(in[0].Slice(0, 1, 6));
                       in[1].CopyFrom(in[1].Transpose(0, 1));
                       in[2].CopyFrom(in[2]);
                       Add_(in[2], in[2]);
                       return {in[0], in[1], in[2]};
                     });
}

TEST(Writes, IntoExpandedOnesAndOfValuesThatDoNotFitAreRefused) {
  SimulatedDevices devices(7);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Zeros({1, 3}, DType::kF32, device);
  EXPECT_THAT(StatusOf([&] { x.Expand({2, 3}).Fill(1); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] {
                x.Expand({2, 3}).CopyFrom(Tensor::Ones({2, 3}));
              }),
              StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] {
                x.CopyFrom(Tensor::Ones({2, 3}));
              }),
              StatusIs(kInvalid));
  const Tensor bytes = Tensor::Zeros({2}, DType::kU8, device);
  EXPECT_THAT(StatusOf([&] { bytes.Fill(256); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { Tensor::Full({2}, -1, DType::kU8, device); }),
              StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { Add(bytes, 0.5); }), StatusIs(kInvalid));
  EXPECT_THAT(devices.runtime().Health(device.id()), IsOk());
  for (const DType dtype : kAllDTypes) {
    const Tensor y = Tensor::Zeros({2, 3}, dtype, device);
    y.Select(1, 1).Fill(1);
    const Tensor wanted = Tensor::Zeros({2, 3}, dtype);
    wanted.Select(1, 1).Fill(1);
    EXPECT_EQ(BytesOf(y), BytesOf(wanted)) << Name(dtype);
  }
}

TEST(Writes, BeginUpdateKeepsWhatIsHeld) {
  SimulatedDevices devices(7);
  const Tensor x = F32({100}).To(Device(devices.context(), 0));
  const std::string before = BytesOf(x);
  x.storage()->KeepVersions();
  uint64_t version = 0;
  const IntrusivePtr<HeldVersion> held = x.storage()->Hold(&version);
  ASSERT_TRUE(held);
  x.BeginUpdate();
  x.Fill(3);
  ASSERT_TRUE(held->copy());
  const Tensor copy =
      Tensor::FromStorage(held->copy(), 0, {100}, {1}, DType::kF32);
  EXPECT_EQ(copy.device(), x.device());
  EXPECT_EQ(BytesOf(copy), before);
  EXPECT_EQ(x.Select(0, 99).item<float>(), 3);
}

TEST(Division, ByIntegerZeroIsThrownAtOnceAndTheDeviceGoesOn) {
  SimulatedDevices devices(7);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Arange(3).To(device);
  EXPECT_THAT(StatusOf([&] { Div(x, x); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { Div(x, 0.0); }), StatusIs(kInvalid));
  EXPECT_THAT(StatusOf([&] { Div_(x, x); }), StatusIs(kInvalid));
  EXPECT_THAT(x.ToVector<int64_t>(), ElementsAre(0, 1, 2));
}

TEST(Indices, ThatDoNotExistFailTheDeviceWithTheReason) {
  SimulatedDevices devices(7, 2);
  const Device device(devices.context(), 0);
  const Tensor x = F32({4, 3}).To(device);
  const Tensor bad = Tensor::FromVector<int64_t>({0, 4}).To(device);
  const absl::Status status = StatusOf([&] {
    const Tensor y = IndexSelect(x, 0, bad);
    y.ToVector<float>();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(std::string(status.message()), HasSubstr("IndexSelect"));
  const absl::Status later = StatusOf([&] { Add(x, x); });
  EXPECT_THAT(later, StatusIs(absl::StatusCode::kInternal, "IndexSelect"));
  // The other device is not touched by that.
  const Device other(devices.context(), 1);
  EXPECT_EQ(Sum(Tensor::Ones({3}, DType::kF32, other)).item<float>(), 3);
}

// --- Memory of somebody else. ------------------------------------------------

TEST(FromBlob, OnADeviceUsesThatMemoryAndKeepsItsOwner) {
  SimulatedDevices devices(7);
  const Device device(devices.context(), 0);
  std::weak_ptr<const void> alive;
  const Tensor memory = F32({2, 3}).To(device);
  Tensor sum;
  {
    auto owner = std::make_shared<Tensor>(memory);
    alive = owner;
    const Tensor blob = Tensor::FromBlob(memory.address(), {3, 2}, DType::kF32,
                                         std::move(owner), device);
    EXPECT_EQ(blob.device(), device);
    EXPECT_EQ(BytesOf(blob), BytesOf(memory));
    blob.Fill(2);
    sum = Sum(blob);
  }
  EXPECT_EQ(sum.item<float>(), 12);
  EXPECT_EQ(BytesOf(memory), BytesOf(Tensor::Full({2, 3}, 2)));
  EXPECT_THAT(devices.runtime().Synchronize(device.id(), absl::Minutes(1)),
              IsOk());
  EXPECT_TRUE(alive.expired());
}

TEST(FromBlob, OfMemoryThatIsNotTheDevicesFailsTypedAndEndsNothing) {
  SimulatedDevices devices(7);
  const Device device(devices.context(), 0);
  std::vector<float> host(6, 1.0F);
  const absl::Status status = StatusOf([&] {
    const Tensor blob =
        Tensor::FromBlob(host.data(), {6}, DType::kF32, nullptr, device);
    Add(blob, blob).ToVector<float>();
  });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kUnknown) << status;
}

TEST(FromStorage, OutsideOfTheStorageOfADeviceIsRefused) {
  SimulatedDevices devices(7);
  const Tensor x = F32({6}).To(Device(devices.context(), 0));
  const Tensor view =
      Tensor::FromStorage(x.storage(), 5, {3}, {-2}, DType::kF32);
  EXPECT_EQ(view.device(), x.device());
  const std::vector<float> values = x.ToVector<float>();
  EXPECT_THAT(view.ToVector<float>(),
              ElementsAre(values[5], values[3], values[1]));
  for (const int64_t offset : {int64_t{-1}, int64_t{6}, int64_t{1} << 62}) {
    EXPECT_THAT(StatusOf([&] {
                  Tensor::FromStorage(x.storage(), offset, {2}, {1},
                                      DType::kF32);
                }),
                StatusIs(kInvalid));
  }
  EXPECT_THAT(StatusOf([&] {
                Tensor::FromStorage(x.storage(), 0, {4}, {1}, DType::kF64);
              }),
              StatusIs(kInvalid));
}

}  // namespace
}  // namespace weft::outside
