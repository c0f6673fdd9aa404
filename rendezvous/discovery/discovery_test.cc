// Tests of how a job's workers find each other: init URLs, a file, etcd.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/thread_pool.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/etcd.pb.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/discovery/rendezvous_file.h"
#include "weft/rendezvous/discovery/resolving_link.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/init_url.h"
#include "weft/rendezvous/journal/etcd_journal.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rendezvous {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(InitUrl, ReadsEachForm) {
  const auto parse = [](const char* text) {
    const auto url = ParseInitUrl(text);
    EXPECT_THAT(url, IsOk());
    return url.value_or(InitUrl());
  };
  EXPECT_EQ(parse("env://").kind, InitUrl::Kind::kEnv);
  EXPECT_EQ(parse("tcp://[::1]:7000").address, "[::1]:7000");
  EXPECT_EQ(parse("file:///tmp/job").path, "/tmp/job");
  EXPECT_EQ(parse("etcd://node1:2379").prefix, "weft");
  EXPECT_EQ(parse("etcd://node1:2379/a/b/").prefix, "a/b");
  EXPECT_EQ(parse("etcd://node1:2379/a").address, "node1:2379");
  EXPECT_EQ(parse("etcd+unix:///run/etcd:0").address, "unix:/run/etcd:0");
}

TEST(InitUrl, RefusesOthersAndNamesTheForms) {
  for (const char* text :
       {"", "7000", "http://a:1", "env://x", "tcp://", "tcp://host",
        "tcp://h:1/x", "tcp://h:1?rank=0", "tcp://[:\1]:7000", "tcp://h:70000",
        "tcp://unix:", "tcp://h:0", "etcd://h:0", "file://", "file://a",
        "file:///a/", "etcd://h", "etcd://h:1/a b", "etcd+unix://etcd"}) {
    EXPECT_THAT(ParseInitUrl(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "wanted env://, tcp://HOST:PORT"))
        << text;
  }
}

TEST(RendezvousFile, IsThereWholeWhileItsHostLives) {
  testing::TempDir dir;
  const std::string path = dir.Path("job");
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kNotFound, path));
  auto file = RendezvousFile::Create(path, "job", "unix:/a");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(ReadRendezvousFile(path, "job"), IsOkAndHolds("unix:/a"));
  EXPECT_THAT(ReadRendezvousFile(path, "other"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "job \"job\", not of job \"other\""));
  EXPECT_THAT(RendezvousFile::Create(path, "other", "unix:/b"),
              StatusIs(absl::StatusCode::kAlreadyExists, "\"job\" at unix:/a"));
  file->reset();
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kNotFound, path));
  EXPECT_THAT(RendezvousFile::Create(path, "other", "unix:/b"), IsOk());
}

TEST(RendezvousFile, AStaleOneIsNotReusedAndSaysHowToRemoveIt) {
  testing::TempDir dir;
  const std::string path = dir.Path("job");
  {
    auto file = RendezvousFile::Create(path, "job", "unix:/a");
    ASSERT_THAT(file, IsOk());
    // Keeps the file as a host that is killed leaves it.
    ASSERT_EQ(link(path.c_str(), dir.Path("kept").c_str()), 0);
  }
  ASSERT_EQ(rename(dir.Path("kept").c_str(), path.c_str()), 0);
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rm " + path));
  EXPECT_THAT(RendezvousFile::Create(path, "job", "unix:/b"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rm " + path));
  EXPECT_EQ(unlink(path.c_str()), 0);
  EXPECT_THAT(RendezvousFile::Create(path, "job", "unix:/b"), IsOk());
}

TEST(RendezvousFile, RefusesWritableByOthersLinksAndOtherFiles) {
  testing::TempDir dir;
  const std::string path = dir.Path("job");
  std::ofstream(path) << "something else entirely, and long enough";
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "mode 0600"));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kDataLoss, "rm " + path));
  const std::string live = dir.Path("live");
  auto held = RendezvousFile::Create(live, "job", "unix:/a");
  ASSERT_THAT(held, IsOk());
  EXPECT_THAT(ReadRendezvousFile(live, "job"), IsOk());
  const std::string pointer = dir.Path("link");
  ASSERT_EQ(symlink(live.c_str(), pointer.c_str()), 0);
  EXPECT_FALSE(ReadRendezvousFile(pointer, "job").ok());
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  EXPECT_THAT(ReadRendezvousFile(path, "job"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "others may"));
  EXPECT_THAT(RendezvousFile::Create(dir.Path("new"), "job", "unix:/a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "others may"));
  ASSERT_EQ(chmod(dir.path().c_str(), 01777), 0);  // as /tmp is
  EXPECT_THAT(RendezvousFile::Create(dir.Path("new"), "job", "unix:/a"),
              IsOk());
}

TEST(RendezvousFile, NoCutOrBitFlipIsReadAsAnother) {
  testing::TempDir dir;
  const std::string path = dir.Path("job");
  auto file = RendezvousFile::Create(path, "job", "unix:/a");
  ASSERT_THAT(file, IsOk());
  std::ifstream in(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  const auto refused = [&](const std::string& bytes) {
    const int fd = open(path.c_str(), O_WRONLY | O_TRUNC);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
    close(fd);
    return absl::IsDataLoss(ReadRendezvousFile(path, "job").status());
  };
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(refused(whole.substr(0, size))) << size;
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] ^= 1 << bit % 8;
    EXPECT_TRUE(refused(flipped)) << bit;
  }
}

