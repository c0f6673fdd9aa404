#include "weft/ps/table_access.h"

#include <string>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Right = TableAccess::Right;

bool May(const TableAccess& access, const std::string& role,
         const std::string& table, Right right) {
  const absl::Status status = access.Check(role + "0", role, table, right);
  EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
  return status.ok();
}

TEST(TableAccess, WithoutRulesAllMayDoEverything) {
  const TableAccess access;
  EXPECT_TRUE(access.is_open());
  EXPECT_TRUE(May(access, "trainer", "t", Right::kWrite));
  EXPECT_TRUE(TableAccess::Parse("")->is_open());
}

TEST(TableAccess, OnlyTheFirstRuleThatFitsCounts) {
  WEFT_ASSERT_OK_AND_ASSIGN(
      const TableAccess access,
      TableAccess::Parse("users.frozen=trainer:r,admin:rw;"
                         "users*=trainer:rw;log=admin:w"));
  EXPECT_TRUE(May(access, "trainer", "users.frozen", Right::kRead));
  EXPECT_FALSE(May(access, "trainer", "users.frozen", Right::kWrite));
  EXPECT_TRUE(May(access, "admin", "users.frozen", Right::kWrite));
  EXPECT_TRUE(May(access, "trainer", "users", Right::kWrite));
  EXPECT_TRUE(May(access, "trainer", "users.2", Right::kRead));
  EXPECT_FALSE(May(access, "admin", "users.2", Right::kRead));
  EXPECT_TRUE(May(access, "admin", "log", Right::kWrite));
  EXPECT_FALSE(May(access, "admin", "log", Right::kRead));
  EXPECT_FALSE(May(access, "trainer", "logs", Right::kRead));
  EXPECT_FALSE(May(access, "admin", "other", Right::kRead));
}

TEST(TableAccess, RefusalNamesCallerTableAndRule) {
  WEFT_ASSERT_OK_AND_ASSIGN(const TableAccess access,
                            TableAccess::Parse("t=trainer:r"));
  EXPECT_THAT(access.Check("trainer3", "trainer", "t", Right::kWrite),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "trainer3 (role trainer) may not change table 't': the "
                       "servers' --table-access says 't=trainer:r'"));
  EXPECT_THAT(access.Check("trainer3", "trainer", "u", Right::kRead),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "may not read table 'u': no rule of the servers' "
                       "--table-access names it"));
}

TEST(TableAccess, ReaderOpensWhatIsThereAndMakesNothing) {
  WEFT_ASSERT_OK_AND_ASSIGN(const TableAccess access,
                            TableAccess::Parse("t=trainer:r,admin:w,ps:"));
  EXPECT_THAT(access.CheckOpen("trainer0", "trainer", "t", true), IsOk());
  EXPECT_THAT(
      access.CheckOpen("trainer0", "trainer", "t", false),
      StatusIs(absl::StatusCode::kPermissionDenied, "it is not there yet"));
  EXPECT_THAT(access.CheckOpen("admin0", "admin", "t", false), IsOk());
  EXPECT_THAT(access.CheckOpen("ps1", "ps", "t", true),
              StatusIs(absl::StatusCode::kPermissionDenied, "may not read"));
}

// Any that a certificate has; which of them may call the functions of tables is
// said elsewhere (docs/security.md).
TEST(TableAccess, RulesNameRolesOfAnyName) {
  WEFT_ASSERT_OK_AND_ASSIGN(
      const TableAccess access,
      TableAccess::Parse("t=trainer:rw,reader:r,nightly_export-2:r"));
  EXPECT_TRUE(May(access, "reader", "t", Right::kRead));
  EXPECT_FALSE(May(access, "reader", "t", Right::kWrite));
  EXPECT_TRUE(May(access, "nightly_export-2", "t", Right::kRead));
  EXPECT_FALSE(May(access, "client", "t", Right::kRead));
}

TEST(TableAccess, CallerThatProvedNoRoleIsTrusted) {
  WEFT_ASSERT_OK_AND_ASSIGN(const TableAccess access,
                            TableAccess::Parse("t=trainer:r"));
  EXPECT_THAT(access.Check("trainer3", "", "t", Right::kWrite), IsOk());
}

TEST(TableAccess, BadRulesAreRefused) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT(TableAccess::Parse(text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, why))
        << text;
  };
  refused("t", "no '=' in 't'");
  refused("=trainer:r", "no table");
  refused("a*b=trainer:r", "* amid a name");
  refused("t=", "no ROLE:RIGHTS, found ''");
  refused("t=trainer", "found 'trainer'");
  refused("t=:rw", "found ':rw'");
  refused("t=trainer:rx", "right 'x'");
  refused("t=trainer:r,trainer:w", "role 'trainer' twice");
  refused("t=trainer:r;", "no '=' in ''");
  refused("*=trainer:r;t=admin:rw", "'*=trainer:r' comes before");
  refused("t=trainer:r;t=admin:rw", "comes before");
}

}  // namespace
}  // namespace weft::ps
