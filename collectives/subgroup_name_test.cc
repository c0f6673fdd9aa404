#include "weft/collectives/subgroup_name.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace weft::collectives {
namespace {

TEST(SubgroupName, ShortOneIsThatOfTheParentAndItsOwn) {
  EXPECT_EQ(SubgroupName("world", "world/0:1"), "world|world/0:1");
}

TEST(SubgroupName, ManyGenerationsHaveDifferentNamesOfBoundedLength) {
  std::set<std::string> names = {"world"};
  std::string members;
  for (int rank = 0; rank < 200; ++rank) absl::StrAppend(&members, rank, ",");
  std::string parent = "world";
  for (int generation = 0; generation < 100; ++generation) {
    for (int child = 0; child < 2; ++child) {
      const std::string name = SubgroupName(
          parent, absl::StrCat("world/shrunk to ", members, " #", child));
      EXPECT_LE(name.size(), kMostNameBytes);
      EXPECT_TRUE(names.insert(name).second) << name;
      if (child == 1) parent = name;
    }
  }
}

}  // namespace
}  // namespace weft::collectives