// A coordinator at some address, which answers by its address.
class FakeLink final : public CoordinatorLink {
 public:
  FakeLink(std::string address, const bool& is_up, const absl::Status& is_down)
      : address_(std::move(address)), is_up_(is_up), is_down_(is_down) {}
  Future<std::string> Call(absl::string_view, std::string,
                           absl::Duration) override {
    if (is_up_) return MakeReady<std::string>(address_);
    return MakeReady<std::string>(is_down_);
  }
  const std::string& address() const override { return address_; }

 private:
  const std::string address_;
  const bool& is_up_;
  const absl::Status& is_down_;
};

struct ResolvingCase {
  absl::StatusOr<std::string> written = absl::NotFoundError("nothing yet");
  std::map<std::string, bool> is_up = {{"a", true}, {"b", true}};
  absl::Status is_down = absl::UnavailableError("refused");
  int found = 0;
  std::unique_ptr<CoordinatorLink> link = MakeResolvingLink(
      "file:///job", ParkingDriver(),
      [this] {
        ++found;
        return MakeReady<std::string>(written);
      },
      [this](const std::string& address)
          -> absl::StatusOr<std::unique_ptr<CoordinatorLink>> {
        return std::make_unique<FakeLink>(address, is_up.at(address), is_down);
      });

  // Asks like a member: again while the error may pass.
  absl::StatusOr<std::string> Ask() {
    absl::StatusOr<std::string> answer;
    for (int i = 0; i < 3; ++i) {
      answer = link->Call("Watch", "", kLong).Wait(kLong);
      if (!absl::IsUnavailable(answer.status()) &&
          !absl::IsDeadlineExceeded(answer.status())) {
        break;
      }
    }
    return answer;
  }
};

TEST(ResolvingLink, FollowsTheCoordinatorToItsNewAddress) {
  ResolvingCase c;
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kUnavailable,
                                "file:///job: nothing yet"));
  c.written = "a";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("a"));
  const int found = c.found;
  EXPECT_THAT(c.Ask(), IsOkAndHolds("a"));
  EXPECT_EQ(c.found, found) << "it need not look again";
  c.is_up["a"] = false;
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kUnavailable, "refused"));
  c.is_up["a"] = true;  // it was started again where it was
  EXPECT_THAT(c.Ask(), IsOkAndHolds("a"));
  c.is_up["a"] = false;
  c.written = "b";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("b"));
}

TEST(ResolvingLink, LooksAgainAfterSilence) {
  ResolvingCase c;
  c.written = "a";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("a"));
  c.is_down = absl::DeadlineExceededError("no answer");  // it is stopped
  c.is_up["a"] = false;
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  c.written = "b";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("b"));
}

TEST(ResolvingLink, GoesOnLookingAfterTheStaleFileOfAHostThatWasKilled) {
  ResolvingCase c;
  c.written = "a";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("a"));
  c.is_up["a"] = false;
  c.written = absl::FailedPreconditionError("stale; rm it");
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kUnavailable, "refused"));
  c.written = "b";
  EXPECT_THAT(c.Ask(), IsOkAndHolds("b"));
}

TEST(ResolvingLink, AnErrorThatStaysIsFinal) {
  ResolvingCase c;
  c.written = absl::FailedPreconditionError("stale; rm it");
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                "file:///job: stale; rm it"));
  c.written = "a";
  EXPECT_THAT(c.Ask(), StatusIs(absl::StatusCode::kFailedPrecondition, "rm"));
}

class EtcdJournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
    StartEtcd();
    auto loop = net::Loop::Create();
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    timers_ = MakeLoopTimers(*loop_);
  }

  void StartEtcd() {
    auto etcd = testing::Etcd::Start(dir_.path());
    ASSERT_THAT(etcd, IsOk());
    etcd_ = *std::move(etcd);
  }
  // Appends like the coordinator, again until etcd is there.
  static absl::Status Again(const std::function<absl::Status()>& append) {
    const Instant deadline = SteadyClock().Now() + kLong;
    absl::Status status;
    do {
      status = append();
    } while (absl::IsUnavailable(status) && SteadyClock().Now() < deadline);
    return status;
  }

  std::shared_ptr<CoordinatorLink> Link() {
    auto link = MakeEtcdLink(*loop_, etcd_->address());
    EXPECT_THAT(link, IsOk());
    return *std::move(link);
  }
  absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& address) {
    return Open(address, Link());
  }
  absl::StatusOr<std::unique_ptr<Journal>> Open(
      const std::string& address, std::shared_ptr<CoordinatorLink> link,
      bool stands_by = false) {
    EtcdJournalOptions options;
    options.job = "job";
    options.address = address;
    options.patience = kLong;
    options.append_patience = append_patience_;
    options.lease = lease_;
    options.stands_by = stands_by;
    options.cancel = cancel_.token();
    return OpenEtcdJournal(*timers_, std::move(link), options);
  }
  // What an operator's hand may do there.
  void Delete(const std::string& key) {
    etcdserverpb::TxnRequest change;
    change.add_success()->mutable_request_delete_range()->set_key(key);
    EXPECT_THAT(
        Link()->Call("KV/Txn", change.SerializeAsString(), kLong).Wait(kLong),
        IsOk());
  }

  static v1::LogRecord Opened(uint32_t term, std::string job = "job") {
    v1::LogRecord record;
    record.mutable_opened()->set_term(term);
    record.mutable_opened()->set_job(std::move(job));
    return record;
  }

  absl::Duration lease_ = absl::Seconds(5);  // to be renewed on any machine
  absl::Duration append_patience_ = kLong;   // shorter where etcd is away
  CancelSource cancel_;
  testing::TempDir dir_;
  std::unique_ptr<testing::Etcd> etcd_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<TimerSource> timers_;
};

TEST_F(EtcdJournalTest, KeepsAppendedAndRewrittenRecords) {
  const std::string large(1200000, 'x');  // several pieces
  {
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    EXPECT_TRUE((*journal)->history().empty());
    EXPECT_THAT((*journal)->Append({Opened(1), Opened(2, large)}), IsOk());
    EXPECT_THAT((*journal)->Append({Opened(3)}), IsOk());
  }
  {
    auto journal = Open("unix:/b");
    ASSERT_THAT(journal, IsOk());
    ASSERT_EQ((*journal)->history().size(), 3u);
    EXPECT_EQ((*journal)->history()[1].opened().job(), large);
    EXPECT_THAT((*journal)->Rewrite({Opened(8), Opened(9)}), IsOk());
    EXPECT_THAT((*journal)->Append({Opened(10)}), IsOk());
  }
  auto journal = Open("unix:/c");
  ASSERT_THAT(journal, IsOk());
  EXPECT_EQ((*journal)->history().size(), 3u);
  EXPECT_EQ(LastTermOf((*journal)->history()), 10u);
}

TEST_F(EtcdJournalTest, OneHostWritesAtATimeAndItsSuccessorTakesOver) {
  auto first = Open("unix:/a");
  ASSERT_THAT(first, IsOk());
  const auto link = Link();
  EXPECT_THAT(FindByEtcd(*link, "weft", "job").Wait(kLong),
              IsOkAndHolds("unix:/a"));
  EXPECT_THAT(FindByEtcd(*link, "weft", "other").Wait(kLong),
              StatusIs(absl::StatusCode::kNotFound, "\"other\""));
  // Longer than its lease, which it renews.
  EXPECT_THAT(Open("unix:/b"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "is at unix:/a, not"));
  EXPECT_THAT((*first)->Append({Opened(1)}), IsOk());
  Delete("weft/job/host");  // as if its lease had run out unnoticed
  auto second = Open("unix:/b");
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ((*second)->history().size(), 1u);
  EXPECT_THAT((*first)->Append({Opened(2)}),
              StatusIs(absl::StatusCode::kAborted, "has taken over"));
  EXPECT_THAT((*first)->Append({Opened(2)}),
              StatusIs(absl::StatusCode::kAborted, "has taken over"));
  EXPECT_THAT((*second)->Append({Opened(3)}), IsOk());
}

