#include "weft/base/reworded.h"

#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(Reworded, ErrorKeepsItsCodeAndPayloads) {
  absl::Status status = absl::NotFoundError("no table");
  status.SetPayload("test/a", absl::Cord("1"));
  status.SetPayload("test/b", absl::Cord("2"));
  const absl::Status other = Reworded(status, "ps0: no table");
  EXPECT_EQ(other.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(other.message(), "ps0: no table");
  EXPECT_EQ(other.GetPayload("test/a"), absl::Cord("1"));
  EXPECT_EQ(other.GetPayload("test/b"), absl::Cord("2"));
}

TEST(Reworded, ErrorTakesACodeAndOkStaysOk) {
  EXPECT_EQ(
      Reworded(absl::NotFoundError("a"), absl::StatusCode::kInternal, "b"),
      absl::InternalError("b"));
  EXPECT_EQ(Reworded(absl::OkStatus(), "b"), absl::OkStatus());
}

}  // namespace
}  // namespace weft
