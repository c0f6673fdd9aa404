#include "weft/launch/run/role_spec.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(ParseRole, SplitsWordsLikeAShell) {
  const auto role = ParseRole(R"(trainer=3:bin/t --x 'a b' c\ d "e 'f'" '')");
  ASSERT_THAT(role, IsOk());
  EXPECT_EQ(role->role, "trainer");
  EXPECT_EQ(role->count, 3);
  EXPECT_THAT(role->argv,
              ElementsAre("bin/t", "--x", "a b", "c d", "e 'f'", ""));
}

TEST(ParseRole, ErrorNamesTheFault) {
  for (const auto& [text, why] :
       std::vector<std::pair<const char*, const char*>>{
           {"ps", "no '='"},
           {"ps:2=x", "no '='"},
           {"ps=0:x", "count"},
           {"ps=x:y", "count"},
           {"=1:x", "no name"},
           {"../x=1:true", "the role is \"../x\""},
           {"ps1=1:true", "the last not a digit"},
           {"p s=1:true", "a-z0-9-"},
           {"ps=1:", "no program"},
           {"ps=1:'x", "not closed"}}) {
    EXPECT_THAT(ParseRole(text),
                StatusIs(absl::StatusCode::kInvalidArgument, why))
        << text;
  }
}

}  // namespace
}  // namespace weft::launch