TEST_F(EtcdJournalTest, OneThatStandsByGoesOnOnceTheHostHasEnded) {
  auto first = Open("unix:/a");
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT((*first)->Append({Opened(1)}), IsOk());
  auto pool = ThreadPool::Create({.name = "second", .threads = 1});
  ASSERT_THAT(pool, IsOk());
  absl::StatusOr<std::unique_ptr<Journal>> second =
      absl::UnknownError("it stands by");
  std::atomic<bool> is_open{false};
  (*pool)->Schedule([&] {
    second = Open("unix:/b", Link(), /*stands_by=*/true);
    is_open = true;
  });
  // One that does not stand by gives up meanwhile.
  EXPECT_THAT(Open("unix:/c"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "is at unix:/a, not"));
  EXPECT_FALSE(is_open);
  EXPECT_THAT((*first)->Append({Opened(2)}), IsOk());
  first->reset();
  EXPECT_TRUE(testing::Becomes([&] { return is_open.load(); }));
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ((*second)->history().size(), 2u);
  EXPECT_THAT(FindByEtcd(*Link(), "weft", "job").Wait(kLong),
              IsOkAndHolds("unix:/b"));
  EXPECT_THAT((*second)->Append({Opened(3)}), IsOk());
}

TEST_F(EtcdJournalTest, OneThatStandsByEndsWhereItIsToldTo) {
  auto first = Open("unix:/a");
  ASSERT_THAT(first, IsOk());
  cancel_.Cancel(absl::CancelledError("enough"));
  EXPECT_THAT(Open("unix:/b", Link(), /*stands_by=*/true),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT((*first)->Append({Opened(1)}), IsOk());
}

TEST_F(EtcdJournalTest, DropsARecordThatWasCutShort) {
  {
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    EXPECT_THAT((*journal)->Append({Opened(1)}), IsOk());
    EXPECT_THAT((*journal)->Append({Opened(2, std::string(600000, 'x'))}),
                IsOk());
  }
  const std::string log = "weft/job/log/0000000000000000/";
  Delete(log + "0000000000000002");  // its second piece
  {
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    EXPECT_EQ((*journal)->history().size(), 1u);
    EXPECT_THAT((*journal)->Append({Opened(3)}), IsOk());
  }
  auto journal = Open("unix:/a");
  ASSERT_THAT(journal, IsOk());
  EXPECT_EQ((*journal)->history().size(), 2u);
  EXPECT_EQ(LastTermOf((*journal)->history()), 3u);
}

TEST_F(EtcdJournalTest, NamesAPieceThatIsMissing) {
  {
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    for (const uint32_t term : {1, 2, 3}) {
      EXPECT_THAT((*journal)->Append({Opened(term)}), IsOk());
    }
  }
  const std::string second = "weft/job/log/0000000000000000/0000000000000001";
  Delete(second);
  EXPECT_THAT(Open("unix:/a"),
              StatusIs(absl::StatusCode::kDataLoss,
                       "the key " + second + " is missing before"));
}

TEST_F(EtcdJournalTest, GoesOnWhenEtcdIsBack) {
  append_patience_ = absl::Seconds(1);
  auto journal = Open("unix:/a");
  ASSERT_THAT(journal, IsOk());
  etcd_.reset();  // with SIGKILL
  StartEtcd();
  EXPECT_THAT(Again([&] { return (*journal)->Append({Opened(1)}); }), IsOk());
}

TEST_F(EtcdJournalTest, RecordRefusedInAnOutageIsWrittenOnceAfterIt) {
  append_patience_ = absl::Seconds(1);
  const std::string large(1200000, 'x');  // several pieces
  {
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    EXPECT_THAT((*journal)->Append({Opened(1)}), IsOk());
    etcd_.reset();  // with SIGKILL
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT((*journal)->Append({Opened(2, large), Opened(3)}),
                  StatusIs(absl::StatusCode::kUnavailable, "etcd"));
    }
    StartEtcd();
    EXPECT_THAT(Again([&] {
                  return (*journal)->Append({Opened(2, large), Opened(3)});
                }),
                IsOk());
    etcd_.reset();
    EXPECT_THAT((*journal)->Rewrite({Opened(4)}),
                StatusIs(absl::StatusCode::kUnavailable, "etcd"));
    StartEtcd();
    EXPECT_THAT(Again([&] { return (*journal)->Append({Opened(5)}); }), IsOk());
  }
  auto journal = Open("unix:/a");
  ASSERT_THAT(journal, IsOk());
  ASSERT_EQ((*journal)->history().size(), 4u);
  EXPECT_EQ((*journal)->history()[1].opened().job(), large);
  EXPECT_EQ(LastTermOf((*journal)->history()), 5u);
}

