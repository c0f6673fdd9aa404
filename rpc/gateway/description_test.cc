// Tests of what is taken for a worker's description.

#include "weft/rpc/gateway/description.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/connection/wire.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr char kAddress[] = "unix:/run/ps0.sock";

v1::DescribeReply Server() {
  v1::DescribeReply reply;
  reply.set_job("job");
  reply.set_name("ps0");
  reply.mutable_key()->set_epoch(1);
  reply.add_functions()->set_name("f");
  return reply;
}

TEST(Description, IsReadAsAWorkerSendsIt) {
  const auto read = ParseDescription(kAddress, Server().SerializeAsString());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->name(), "ps0");
}

TEST(Description, IsRefusedAsNoWorkerSendsIt) {
  using Reply = v1::DescribeReply;
  const std::vector<std::pair<std::function<void(Reply&)>, std::string>> cases =
      {{[](Reply& r) { r.set_name("ps0\n"); }, "worker name"},
       {[](Reply& r) { r.clear_job(); }, "worker name \"\""},
       {[](Reply& r) { r.clear_key(); }, "ps0 has no key"},
       {[](Reply& r) { r.add_functions(); }, "a function without a name"},
       {[](Reply& r) {
          while (r.functions_size() <= static_cast<int>(kMaxFunctions)) {
            r.add_functions()->set_name("f");
          }
        },
        "16385 functions: at most 16384"}};
  for (const auto& [change, why] : cases) {
    v1::DescribeReply reply = Server();
    change(reply);
    const auto read = ParseDescription(kAddress, reply.SerializeAsString());
    EXPECT_THAT(read, StatusIs(absl::StatusCode::kInternal, why));
    EXPECT_THAT(read, StatusIs(absl::StatusCode::kInternal,
                               "unix:/run/ps0.sock does not answer as a "
                               "worker of this Weft does"));
  }
  EXPECT_THAT(ParseDescription(kAddress, "\xff"),
              StatusIs(absl::StatusCode::kInternal, "it cannot be read"));
}

}  // namespace
}  // namespace weft::rpc
