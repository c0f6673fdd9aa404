// MembershipTest: a coordinator and its members in one process.

#ifndef WEFT_RENDEZVOUS_MEMBERSHIP_FIXTURE_H_
#define WEFT_RENDEZVOUS_MEMBERSHIP_FIXTURE_H_

#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/thread_pool.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/wire.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rendezvous {

inline constexpr absl::Duration kLong = absl::Seconds(60);

inline v1::LogRecord Opened(uint32_t term, const std::string& job) {
  v1::LogRecord record;
  record.mutable_opened()->set_term(term);
  record.mutable_opened()->set_job(job);
  return record;
}

class MembershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    chmod(dir_.path().c_str(), 0700);
    auto loop = net::Loop::Create();
    ASSERT_THAT(loop, ::weft::testing::IsOk());
    loop_ = *std::move(loop);
    timers_ = MakeLoopTimers(*loop_);
    auto executor = ThreadPool::Create({});
    ASSERT_THAT(executor, ::weft::testing::IsOk());
    executor_ = *std::move(executor);
    address_ = absl::StrCat("unix:", dir_.Path("c.sock"));
  }

  void StartCoordinator(CoordinatorOptions options = {}) {
    auto coordinator =
        Coordinator::Create(*timers_, *executor_, std::move(options));
    ASSERT_THAT(coordinator, ::weft::testing::IsOk());
    coordinator_ = *std::move(coordinator);
    auto endpoint = net::Endpoint::Open(*loop_, {"ps0", address_, "", {}});
    ASSERT_THAT(endpoint, ::weft::testing::IsOk());
    endpoint_ = *std::move(endpoint);
    Serve(*coordinator_, *endpoint_);
    ASSERT_THAT(endpoint_->Start(), ::weft::testing::IsOk());
  }

  JoinOptions OptionsOf(const std::string& role, int rank) {
    JoinOptions options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.address = "unix:/nowhere";
    options.world = World::Fixed(1, 1);
    options.timeout = kLong;
    options.heartbeat_interval = absl::Milliseconds(50);
    options.progress = [](const std::string&) {};
    return options;
  }

  absl::StatusOr<std::unique_ptr<Membership>> Join(JoinOptions options) {
    auto link = MakeGrpcLink(*loop_, address_, "ps0");
    if (!link.ok()) return link.status();
    return Membership::Join(*timers_, *std::move(link), std::move(options));
  }

  // ps0 and trainer0, each joined on a thread of its own.
  void JoinBoth() {
    std::thread other([&] {
      auto joined = Join(OptionsOf("trainer", 0));
      EXPECT_THAT(joined, ::weft::testing::IsOk());
      if (joined.ok()) trainer_ = *std::move(joined);
    });
    auto joined = Join(OptionsOf("ps", 0));
    EXPECT_THAT(joined, ::weft::testing::IsOk());
    if (joined.ok()) ps_ = *std::move(joined);
    other.join();
    ASSERT_NE(ps_, nullptr);
    ASSERT_NE(trainer_, nullptr);
  }

  testing::TempDir dir_;
  std::string address_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<TimerSource> timers_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<Membership> ps_;
  std::unique_ptr<Membership> trainer_;
};

// A coordinator of the test's own making, which answers at once.
class MadeUpLink final : public CoordinatorLink {
 public:
  using Answer = std::function<std::string(absl::string_view method)>;
  MadeUpLink(ThreadPool& pool, Answer answer)
      : pool_(pool), answer_(std::make_shared<Answer>(std::move(answer))) {}

  Future<std::string> Call(absl::string_view method, std::string,
                           absl::Duration) override {
    auto [promise, future] = MakePromise<std::string>();
    pool_.Schedule(
        [answer = answer_, method = std::string(method),
         p = std::move(promise)]() mutable { p.Set((*answer)(method)); });
    return std::move(future);
  }
  const std::string& address() const override { return address_; }

 private:
  ThreadPool& pool_;
  const std::shared_ptr<Answer> answer_;
  const std::string address_ = "nowhere:1";
};

// The first member is admitted, and each Watch returns a newer view, in which
// trainer0 is still missing.
inline std::string AlwaysNews(absl::string_view method) {
  static std::atomic<uint32_t> version{0};
  v1::JoinReply joined;
  joined.mutable_key()->set_epoch(1);
  v1::View* view = joined.mutable_view();
  view->set_version(MakeEpoch(1, ++version));
  *view->mutable_world() = ToWire(World::Fixed(1, 1));
  v1::Member* member = view->add_members();
  member->set_name("ps0");
  member->set_role("ps");
  *member->mutable_key() = joined.key();
  if (method == "Join") return joined.SerializeAsString();
  v1::WatchReply watched;
  *watched.mutable_view() = *view;
  return method == "Watch" ? watched.SerializeAsString() : "";
}

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_MEMBERSHIP_FIXTURE_H_
