#include "weft/train/saving/background_save.h"

#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

TEST(BackgroundSave, EndsOnceWhileItsCallerGoesOn) {
  BackgroundSave save;
  EXPECT_FALSE(save.Take().has_value());
  std::promise<void> may_end;
  ASSERT_THAT(save.Begin([&]() -> BackgroundSave::Saved {
    may_end.get_future().wait();
    return std::string("ckpt-1");
  }),
              IsOk());
  EXPECT_TRUE(save.is_begun());
  EXPECT_FALSE(save.TakeIfDone().has_value());
  may_end.set_value();
  std::optional<BackgroundSave::Saved> saved;
  EXPECT_TRUE(Becomes([&] {
    saved = save.TakeIfDone();
    return saved.has_value();
  }));
  EXPECT_THAT(*saved, IsOkAndHolds("ckpt-1"));
  EXPECT_FALSE(save.is_begun());
  EXPECT_FALSE(save.Take().has_value());
}

TEST(BackgroundSave, FailureIsAStatusAndTheNextOneMayBegin) {
  BackgroundSave save;
  ASSERT_THAT(save.Begin([]() -> BackgroundSave::Saved {
    throw std::runtime_error("no");
  }),
              IsOk());
  EXPECT_FALSE(save.Take()->ok());
  ASSERT_THAT(save.Begin([]() -> BackgroundSave::Saved {
    return absl::ResourceExhaustedError("full");
  }),
              IsOk());
  EXPECT_THAT(*save.Take(),
              StatusIs(absl::StatusCode::kResourceExhausted, "full"));
}

TEST(BackgroundSave, DestructorWaitsForTheOneThatIsBeingWritten) {
  bool is_written = false;
  {
    BackgroundSave save;
    ASSERT_THAT(save.Begin([&]() -> BackgroundSave::Saved {
      is_written = true;
      return std::string("ckpt-1");
    }),
                IsOk());
  }
  EXPECT_TRUE(is_written);
}

}  // namespace
}  // namespace weft::train
