#include "weft/tensor/codec.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/payload.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

namespace wire = ::weft::tensor::v1;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

wire::TensorHeader Header(int dtype, const Shape& shape, int64_t bytes) {
  wire::TensorHeader header;
  header.set_dtype(static_cast<wire::DType>(dtype));
  for (const int64_t size : shape) header.add_shape(size);
  header.set_bytes(bytes);
  return header;
}

Slices Elements(const Payload& payload) { return {*payload.Elements()}; }

TEST(Payload, FreezesByMoveWithoutACopy) {
  Tensor x = Tensor::Arange(100);
  const void* const memory = x.raw();
  const Payload payload = Payload::FreezeByMove(std::move(x));
  EXPECT_EQ(payload.Elements()->data(), memory);
  EXPECT_EQ(payload.bytes(), 800);
}

TEST(Payload, CopiesSharedTensors) {
  const Tensor x = Tensor::Arange(100);
  const Tensor view = x.Slice(0, 0, 50);
  std::vector<int64_t> theirs(4);
  for (const Payload& payload :
       {Payload::FreezeByMove(x), Payload::FreezeByMove(x.View({10, 10})),
        Payload::Snapshot(x),
        Payload::FreezeByMove(
            Tensor::FromBlob(theirs.data(), {4}, DType::kI64, nullptr))}) {
    const int64_t last = payload.bytes() / 8 - 1;
    const std::string before(payload.Elements()->view());
    x.Fill(-1);
    theirs[static_cast<size_t>(last) % 4] = -1;
    EXPECT_EQ(payload.Elements()->view(), before);
    x.CopyFrom(Tensor::Arange(100));
  }
}

TEST(Payload, WriteToABorrowedTensorIsDetected) {
  const Tensor x = Tensor::Arange(100);
  const Payload payload = Payload::Borrow(x);
  EXPECT_EQ(payload.Elements()->data(), x.raw());
  x.Slice(0, 3, 4).Fill(0);
  EXPECT_THAT(payload.Elements().status(),
              StatusIs(absl::StatusCode::kDataLoss, "written to"));
}

TEST(Payload, OfAViewHoldsItsElementsInOrder) {
  const Tensor x = Tensor::Arange(6).View({2, 3}).Transpose(0, 1);
  for (const Payload& payload :
       {Payload::Borrow(x), Payload::Snapshot(x), Payload::FreezeByMove(x)}) {
    const auto back = DecodeTensor(HeaderOf(payload), Elements(payload));
    ASSERT_THAT(back.status(), IsOk());
    ExpectSame(*back, x);
  }
}

TEST(Codec, BringsEveryDTypeAndShapeBack) {
  Generator generator(1);
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{7}, Shape{3, 0, 2}, Shape{2, 3, 4, 5, 6}}) {
      const Tensor x = Integers(shape, dtype, 0, 1, generator);
      const auto whole = DecodeTensor(EncodeTensor(x));
      ASSERT_THAT(whole.status(), IsOk());
      ExpectSame(*whole, x);

      // In slices of a few bytes, cut anywhere.
      const Bytes all = *Payload::Borrow(x).Elements();
      Slices slices = {Bytes()};
      for (size_t at = 0; at < all.size(); at += 5) {
        slices.push_back(all.subspan(at, 5));
      }
      const auto joined = DecodeTensor(HeaderOf(x), slices);
      ASSERT_THAT(joined.status(), IsOk());
      ExpectSame(*joined, x);
    }
  }
}

