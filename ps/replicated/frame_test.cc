#include "weft/ps/replicated/frame.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class FrameTest : public ::testing::Test {
 protected:
  static std::unique_ptr<TableLayout> Layout(
      v1::TableSpec::Kind kind, WireDtype push = v1::WireValues::F32) {
    v1::TableSpec spec;
    spec.mutable_wire()->set_push(push);
    spec.set_name("t");
    spec.set_kind(kind);
    if (kind == v1::TableSpec::DENSE) spec.set_elements(5000);
    if (kind == v1::TableSpec::SPARSE) spec.set_dim(2);
    spec.set_mode(v1::TableSpec::ASYNC);
    spec.set_partitions(4);
    spec.mutable_rule()->mutable_adagrad()->set_lr(1);
    return *TableLayout::Create(spec);
  }

  // `n` keys of a partition, in the order of messages.
  std::vector<uint64_t> KeysOf(int partition, size_t n) const {
    std::vector<uint64_t> keys;
    for (uint64_t key = 0; keys.size() < n; ++key) {
      if (placement_.PartitionOfKey(key) == partition) keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end(),
              [](uint64_t a, uint64_t b) { return Mix64(a) < Mix64(b); });
    return keys;
  }

  std::vector<float> FloatsIn(const Frame& frame) const {
    const TableLayout& layout =
        frame.dtype == v1::WireValues::F32 ? *sparse_ : *int8_;
    std::vector<float> memory;
    const float* const floats = FloatsOf(frame, layout, memory);
    return {floats, floats + 2 * frame.keys.size()};
  }
  Bytes Int8Gradient(const std::vector<uint64_t>& keys,
                     const std::vector<float>& rows) const {
    std::string values(WireBytes(*int8_, v1::WireValues::INT8, keys), 'x');
    WriteWire(*int8_, v1::WireValues::INT8, keys, rows.data(), values.data());
    return EncodeGradient(v1::WireValues::INT8, keys, values);
  }

  const std::unique_ptr<TableLayout> sparse_ = Layout(v1::TableSpec::SPARSE);
  const std::unique_ptr<TableLayout> dense_ = Layout(v1::TableSpec::DENSE);
  const std::unique_ptr<TableLayout> int8_ =
      Layout(v1::TableSpec::SPARSE, v1::WireValues::INT8);
  const Placement placement_{"t", 4, 1};
};

TEST_F(FrameTest, GradientInTheDtypeOfTheTableComesBack) {
  const std::vector<uint64_t> keys = KeysOf(2, 3);
  const Bytes bytes = Int8Gradient(keys, {127, -1, 0, 254, 5, -5});
  // Kind, count, keys, and for each row a scale and two bytes.
  EXPECT_EQ(bytes.size(), 16u + 3 * 8 + 3 * 6);
  const auto frame = DecodeFrame(bytes, *int8_, placement_, 2);
  ASSERT_THAT(frame.status(), IsOk());
  EXPECT_EQ(frame->kind, Frame::Kind::kGradient);
  EXPECT_EQ(frame->dtype, v1::WireValues::INT8);
  EXPECT_THAT(FloatsIn(*frame), ElementsAre(127, -1, 0, 254, 5, -5));
  // The sum of a round is f32, in the same table.
  EXPECT_THAT(DecodeFrame(EncodeSum(*int8_, {keys, {1, 2, 3, 4, 5, 6}}), *int8_,
                          placement_, 2)
                  .status(),
              IsOk());
  EXPECT_THAT(DecodeFrame(bytes, *sparse_, placement_, 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted a gradient in f32, found dtype 3"));
}

TEST_F(FrameTest, EncodedGradientIsRefusedOrReadAtEachCutAndFlippedBit) {
  const std::vector<uint64_t> keys = KeysOf(2, 3);
  const Bytes whole = Int8Gradient(keys, {127, -1, 0, 254, 5, -5});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(DecodeFrame(Aligned(Bytes::Copy(whole.view().substr(0, size))),
                            *int8_, placement_, 2)
                    .status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "'t'"));
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes(whole.view());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const auto frame = DecodeFrame(
        Aligned(Bytes::Copy(absl::string_view(bytes))), *int8_, placement_, 2);
    if (!frame.ok()) continue;
    for (const float x : FloatsIn(*frame)) {
      EXPECT_EQ(x, x) << "NaN in a push of int8";
    }
  }
}

