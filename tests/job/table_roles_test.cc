// A client whose certificate has a role of the job's own, beside the worker's
// roles: it is let in to the table whose rule names the role, to do what that
// rule allows, and to nothing else.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/tls/credentials.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/service.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

constexpr char kAccess[] =
    "open=admin:rw,reader:r;log=reader:rw;*=admin:rw,trainer:rw";

ps::v1::TableSpec SpecOf(const std::string& table) {
  ps::v1::TableSpec spec;
  spec.set_name(table);
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_dim(1);
  spec.set_partitions(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  return spec;
}

// Two of the job: an admin and a reader, as clients of one server.
class TableRoles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job_.Path("certs"), "--job=job",
                                    "--role=reader", "--role=stranger=1"});
    ASSERT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
    job_.servers = 1;
    job_.trainers = 1;
    job_.coordinator = absl::StrCat("127.0.0.1:", FreePort());
    job_.flags = {"--certs=" + job_.Path("certs")};
    server_ = job_.StartServer(0, {absl::StrCat("--table-access=", kAccess)});
    ASSERT_THAT(server_->WaitForOutput("coordinator serves", kLong), IsOk());
    // Servers serve once all of the job have joined.
    trainer_ = job_.StartTrainer(0, {kForLong});
  }

  std::unique_ptr<rpc::Client> Connect(const std::string& name) {
    rpc::ClientOptions options;
    auto credentials = net::Credentials::ForMember(job_.Path("certs"), name);
    EXPECT_THAT(credentials, IsOk());
    options.credentials = *std::move(credentials);
    options.worker = "ps0";
    options.job = "job";
    auto client = rpc::Client::Connect(job_.coordinator, options);
    EXPECT_THAT(client, IsOk());
    return client.ok() ? *std::move(client) : nullptr;
  }

  static absl::Status Open(rpc::Client& client, const std::string& table) {
    absl::Status opened;
    EXPECT_TRUE(Becomes([&] {
      opened = rpc::Call(client.To(), ps::OpenTable, SpecOf(table), uint64_t{1})
                   .status();
      return !ps::IsNotServing(opened);
    }));
    return opened;
  }

  // Pushes -`by` to key 7, or pulls it.
  absl::Status Push(rpc::Client& client, const std::string& table, float by) {
    ps::v1::Request request = RequestTo(table);
    request.set_push(true);
    request.add_sequences(++last_push_);
    return rpc::Call(client.To(), ps::Exchange, request,
                     std::optional<Tensor>(Key()),
                     std::optional<Tensor>(Tensor::Full({1, 1}, -by)),
                     std::optional<Tensor>())
        .status();
  }
  absl::StatusOr<float> Pull(rpc::Client& client, const std::string& table) {
    ps::v1::Request request = RequestTo(table);
    request.set_pull(true);
    const auto reply =
        rpc::Call(client.To(), ps::Exchange, request, std::optional<Tensor>(),
                  std::optional<Tensor>(), std::optional<Tensor>(Key()));
    if (!reply.ok()) return reply.status();
    return std::get<1>(*reply)->values.item<float>();
  }

 private:
  static Tensor Key() { return Tensor::FromVector<int64_t>({7}); }
  static ps::v1::Request RequestTo(const std::string& table) {
    ps::v1::Request request;
    request.set_table(table);
    request.set_client(1);
    request.add_partitions(0);
    request.add_rows(1);
    return request;
  }

  Job job_;
  std::unique_ptr<Process> server_, trainer_;
  uint64_t last_push_ = 0;
};

TEST_F(TableRoles, RoleOfOnesOwnIsLetInWhereTheRuleNamesItAndNowhereElse) {
  const auto admin = Connect("admin0");
  const auto reader = Connect("reader0");
  const auto stranger = Connect("stranger0");
  ASSERT_TRUE(admin != nullptr && reader != nullptr && stranger != nullptr);
  // Of a table that is to be made it says who may.
  EXPECT_THAT(Open(*reader, "open"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "it is not there yet, and who may not change it"));
  ASSERT_THAT(Open(*admin, "open"), IsOk());
  ASSERT_THAT(Open(*admin, "closed"), IsOk());
  ASSERT_THAT(Push(*admin, "open", 5), IsOk());

  ASSERT_THAT(Open(*reader, "open"), IsOk());
  EXPECT_THAT(Pull(*reader, "open"), IsOkAndHolds(5));
  EXPECT_THAT(Push(*reader, "open", 5),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "reader0 (role reader) may not change table 'open'"));
  for (const absl::Status& refused :
       {Open(*reader, "closed"), Pull(*reader, "closed").status()}) {
    EXPECT_THAT(refused,
                StatusIs(absl::StatusCode::kPermissionDenied,
                         "reader0 (role reader) may not read table 'closed'"));
  }
  // Where the rule lets it write it makes the table.
  ASSERT_THAT(Open(*reader, "log"), IsOk());
  EXPECT_THAT(Push(*reader, "log", 2), IsOk());
  EXPECT_THAT(Pull(*reader, "log"), IsOkAndHolds(2));
  EXPECT_THAT(Pull(*reader, "open"), IsOkAndHolds(5));

  // A role that no rule names is told of no function of tables, nor is the
  // reader of those that are for members.
  const auto none =
      StatusIs(absl::StatusCode::kUnimplemented, "for this caller");
  EXPECT_THAT(Open(*stranger, "open"), none);
  EXPECT_THAT(rpc::Call(reader->To(), ps::Describe).status(), none);
}

}  // namespace
}  // namespace weft::testing