// Forwards to etcd, but while it is paused nothing that keeps a lease.
class PausedLink final : public CoordinatorLink {
 public:
  explicit PausedLink(std::shared_ptr<CoordinatorLink> etcd)
      : etcd_(std::move(etcd)) {}
  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) override {
    if (is_paused && absl::StartsWith(method, "Lease/")) {
      return MakeReady<std::string>(absl::UnavailableError("paused"));
    }
    return etcd_->Call(method, std::move(request), timeout);
  }
  const std::string& address() const override { return etcd_->address(); }

  std::atomic<bool> is_paused{false};

 private:
  const std::shared_ptr<CoordinatorLink> etcd_;
};

absl::StatusOr<std::string> Ask(Coordinator& coordinator,
                                absl::string_view method,
                                const std::string& request) {
  auto [promise, future] = MakePromise<std::string>();
  coordinator.Handle(
      {"a test", ""}, method, request,
      [p = std::move(promise)](absl::StatusOr<std::string> answer) mutable {
        p.Set(std::move(answer));
      });
  return future.Wait(kLong);
}

v1::JoinRequest JoinOf(const std::string& role, uint64_t incarnation) {
  v1::JoinRequest join;
  join.set_job("job");
  *join.mutable_world() = ToWire(World::Fixed(1, 1));
  join.mutable_member()->set_name(role + "0");
  join.mutable_member()->set_role(role);
  join.mutable_member()->set_incarnation(incarnation);
  return join;
}

TEST_F(EtcdJournalTest, ADeposedCoordinatorSendsItsMembersToLookForAnother) {
  lease_ = absl::Seconds(2);
  auto executor = ThreadPool::Create({});
  ASSERT_THAT(executor, IsOk());
  const auto start = [&](absl::StatusOr<std::unique_ptr<Journal>> journal) {
    EXPECT_THAT(journal, IsOk());
    CoordinatorOptions options;
    options.journal = *std::move(journal);
    auto made = Coordinator::Create(*timers_, **executor, std::move(options));
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  };
  for (const bool by_its_lease : {true, false}) {
    const auto link = std::make_shared<PausedLink>(Link());
    const auto first = start(Open("unix:/a", link));
    const auto joined =
        Ask(*first, "Join", JoinOf("ps", 7).SerializeAsString());
    v1::JoinReply reply;
    EXPECT_TRUE(reply.ParseFromString(joined.value_or("")));
    v1::HeartbeatRequest beat;
    beat.set_job("job");
    *beat.mutable_key() = reply.key();
    beat.set_incarnation(7);
    link->is_paused = true;  // its lease ends
    const auto second = start(Open("unix:/b"));
    link->is_paused = !by_its_lease;
    absl::Status status;
    if (!by_its_lease) {
      status = Ask(*first, "Join", JoinOf("trainer", 8).SerializeAsString())
                   .status();
    }
    const Instant deadline = SteadyClock().Now() + kLong;
    while (status.ok() && SteadyClock().Now() < deadline) {
      status = Ask(*first, "Heartbeat", beat.SerializeAsString()).status();
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "taken over"));
    EXPECT_THAT(Ask(*first, "Heartbeat", beat.SerializeAsString()),
                StatusIs(absl::StatusCode::kUnavailable, "taken over"));
    EXPECT_THAT(Ask(*second, "Heartbeat", beat.SerializeAsString()), IsOk());
  }
}

// Forwards to etcd, and loses the answers to changes of the head.
class LossyLink final : public CoordinatorLink {
 public:
  explicit LossyLink(std::shared_ptr<CoordinatorLink> etcd)
      : etcd_(std::move(etcd)) {}
  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) override {
    etcdserverpb::TxnRequest change;
    const bool is_change =
        method == "KV/Txn" && change.ParseFromString(request) &&
        change.success(0).request_put().key() == "weft/job/head";
    if (is_change && drops_changes) {
      return MakeReady<std::string>(absl::UnavailableError("lost"));
    }
    auto answer = etcd_->Call(method, std::move(request), timeout);
    if (!is_change || !loses_answers) return answer;
    (void)answer.Wait(kLong);
    return MakeReady<std::string>(absl::UnavailableError("lost"));
  }
  const std::string& address() const override { return etcd_->address(); }

  bool loses_answers = false;
  bool drops_changes = false;

 private:
  const std::shared_ptr<CoordinatorLink> etcd_;
};

