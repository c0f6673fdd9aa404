#include "weft/base/future.h"

#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(FutureTest, CarriesTheValueAcrossThreads) {
  auto [promise, future] = MakePromise<int>();
  std::thread producer([p = std::move(promise)]() mutable { p.Set(42); });
  absl::StatusOr<int> result = future.Wait(absl::Seconds(5));
  producer.join();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, 42);
}

TEST(FutureTest, MoveOnlyValuesGoThroughThenAndWhenAll) {
  using Box = std::unique_ptr<int>;
  auto [promise, future] = MakePromise<Box>();
  std::vector<Future<Box>> boxes;
  boxes.push_back(std::move(future).Then([](Box box) {
    ++*box;
    return box;
  }));
  boxes.push_back(MakeReady<Box>(std::make_unique<int>(7)));
  auto all = WhenAllOk(std::move(boxes));
  promise.Set(std::make_unique<int>(1));
  auto result = std::move(all).Wait(absl::ZeroDuration());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*(*result)[0], 2);
  EXPECT_EQ(*(*result)[1], 7);
}

TEST(FutureTest, ThenTakesWhateverTheFunctionReturns) {
  InlineExecutor inline_executor;
  auto [promise, future] = MakePromise<int>();
  Future<std::string> text =
      future.Then([](int n) { return std::to_string(n); });
  Future<void> nothing = future.Then([](int) {});
  Future<void> status = future.Then([](int) { return absl::OkStatus(); });
  Future<int> either = future.Then(
      inline_executor, [](int n) -> absl::StatusOr<int> { return n + 1; });
  Future<int> inner = future.Then([](int n) { return MakeReady<int>(n * 2); });
  promise.Set(21);
  EXPECT_EQ(*text.Wait(absl::ZeroDuration()), "21");
  EXPECT_TRUE(nothing.Wait(absl::ZeroDuration()).ok());
  EXPECT_TRUE(status.Wait(absl::ZeroDuration()).ok());
  EXPECT_EQ(*either.Wait(absl::ZeroDuration()), 22);
  EXPECT_EQ(*inner.Wait(absl::ZeroDuration()), 42);
}

}  // namespace
}  // namespace weft
