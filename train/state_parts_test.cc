#include "weft/train/state_parts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two small ones, one without elements, and one of more than two parts.
std::vector<StateParts::NamedTensor> Tensors(float first) {
  const int64_t large = (int64_t{5} << 20) / 4;
  std::vector<float> values(static_cast<size_t>(large));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = first + static_cast<float>(i % 1000);
  }
  return {{"small", Tensor::FromVector<float>({first, 2, 3})},
          {"empty", Tensor::Zeros({0, 4}, DType::kF32)},
          {"large", Tensor::FromVector<float>(values, {large / 64, 64})},
          {"count", Tensor::Scalar<int64_t>(static_cast<int64_t>(first))}};
}

TEST(StateParts, SmallTensorsArePackedAndLargeOnesCut) {
  const StateParts parts(Tensors(1));
  const int64_t most = int64_t{2} << 20;
  EXPECT_THAT(parts.bytes(), ElementsAre(20, most, most, most / 2));
  EXPECT_THAT(parts.All(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(parts.pieces(), 5u);
}

TEST(StateParts, WhatIsSentBecomesTheStateOfWhoReceivesIt) {
  const StateParts source(Tensors(1));
  const StateParts other(Tensors(5));
  const std::vector<uint64_t> wanted = source.Hashes();
  EXPECT_THAT(source.Differing(source.All(), wanted), IsEmpty());
  EXPECT_THAT(other.Differing(other.All(), wanted), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(other.Differing({3, 1}, wanted), ElementsAre(3, 1));
  for (const int part : {2, 0}) {
    const Tensor incoming = other.Incoming(part);
    incoming.CopyFrom(source.Outgoing(part));
    other.Place(part, incoming);
  }
  EXPECT_THAT(other.Differing(other.All(), wanted), ElementsAre(1, 3));
  EXPECT_THAT(other.DifferingOf(0, 4, other.Hashes(), wanted),
              ElementsAre(1, 3));
  EXPECT_THAT(other.DifferingOf(2, 4, other.Hashes(), wanted), ElementsAre(3));
  EXPECT_THAT(other.Difference(3, wanted),
              ::testing::StartsWith("large with bits of hash "));
}

TEST(StateParts, HashesOfSomePartsAreThoseOfTheirPieces) {
  const StateParts parts(Tensors(1));
  const std::vector<uint64_t> all = parts.Hashes();
  EXPECT_EQ(parts.pieces_of(0, 4), all.size());
  EXPECT_EQ(parts.pieces_of(0, 1), 2u);
  EXPECT_EQ(parts.pieces_of(4, 4), 0u);
  std::vector<uint64_t> joined = parts.HashesOf(0, 1);
  for (const uint64_t hash : parts.HashesOf(1, 4)) joined.push_back(hash);
  EXPECT_EQ(joined, all);
}

TEST(StateParts, TensorsThatShareMemoryAreFound) {
  EXPECT_FALSE(StateParts(Tensors(1)).share_memory());
  const Tensor whole = Tensor::Zeros({10}, DType::kF32);
  const Tensor head = whole.Slice(0, 0, 5);
  EXPECT_FALSE(StateParts({{"head", head}, {"tail", whole.Slice(0, 5, 10)}})
                   .share_memory());
  EXPECT_TRUE(StateParts({{"head", head}, {"tail", whole.Slice(0, 4, 10)}})
                  .share_memory());
}

TEST(StateParts, PieceThatDiffersIsNamed) {
  const auto tensors = Tensors(1);
  const StateParts parts(tensors);
  const std::vector<uint64_t> wanted = parts.Hashes();
  tensors[3].tensor.Fill(9);
  EXPECT_THAT(parts.Differing(parts.All(), wanted), ElementsAre(0));
  EXPECT_THAT(parts.Difference(0, wanted),
              ::testing::StartsWith("count with bits of hash "));
}

TEST(StateParts, TensorsOfADeviceAreWrittenBack) {
  device::testing::SimulatedDevices devices(7);
  const Device device(devices.context(), 0);
  const Tensor there = Tensor::FromVector<float>({1, 2, 3}).To(device);
  const StateParts parts({{"there", there}});
  const Tensor incoming = parts.Incoming(0);
  incoming.CopyFrom(Tensor::FromVector<float>({4, 5, 6}));
  parts.Place(0, incoming);
  parts.WriteBack();
  EXPECT_THAT(there.To(Device::Cpu()).ToVector<float>(), ElementsAre(4, 5, 6));
}

}  // namespace
}  // namespace weft::train