TEST_F(FrameTest, RowsComeBack) {
  const std::vector<uint64_t> keys = KeysOf(2, 3);
  const Bytes bytes =
      EncodeRows(Frame::Kind::kGradient, keys, {1, 2, 3, 4, 5, 6});
  const auto frame = DecodeFrame(bytes, *sparse_, placement_, 2);
  ASSERT_THAT(frame.status(), IsOk());
  EXPECT_EQ(frame->kind, Frame::Kind::kGradient);
  EXPECT_EQ(std::vector<uint64_t>(frame->keys.begin(), frame->keys.end()),
            keys);
  EXPECT_THAT(FloatsIn(*frame), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(DecodeFrame(bytes, *sparse_, placement_, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "belong"));
}

TEST_F(FrameTest, RateComesBack) {
  const auto frame = DecodeFrame(EncodeRate(7, 0.25), *dense_, placement_, 0);
  ASSERT_THAT(frame.status(), IsOk());
  EXPECT_EQ(frame->kind, Frame::Kind::kRate);
  EXPECT_EQ(frame->round, 7);
  EXPECT_EQ(frame->scale, 0.25);
}

// A sum has its keys in the order in which they came.
TEST_F(FrameTest, SumIsPutInOrder) {
  std::vector<uint64_t> keys = KeysOf(1, 3);
  std::swap(keys[0], keys[2]);
  const Bytes bytes = EncodeSum(*sparse_, {keys, {1, 2, 3, 4, 5, 6}});
  const auto frame = DecodeFrame(bytes, *sparse_, placement_, 1);
  ASSERT_THAT(frame.status(), IsOk());
  EXPECT_THAT(FloatsIn(*frame), ElementsAre(5, 6, 3, 4, 1, 2));
}

TEST_F(FrameTest, BytesAtAnyAddressAreRead) {
  const std::vector<uint64_t> keys = KeysOf(0, 2);
  const Bytes bytes = EncodeRows(Frame::Kind::kPut, keys, {1, 2, 3, 4});
  for (size_t offset = 0; offset < 9; ++offset) {
    const std::string moved =
        std::string(offset, 'x') + std::string(bytes.view());
    const Bytes aligned =
        Aligned(Bytes::Copy(absl::string_view(moved)).subspan(offset));
    EXPECT_EQ(aligned, bytes);
    EXPECT_THAT(DecodeFrame(aligned, *sparse_, placement_, 0).status(), IsOk());
  }
}

TEST_F(FrameTest, EveryCutAndFlippedBitIsRefusedOrAFrame) {
  const std::vector<uint64_t> keys = KeysOf(3, 3);
  const Bytes whole =
      EncodeRows(Frame::Kind::kGradient, keys, {1, 2, 3, 4, 5, 6});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(DecodeFrame(Aligned(Bytes::Copy(whole.view().substr(0, size))),
                            *sparse_, placement_, 3)
                    .status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "'t'"));
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes(whole.view());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const Bytes flipped = Aligned(Bytes::Copy(absl::string_view(bytes)));
    const auto frame = DecodeFrame(flipped, *sparse_, placement_, 3);
    if (!frame.ok()) continue;
    (void)FloatsIn(*frame);
  }
}

// With a staleness.
class ClockFrameTest : public FrameTest {
 protected:
  ClockFrameTest() {
    v1::TableSpec spec = sparse_->spec();
    spec.set_staleness(1);
    stale_ = *TableLayout::Create(spec);
  }
  std::unique_ptr<TableLayout> stale_;
};

