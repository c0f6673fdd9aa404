#include "weft/base/said_by.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(SaidBy, NamesTheSpeakerOnce) {
  EXPECT_EQ(SaidBy("ps1", "no room"), "ps1: no room");
  EXPECT_EQ(SaidBy("ps1", "ps1 is shutting down"), "ps1 is shutting down");
  EXPECT_EQ(SaidBy("ps1", "ps1: no room"), "ps1: no room");
  EXPECT_EQ(SaidBy("ps1", "ps1"), "ps1");
  EXPECT_EQ(SaidBy("ps1", "ps10 is gone"), "ps1: ps10 is gone");
}

}  // namespace
}  // namespace weft