TEST_F(EtcdJournalTest, ARewriteThatWasNotAnsweredIsSettledByTheNext) {
  for (const bool arrives : {true, false}) {
    {
      const auto link = std::make_shared<LossyLink>(Link());
      EtcdJournalOptions options;
      options.job = "job";
      options.address = "unix:/a";
      options.patience = kLong;
      options.append_patience = absl::ZeroDuration();
      auto journal = OpenEtcdJournal(*timers_, link, options);
      ASSERT_THAT(journal, IsOk());
      EXPECT_THAT((*journal)->Rewrite({Opened(1), Opened(2)}), IsOk());
      link->loses_answers = arrives;
      link->drops_changes = !arrives;
      EXPECT_THAT((*journal)->Rewrite({Opened(7)}),
                  StatusIs(absl::StatusCode::kUnavailable, "lost"));
      link->loses_answers = link->drops_changes = false;
      EXPECT_THAT((*journal)->Append({Opened(9)}), IsOk());
    }
    auto journal = Open("unix:/a");
    ASSERT_THAT(journal, IsOk());
    EXPECT_EQ((*journal)->history().size(), arrives ? 2u : 3u);
    EXPECT_EQ(LastTermOf((*journal)->history()), 9u);
  }
}

TEST_F(EtcdJournalTest, OverTlsBothShowCertificatesOfTheJob) {
  net::CertificatesOptions certificates;
  certificates.job = "job";
  certificates.members = {{"", "ps", 0}, {"", "etcd", 0}};
  for (const char* authority : {"ours", "theirs"}) {
    certificates.directory = dir_.Path(authority);
    ASSERT_THAT(net::MakeCertificates(certificates), IsOk());
  }
  const auto append = [&](const std::string& of_host,
                          absl::Duration patience) -> absl::Status {
    auto credentials = net::Credentials::ForMember(dir_.Path(of_host), "ps0");
    if (!credentials.ok()) return credentials.status();
    net::LoopOptions options;
    options.credentials = *std::move(credentials);
    auto loop = net::Loop::Create(std::move(options));
    if (!loop.ok()) return loop.status();
    const auto timers = MakeLoopTimers(**loop);
    auto link = MakeEtcdLink(**loop, etcd_->address());
    if (!link.ok()) return link.status();
    EtcdJournalOptions journal;
    journal.job = "job";
    journal.address = "unix:/a";
    journal.patience = patience;
    auto opened = OpenEtcdJournal(*timers, *std::move(link), journal);
    return opened.ok() ? (*opened)->Append({Opened(1)}) : opened.status();
  };
  const auto end = [&](const std::string& of_etcd, const std::string& of_host,
                       absl::Duration patience) {
    etcd_ = nullptr;  // one at a time has the data, and its peers' socket
    auto etcd = testing::Etcd::StartWithTls(dir_.path(), dir_.Path(of_etcd));
    if (!etcd.ok()) return etcd.status();
    etcd_ = *std::move(etcd);
    return append(of_host, patience);
  };
  EXPECT_THAT(end("ours/etcd0", "ours", kLong), IsOk());
  for (const auto& [of_etcd, of_host] :
       std::map<std::string, std::string>{{"ours/etcd0", "theirs"},
                                          {"theirs/etcd0", "ours"},
                                          {"ours/ps0", "ours"}}) {
    // gRPC says which of the two ended the handshake, or only that it ended.
    const absl::Status refused = end(of_etcd, of_host, absl::ZeroDuration());
    EXPECT_TRUE(absl::IsUnauthenticated(refused) ||
                absl::StrContains(refused.message(), "andshake"))
        << refused;
  }
}

TEST_F(EtcdJournalTest, SaysThatEtcdIsNotThere) {
  etcd_ = nullptr;
  auto link = MakeEtcdLink(*loop_, "unix:" + dir_.Path("nowhere"));
  ASSERT_THAT(link, IsOk());
  EtcdJournalOptions options;
  options.job = "job";
  options.patience = absl::Milliseconds(200);
  EXPECT_THAT(OpenEtcdJournal(*timers_, *std::move(link), options),
              StatusIs(absl::StatusCode::kUnavailable, "/nowhere"));
}

}  // namespace
}  // namespace weft::rendezvous