TEST_F(ClockFrameTest, FramesOfClocksComeBackOrAreRefused) {
  const std::string name(PartitionClocks::kMostName, 'n');
  const Bytes join = EncodeJoin(3, 4, {5, 6}, 7, name + "longer");
  const auto frame = DecodeFrame(join, *stale_, placement_, 2);
  ASSERT_THAT(frame.status(), IsOk());
  EXPECT_EQ(frame->kind, Frame::Kind::kJoin);
  EXPECT_EQ(frame->rank, 3);
  EXPECT_EQ(frame->clock, 4);
  EXPECT_EQ(frame->worker, (WorkerKey{5, 6}));
  EXPECT_EQ(frame->opened_at, 7u);
  EXPECT_EQ(frame->name, name);
  const auto tick = DecodeFrame(EncodeTick(3, 4), *stale_, placement_, 2);
  ASSERT_THAT(tick.status(), IsOk());
  EXPECT_EQ(tick->kind, Frame::Kind::kTick);
  EXPECT_EQ(tick->clock, 4);
  const auto leave = DecodeFrame(EncodeLeave(3), *stale_, placement_, 2);
  ASSERT_THAT(leave.status(), IsOk());
  EXPECT_EQ(leave->kind, Frame::Kind::kLeave);
  EXPECT_EQ(leave->rank, 3);

  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, "'t'");
  for (const Bytes& bytes : {EncodeTick(3, 4), EncodeLeave(3), EncodeJoin(3)}) {
    EXPECT_TRUE(IsOfClock(bytes));
    EXPECT_THAT(DecodeFrame(bytes, *sparse_, placement_, 2).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "no staleness"));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THAT(
          DecodeFrame(Aligned(Bytes::Copy(bytes.view().substr(0, size))),
                      *stale_, placement_, 2)
              .status(),
          refused);
    }
  }
  for (const Bytes& bytes :
       {EncodeTick(-1, 4), EncodeTick(3, -1),
        EncodeTick(3, ClockGate::kMostClock + 1), EncodeJoin(-1)}) {
    EXPECT_THAT(DecodeFrame(bytes, *stale_, placement_, 2).status(), refused);
  }
  EXPECT_FALSE(IsOfClock(EncodeRate(3, 0.5)));
}

TEST_F(ClockFrameTest, CopyHasTheClocksInItsFirstPiece) {
  PartitionClocks clocks(1);
  clocks.Join(0, {{1, 2}, 3, "trainer0"}, 4);
  clocks.Join(7, {{5, 6}, 8, "trainer7"}, 9);
  clocks.Tick(0, 3, 5, /*n=*/6);
  clocks.Leave(7, 8, /*n=*/2);
  PartitionImage image;
  image.keys = KeysOf(1, 2);
  std::sort(image.keys.begin(), image.keys.end());
  image.steps = {1, 2};
  image.weights = {1, 2, 3, 4};
  image.slots = {{5, 6, 7, 8}};
  const CopyInPieces copy(*stale_, image, {}, 1, clocks.Save());
  ASSERT_EQ(copy.pieces(), 2u);
  const auto first = DecodeCopy(copy.Encode(0), *stale_, placement_, 1);
  ASSERT_THAT(first.status(), IsOk());
  PartitionClocks filled(1);
  filled.Load(first->clocks);
  EXPECT_EQ(filled.Snapshot(), clocks.Snapshot());
  EXPECT_EQ(filled.gate().Find(7)->holder.name, "trainer7");
  EXPECT_EQ(filled.gate().Find(7)->holder.worker, (WorkerKey{5, 6}));
  const auto second = DecodeCopy(copy.Encode(1), *stale_, placement_, 1);
  ASSERT_THAT(second.status(), IsOk());
  EXPECT_TRUE(second->clocks.ranks.empty());

  PartitionClocks::State wrong = clocks.Save();
  wrong.ranks[0].clock.at = -1;
  EXPECT_THAT(
      DecodeCopy(EncodeCopy(image, {}, wrong), *stale_, placement_, 1).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "clock -1 of rank 0"));
}