TEST(Codec, RefusesHeadersThatLie) {
  const int64_t big = int64_t{1} << 40;
  const struct {
    wire::TensorHeader header;
    const char* complaint;
  } kCases[] = {
      {Header(0, {}, 4), "dtype 0 is unknown"},
      {Header(99, {}, 4), "dtype 99 is unknown"},
      {Header(-1, {}, 4), "dtype -1 is unknown"},
      {Header(1, Shape(33, 1), 4), "33 dimensions"},
      {Header(1, {-1}, -4), "a dimension of -1"},
      {Header(1, {-2, -2}, 16), "a dimension of -2"},
      {Header(1, {big, big}, 0), "more than"},
      {Header(1, {0, big, big}, 0), "more than"},
      {Header(1, {int64_t{1} << 45}, int64_t{1} << 47), "more than"},
      {Header(1, {std::numeric_limits<int64_t>::max()}, 4), "more than"},
      {Header(1, {2}, 4), "4 bytes announced, dtype and shape make 8"},
      {Header(1, {0}, 1), "1 bytes announced, dtype and shape make 0"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(CheckHeader(test.header),
                StatusIs(absl::StatusCode::kInvalidArgument, test.complaint));
    EXPECT_THAT(DecodeTensor(test.header, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, test.complaint));
  }
}

TEST(Codec, TakesNoMemoryForBytesThatAreNotThere) {
  // A terabyte announced: an allocation of it would fail or take seconds.
  const int64_t bytes = int64_t{1} << 40;
  EXPECT_THAT(DecodeTensor(Header(1, {bytes / 4}, bytes), {Bytes::Copy("abcd")})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "4 received"));
}

TEST(Codec, RefusesBoolsThatAreNeither) {
  EXPECT_THAT(DecodeTensor(Header(5, {2}, 2),
                           {Bytes::Copy(absl::string_view("\1\2", 2))})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "byte 2"));
}

TEST(Codec, SurvivesEveryTruncation) {
  const std::string whole =
      EncodeTensor(Tensor::Arange(12).View({3, 4})).SerializeAsString();
  for (size_t length = 0; length < whole.size(); ++length) {
    wire::Tensor message;
    if (!message.ParseFromString(whole.substr(0, length))) continue;
    EXPECT_THAT(DecodeTensor(message).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << length;
  }
}

TEST(Codec, SurvivesRandomMutations) {
  Generator generator(20261120);
  const std::string whole =
      EncodeTensor(Tensor::Arange(12).View({3, 4})).SerializeAsString();
  int decoded = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = whole;
    const uint64_t changes = 1 + generator.NextBelow(4);
    for (uint64_t c = 0; c < changes; ++c) {
      // Mostly in the header, where it matters.
      const uint64_t range = generator.NextBelow(4) == 0 ? bytes.size() : 16;
      bytes[generator.NextBelow(range)] =
          static_cast<char>(generator.NextBelow(256));
    }
    wire::Tensor message;
    if (!message.ParseFromString(bytes)) continue;
    const auto tensor = DecodeTensor(message);
    if (!tensor.ok()) {
      EXPECT_THAT(tensor.status(),
                  StatusIs(absl::StatusCode::kInvalidArgument, ""));
      continue;
    }
    ++decoded;
    EXPECT_EQ(tensor->bytes(), static_cast<int64_t>(message.elements().size()));
  }
  EXPECT_GT(decoded, 0);
}

// Each bit of a message turned over: refused, or a tensor of as many bytes as
// came.
TEST(Codec, SurvivesEachFlippedBit) {
  for (const DType dtype : {DType::kI64, DType::kBool, DType::kF16}) {
    const Tensor x = Tensor::Ones({2, 1, 3}, dtype);
    const std::string whole = EncodeTensor(x).SerializeAsString();
    int decoded = 0, refused = 0;
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string bytes = whole;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      wire::Tensor message;
      if (!message.ParseFromString(bytes)) continue;
      const auto tensor = DecodeTensor(message);
      if (!tensor.ok()) {
        ++refused;
        EXPECT_THAT(tensor.status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, ""));
        continue;
      }
      ++decoded;
      EXPECT_EQ(static_cast<size_t>(tensor->bytes()),
                message.elements().size());
      // A walk over all elements stays within them.
      EXPECT_EQ(static_cast<int64_t>(Values(*tensor).size()), tensor->numel());
    }
    EXPECT_GT(decoded, 0);
    EXPECT_GT(refused, 0);
  }
}

