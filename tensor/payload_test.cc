#include "weft/tensor/payload.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::vector<int64_t> Numbers(const Payload& payload) {
  const Bytes bytes = *payload.Elements();
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  std::copy_n(bytes.data(), bytes.size(),
              reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

TEST(Payload, OfNothingIsAnEmptyF32) {
  const Payload payload;
  EXPECT_EQ(payload.dtype(), DType::kF32);
  EXPECT_EQ(payload.shape(), Shape{0});
  EXPECT_EQ(payload.bytes(), 0);
  EXPECT_THAT(payload.Elements().status(), IsOk());
}

// Only the part of a large storage that the tensor names travels.
TEST(Payload, OfAPartHoldsThatPart) {
  const Tensor x = Tensor::Arange(100);
  EXPECT_EQ(Numbers(Payload::Borrow(x.Slice(0, 40, 43))),
            (std::vector<int64_t>{40, 41, 42}));
  Tensor alone = Tensor::Arange(100).Slice(0, 97, 100);
  const void* const memory = alone.raw();
  const Payload moved = Payload::FreezeByMove(std::move(alone));
  EXPECT_EQ(moved.Elements()->data(), memory);  // No copy.
  EXPECT_EQ(Numbers(moved), (std::vector<int64_t>{97, 98, 99}));
  EXPECT_EQ(moved.shape(), Shape{3});
}

TEST(Payload, OfAViewWithGapsIsACopyInOrder) {
  const Tensor x = Tensor::Arange(6).View({2, 3});
  for (const Tensor& view :
       {x.Transpose(0, 1), x.Slice(1, 1, 3), x.Select(1, 1),
        x.Slice(0, 0, 1).Expand({4, 3}),
        Tensor::FromStorage(x.storage(), 5, {6}, {-1}, DType::kI64)}) {
    const std::vector<int64_t> wanted = view.ToVector<int64_t>();
    for (const Payload& payload :
         {Payload::Borrow(view), Payload::Snapshot(view),
          Payload::FreezeByMove(view)}) {
      EXPECT_EQ(Numbers(payload), wanted);
      EXPECT_EQ(payload.shape(), view.shape());
      EXPECT_EQ(payload.bytes(), view.bytes());
      x.Fill(7);  // A copy does not see it, and so does not complain.
      EXPECT_EQ(Numbers(payload), wanted);
      x.CopyFrom(Tensor::Arange(6).View({2, 3}));
    }
  }
}

TEST(Payload, OutlivesItsTensor) {
  Tensor x = Tensor::Arange(50);
  const Payload borrowed = Payload::Borrow(x);
  Bytes elements = *borrowed.Elements();
  x = Tensor();
  EXPECT_EQ(Numbers(borrowed).back(), 49);
  Payload moved = Payload::FreezeByMove(Tensor::Arange(50));
  elements = *moved.Elements();
  moved = Payload();
  EXPECT_EQ(elements.size(), 400u);
  EXPECT_EQ(reinterpret_cast<const int64_t*>(elements.data())[49], 49);
}

// Whatever writes: an operation, a view, an update that keeps versions.
TEST(Payload, BorrowedFindsEachKindOfWrite) {
  const auto is_lost = StatusIs(absl::StatusCode::kDataLoss, "f32[4]");
  const Tensor x = Tensor::Zeros({4});
  Payload payload = Payload::Borrow(x);
  x.View({2, 2}).Select(0, 1).Fill(1);
  EXPECT_THAT(payload.Elements().status(), is_lost);
  payload = Payload::Borrow(x);
  EXPECT_THAT(payload.Elements().status(), IsOk());
  x.BeginUpdate();
  EXPECT_THAT(payload.Elements().status(), is_lost);
  payload = Payload::Borrow(x);
  x.CopyFrom(x);
  EXPECT_THAT(payload.Elements().status(), is_lost);
  payload = Payload::Borrow(x);
  const Payload same = payload;
  x.BumpVersion();
  EXPECT_THAT(same.Elements().status(), is_lost);
}

TEST(Payload, WithoutAnOwnElementIsNotFrozenByMove) {
  std::vector<int64_t> theirs = {1, 2};
  const Payload payload = Payload::FreezeByMove(
      Tensor::FromBlob(theirs.data(), {2}, DType::kI64, nullptr));
  theirs[0] = 9;
  EXPECT_EQ(Numbers(payload), (std::vector<int64_t>{1, 2}));
  Tensor x = Tensor::Arange(3);
  const Payload borrowed = Payload::Borrow(x);
  // The borrowed payload is another handle.
  const Payload moved = Payload::FreezeByMove(std::move(x));
  EXPECT_NE(moved.Elements()->data(), borrowed.Elements()->data());
}

}  // namespace
}  // namespace weft