TEST_F(FrameTest, CopyOfRowsComesBackOrIsRefused) {
  PartitionImage image;
  image.keys = {0, 4};  // slices of partition PartitionOfSlice(0)
  const int partition = placement_.PartitionOfSlice(0);
  for (uint64_t key : image.keys) {
    const int64_t length = dense_->RowLength(key);
    image.steps.push_back(3);
    image.weights.insert(image.weights.end(), length, 1.5f);
  }
  image.slots.assign(1, image.weights);
  RateChanges rates;
  ASSERT_THAT(rates.Set(4, 0.5, 0), IsOk());
  const Bytes bytes = EncodeCopy(image, rates);
  const auto copy = DecodeCopy(bytes, *dense_, placement_, partition);
  ASSERT_THAT(copy.status(), IsOk());
  EXPECT_EQ(copy->image.keys, image.keys);
  EXPECT_EQ(copy->image.weights, image.weights);
  EXPECT_EQ(copy->image.slots, image.slots);
  EXPECT_EQ(copy->rates.Format(), rates.Format());
  EXPECT_THAT(
      DecodeCopy(bytes, *dense_, placement_, (partition + 1) % 4).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, ""));
}

TEST_F(FrameTest, CopyInPiecesIsTheWhole) {
  PartitionImage image;
  const int partition = placement_.PartitionOfSlice(0);
  for (int64_t slice = 0; slice < dense_->slices(); ++slice) {
    if (placement_.PartitionOfSlice(slice) != partition) continue;
    image.keys.push_back(static_cast<uint64_t>(slice));
    image.steps.push_back(slice + 1);
    const int64_t length = dense_->RowLength(image.keys.back());
    for (int64_t i = 0; i < length; ++i) {
      image.weights.push_back(static_cast<float>(slice * 1000 + i));
    }
  }
  ASSERT_GT(image.keys.size(), 1u);
  image.slots.assign(1, image.weights);
  RateChanges rates;
  ASSERT_THAT(rates.Set(4, 0.5, 0), IsOk());
  // Each row is a piece; all are one.
  for (const int64_t most : {int64_t{1}, int64_t{1} << 40}) {
    const CopyInPieces copy(*dense_, image, rates, most);
    ASSERT_EQ(copy.pieces(), most == 1 ? image.keys.size() : 1u);
    PartitionImage whole;
    whole.slots.resize(1);
    for (uint32_t i = 0; i < copy.pieces(); ++i) {
      const auto piece =
          DecodeCopy(copy.Encode(i), *dense_, placement_, partition);
      ASSERT_THAT(piece.status(), IsOk());
      const PartitionImage& rows = piece->image;
      whole.keys.insert(whole.keys.end(), rows.keys.begin(), rows.keys.end());
      whole.steps.insert(whole.steps.end(), rows.steps.begin(),
                         rows.steps.end());
      whole.weights.insert(whole.weights.end(), rows.weights.begin(),
                           rows.weights.end());
      whole.slots[0].insert(whole.slots[0].end(), rows.slots[0].begin(),
                            rows.slots[0].end());
      EXPECT_EQ(piece->rates.Format(), rates.Format());
    }
    EXPECT_EQ(whole.keys, image.keys);
    EXPECT_EQ(whole.steps, image.steps);
    EXPECT_EQ(whole.weights, image.weights);
    EXPECT_EQ(whole.slots, image.slots);
  }
  PartitionImage none;
  none.slots.resize(1);
  EXPECT_EQ(CopyInPieces(*dense_, none, rates, 100).pieces(), 1u);
}

TEST_F(FrameTest, CopyOfSlotsOfOneValueForARowComesBackWholeAndInPieces) {
  v1::TableSpec spec = sparse_->spec();
  spec.mutable_rule()->mutable_rowwise_adagrad();
  const auto layout = *TableLayout::Create(spec);
  PartitionImage image;
  image.keys = KeysOf(1, 5);
  std::sort(image.keys.begin(), image.keys.end());
  image.steps = {1, 2, 3, 4, 5};
  image.weights = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  image.slots = {{11, 12, 13, 14, 15}};
  const auto whole =
      DecodeCopy(EncodeCopy(image, {}), *layout, placement_, /*partition=*/1);
  ASSERT_THAT(whole.status(), IsOk());
  EXPECT_EQ(whole->image.slots, image.slots);
  // A row is 28 bytes.
  const CopyInPieces copy(*layout, image, {}, 60);
  EXPECT_EQ(copy.bytes(), 5 * 28);
  ASSERT_EQ(copy.pieces(), 3u);
  const auto last = DecodeCopy(copy.Encode(2), *layout, placement_, 1);
  ASSERT_THAT(last.status(), IsOk());
  EXPECT_THAT(last->image.weights, ElementsAre(9, 10));
  EXPECT_THAT(last->image.slots, ElementsAre(ElementsAre(15)));
}