TEST(Codec, RefusesEachNumberOfBytesButTheRightOne) {
  const std::string bytes(24, '\1');
  for (size_t n = 0; n <= bytes.size(); ++n) {
    for (size_t cut = 0; cut <= n; cut += 3) {
      const auto tensor = DecodeTensor(
          Header(3, {2}, 16), {Bytes::Copy(bytes.substr(0, cut)), Bytes(),
                               Bytes::Copy(bytes.substr(cut, n - cut))});
      EXPECT_EQ(tensor.ok(), n == 16) << n;
    }
  }
  EXPECT_THAT(DecodeTensor(Header(1, {0, 5}, 0), {}).status(), IsOk());
  EXPECT_EQ(DecodeTensor(Header(1, {0, 5}, 0), {Bytes()})->shape(),
            (Shape{0, 5}));
  EXPECT_FALSE(DecodeTensor(Header(1, {0, 5}, 0), {Bytes::Copy("x")}).ok());
  EXPECT_FALSE(DecodeTensor(wire::Tensor()).ok());
}

// Decoding copies: what came may be freed or written to.
TEST(Codec, DecodesIntoMemoryOfItsOwn) {
  std::string bytes(16, '\0');
  const auto tensor = DecodeTensor(
      Header(3, {2}, 16), {Bytes::Wrap(bytes.data(), bytes.size(), nullptr)});
  ASSERT_THAT(tensor.status(), IsOk());
  bytes.assign(16, '\1');
  ExpectValues(*tensor, {2}, {0, 0}, 0);
  EXPECT_TRUE(tensor->is_sole_owner());
}

// Not one bit may change: NaN keeps its payload, zero its sign.
TEST(Codec, KeepsEachBit) {
  const std::vector<double> values = {
      -0.0, __builtin_bit_cast(double, 0x7FF8DEADBEEF0001),
      __builtin_bit_cast(double, 0xFFF0000000000001),
      std::numeric_limits<double>::denorm_min()};
  const auto back = DecodeTensor(EncodeTensor(Tensor::FromVector(values)));
  ASSERT_THAT(back.status(), IsOk());
  const std::vector<double> found = back->ToVector<double>();
  EXPECT_EQ(std::memcmp(found.data(), values.data(), 32), 0);
}

TEST(Codec, EncodesAViewAsItsElements) {
  const Tensor x = Tensor::Arange(12).View({3, 4});
  for (const Tensor& view : {x.Transpose(0, 1), x.Slice(1, 1, 3),
                             x.Slice(0, 1, 2).Expand({5, 4}), x.Select(1, 3)}) {
    const auto back = DecodeTensor(EncodeTensor(view));
    ASSERT_THAT(back.status(), IsOk());
    ExpectSame(*back, view);
    EXPECT_EQ(HeaderOf(view).bytes(), view.bytes());
  }
}

// In a thirty-third dimension, or in one of 2^47 bytes, not before.
TEST(Codec, TakesHeadersUpToTheLimit) {
  EXPECT_THAT(CheckHeader(Header(4, Shape(32, 1), 1)), IsOk());
  const int64_t most = kMaxTensorBytes;
  EXPECT_THAT(CheckHeader(Header(4, {most}, most)), IsOk());
  EXPECT_THAT(CheckHeader(Header(4, {most, 0}, 0)), IsOk());
  EXPECT_THAT(CheckHeader(Header(6, {most}, 2 * most)),
              StatusIs(absl::StatusCode::kInvalidArgument, "more than"));
  const wire::TensorHeader header = Header(6, {3, 0, 2}, 0);
  EXPECT_EQ(DTypeOfHeader(header), DType::kF16);
  EXPECT_EQ(ShapeOfHeader(header), (Shape{3, 0, 2}));
}

}  // namespace
}  // namespace weft
