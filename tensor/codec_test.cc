#include "weft/tensor/codec.h"

#include <limits>
#include <string>
#include <utility>

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

}  // namespace
}  // namespace weft
