#include "weft/base/error.h"

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(Error, TextHasTheCodeAndTheMessageWithoutPayloads) {
  absl::Status status = absl::NotFoundError("no table");
  status.SetPayload("test/payload", absl::Cord("\x01\xff"));
  const Error error(status);
  EXPECT_STREQ(error.what(), "NOT_FOUND: no table");
  EXPECT_EQ(error.status(), status);
}

}  // namespace
}  // namespace weft
