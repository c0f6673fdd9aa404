#include "weft/ps/wire/push_encoder.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps::internal {
namespace {

using ::testing::ElementsAre;
using v1::TableSpec;
using v1::WireValues;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::unique_ptr<TableLayout> Layout(TableSpec::Mode mode, WireDtype push,
                                    int64_t residual_bytes = 0) {
  TableSpec spec;
  spec.set_name("t");
  spec.set_kind(TableSpec::SPARSE);
  spec.set_dim(1);
  spec.set_mode(mode);
  spec.set_shards(2);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  spec.mutable_wire()->set_push(push);
  spec.mutable_wire()->set_residual_bytes(residual_bytes);
  return *TableLayout::Create(spec);
}

// What arrives of rows of one value.
class Pushes {
 public:
  explicit Pushes(std::unique_ptr<TableLayout> layout)
      : layout_(std::move(layout)), encoder_(*layout_) {}

  std::vector<float> Send(int shard, int64_t round, std::vector<uint64_t> keys,
                          std::vector<float> rows) {
    const auto n = static_cast<int64_t>(rows.size());
    const Tensor bytes =
        encoder_.Encode(shard, round, keys, Tensor::FromVector(rows, {n, 1}));
    std::vector<float> sent(n);
    ReadWire(*layout_, layout_->spec().wire().push(), keys,
             reinterpret_cast<const char*>(bytes.data<uint8_t>()), sent.data());
    return sent;
  }
  PushEncoder& encoder() { return encoder_; }

 private:
  const std::unique_ptr<TableLayout> layout_;
  PushEncoder encoder_;
};

// BF16 has 256 and 258, and not 257.
TEST(PushEncoder, WhatAPushLosesOfARowIsAddedToItsNext) {
  Pushes pushes(Layout(TableSpec::ASYNC, WireValues::BF16));
  EXPECT_THAT(pushes.Send(0, 0, {7, 8}, {257, 1}), ElementsAre(256, 1));
  EXPECT_THAT(pushes.Send(0, 0, {8}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(0, 0, {7, 8}, {257, 1}), ElementsAre(258, 2));
  EXPECT_THAT(pushes.Send(0, 0, {7, 8}, {257, 1}), ElementsAre(256, 1));
}

TEST(PushEncoder, EachShardHasItsOwnResiduals) {
  Pushes pushes(Layout(TableSpec::SYNC, WireValues::BF16));
  EXPECT_THAT(pushes.Send(0, 0, {7}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(1, 0, {7}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(0, 1, {7}, {257}), ElementsAre(258));
  EXPECT_THAT(pushes.Send(1, 1, {7}, {257}), ElementsAre(258));
}

TEST(PushEncoder, PartThatIsEncodedAgainIsTheFirstOne) {
  Pushes pushes(Layout(TableSpec::SYNC, WireValues::BF16));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(pushes.Send(0, 0, {7}, {257}), ElementsAre(256));
    EXPECT_THAT(pushes.Send(0, 0, {8}, {1}), ElementsAre(1));
  }
  EXPECT_THAT(pushes.Send(0, 1, {7}, {257}), ElementsAre(258));
  // A part of an earlier round uses no residuals and leaves none.
  EXPECT_THAT(pushes.Send(0, 0, {7}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(0, 2, {7}, {257}), ElementsAre(256));
}

TEST(PushEncoder, ResidualsAreWithinTheirBytes) {
  Pushes pushes(
      Layout(TableSpec::ASYNC, WireValues::BF16, Residuals::BytesOfRow(1)));
  EXPECT_THAT(pushes.Send(0, 0, {7}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(0, 0, {8}, {257}), ElementsAre(256));
  EXPECT_THAT(pushes.Send(0, 0, {8}, {257}), ElementsAre(258));
  EXPECT_THAT(pushes.Send(0, 0, {7}, {257}), ElementsAre(256)) << "8 is kept";
}

TEST(PushEncoder, InF32TheTensorIsSentAsItIs) {
  Pushes pushes(Layout(TableSpec::SYNC, WireValues::F32));
  const Tensor rows = Tensor::FromVector<float>({257}, {1, 1});
  const Tensor sent = pushes.encoder().Encode(0, 0, {7}, rows);
  EXPECT_EQ(sent.data<float>(), rows.data<float>());
}

TEST(PushEncoder, OnlyInt8RefusesWhatIsNotFinite) {
  const Tensor nan = Tensor::FromVector<float>(
      {1, std::numeric_limits<float>::quiet_NaN()}, {2, 1});
  for (const WireDtype dtype :
       {WireValues::F32, WireValues::F16, WireValues::BF16}) {
    Pushes pushes(Layout(TableSpec::SYNC, dtype));
    EXPECT_THAT(pushes.encoder().Check(nan), IsOk());
  }
  Pushes pushes(Layout(TableSpec::SYNC, WireValues::INT8));
  EXPECT_THAT(pushes.encoder().Check(nan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table 't': gradients: element 1 of 2 is nan"));
}

}  // namespace
}  // namespace weft::ps::internal