// A backup that is filled by pieces keeps and lets go the rows that its primary
// does.
TEST_F(FrameTest, CopyOfABoundedPartitionGoesOnWithTheSameRows) {
  v1::TableSpec spec = sparse_->spec();
  spec.mutable_life()->set_max_rows(4 * 60);
  spec.mutable_life()->set_admit_after(2);
  spec.mutable_life()->set_admit_counters(256);
  spec.mutable_life()->set_drop_versions(3);
  const auto layout = *TableLayout::Create(spec);
  const std::vector<uint64_t> all = KeysOf(1, 300);
  Partition primary(layout.get());
  Partition backup(layout.get());
  const auto push = [&](Partition& to, int number) {
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < all.size(); ++i) {
      const uint64_t chance = Mix64(i * 1000 + static_cast<uint64_t>(number));
      if (chance % (i % 7 == 0 ? 3 : 40) == 0) keys.push_back(all[i]);
    }
    const std::vector<float> values(2 * keys.size(), 1);
    ps::PushSpan span;
    span.keys = keys;
    span.values = values.data();
    to.ApplySum({span}, 1);
  };
  for (int i = 0; i < 500; ++i) push(primary, i);
  const CopyInPieces copy(*layout, primary.Image(), RateChanges(), 300);
  ASSERT_GT(copy.pieces(), 5u);
  for (uint32_t i = 0; i < copy.pieces(); ++i) {
    const auto piece = DecodeCopy(copy.Encode(i), *layout, placement_, 1);
    ASSERT_THAT(piece.status(), IsOk());
    if (i == 0) {
      backup.Load(piece->image);
    } else {
      backup.Add(piece->image);
    }
  }
  for (int i = 500; i < 1000; ++i) {
    push(primary, i);
    push(backup, i);
    ASSERT_EQ(backup.Image().keys, primary.Image().keys) << i;
  }
  EXPECT_EQ(backup.Image().weights, primary.Image().weights);
  EXPECT_EQ(backup.Image().touched, primary.Image().touched);
  EXPECT_EQ(backup.Image().life, primary.Image().life);
  EXPECT_GT(primary.counts().evicted_full, 200);
}

TEST_F(FrameTest, FramesInOneMemoryAreThoseThatStandAlone) {
  const std::vector<uint64_t> keys = KeysOf(2, 3);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  constexpr int64_t kBytes = 6 * sizeof(float);
  std::vector<uint64_t> memory(FrameWords(3, kBytes));
  char* const to = WriteFrame(v1::WireValues::F32, keys, memory.data());
  std::memcpy(to, values.data(), kBytes);
  const Bytes bytes =
      Bytes::Own(std::move(memory)).subspan(0, FrameBytes(3, kBytes));
  EXPECT_EQ(bytes, EncodeRows(Frame::Kind::kGradient, keys, values));
}

TEST_F(FrameTest, BytesOfAnyAddressesAreReadTogether) {
  std::vector<Bytes> all;
  for (size_t i = 0; i < 20; ++i) {
    const std::string moved = std::string(i % 9, 'x') + std::string(i, 'y');
    all.push_back(Bytes::Copy(absl::string_view(moved)).subspan(i % 9));
  }
  const std::vector<Bytes> aligned = AlignedAll(all);
  EXPECT_EQ(aligned, all);
  for (const Bytes& bytes : aligned) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(uint64_t), 0u);
  }
}

}  // namespace
}  // namespace weft::ps
