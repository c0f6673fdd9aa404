#include "weft/worker/test_workers.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::worker {
namespace {

// The error that came first: that of others may follow from it.
class FirstError {
 public:
  void Note(const std::string& name, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (status.ok()) return;
    MutexLock lock(mu_);
    if (!first_.ok()) return;
    first_ = Reworded(status, SaidBy(name, status.message()));
  }
  absl::Status Get() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return first_;
  }

 private:
  Mutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);
};

// Runs body(i) for each of `names` on a thread of its own: starting and ending
// a worker waits for the others. The first error, with its name.
absl::Status AtOnce(const std::vector<std::string>& names,
                    const std::function<absl::Status(size_t)>& body) {
  FirstError error;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < names.size(); ++i) {
    auto thread = StartThread(absl::StrCat("TestWorkers: ", names[i]), [&, i] {
      error.Note(names[i], CatchToStatus([&] { return body(i); }));
    });
    error.Note(names[i], thread.status());
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  return error.Get();
}

}  // namespace

// Under /tmp rather than $TMPDIR, which is often too long for the address of a
// unix socket: 107 characters.
TestWorkers::TestWorkers() : directory_("/tmp/weft-test-XXXXXX") {
  WEFT_CHECK(mkdtemp(directory_.data()) != nullptr) << directory_;
}

TestWorkers::~TestWorkers() {
  const std::vector<std::string> left = names();
  AtOnce(left, [&](size_t i) {
    workers_.at(left[i]).reset();
    return absl::OkStatus();
  }).IgnoreError();
  workers_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

absl::StatusOr<std::unique_ptr<TestWorkers>> TestWorkers::Start(
    const Options& options) {
  if (options.servers < 0 || options.trainers < 0 ||
      options.servers + options.trainers == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TestWorkers: wanted one server or trainer at least, found servers=",
        options.servers, ", trainers=", options.trainers));
  }
  auto workers = std::unique_ptr<TestWorkers>(new TestWorkers());
  WEFT_RETURN_IF_ERROR(workers->StartAll(options));
  return workers;
}

absl::Status TestWorkers::StartAll(const Options& options) {
  std::vector<worker::Options> each;
  const auto add = [&](const std::string& role, int rank) {
    worker::Options one;
    one.job = "test";
    one.role = role;
    one.rank = rank;
    one.servers = options.servers;
    one.trainers = options.trainers;
    one.coordinator = absl::StrCat("unix:", directory_, "/coordinator.sock");
    one.dump_dir = directory_;
    one.join_timeout = options.start_timeout;
    one.ranks_on_host = options.servers + options.trainers;
    one.log_level = telemetry::Level::kWarning;
    if (options.configure != nullptr) options.configure(one);
    order_.push_back(one.name());
    each.push_back(std::move(one));
  };
  for (int i = 0; i < options.servers; ++i) add("ps", i);
  for (int i = 0; i < options.trainers; ++i) add("trainer", i);
  std::vector<std::unique_ptr<Worker>> made(each.size());
  const absl::Status started = AtOnce(order_, [&](size_t i) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(made[i], Worker::Start(each[i]));
    return absl::OkStatus();
  });
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i] != nullptr) workers_[order_[i]] = std::move(made[i]);
  }
  return started;
}

std::vector<std::string> TestWorkers::names() const {
  std::vector<std::string> living;
  for (const std::string& name : order_) {
    if (workers_.count(name) > 0) living.push_back(name);
  }
  return living;
}

Worker& TestWorkers::Get(const std::string& name) {
  const auto found = workers_.find(name);
  WEFT_CHECK(found != workers_.end())
      << "TestWorkers: no living worker is called " << name;
  return *found->second;
}

absl::Status TestWorkers::Run(
    const std::function<absl::Status(Worker& worker)>& main) {
  const std::vector<std::string> living = names();
  return AtOnce(living, [&](size_t i) { return main(Get(living[i])); });
}

void TestWorkers::Kill(const std::string& name) {
  WEFT_CHECK_EQ(workers_.erase(name), size_t{1});
}

absl::Status TestWorkers::Shutdown(absl::Duration timeout) {
  const std::vector<std::string> living = names();
  const absl::Status ended = AtOnce(living, [&](size_t i) {
    return workers_.at(living[i])->Shutdown(timeout).status();
  });
  // Only now, since one that has ended may still be asked by another.
  AtOnce(living, [&](size_t i) {
    workers_.at(living[i]).reset();
    return absl::OkStatus();
  }).IgnoreError();
  workers_.clear();
  return ended;
}

}  // namespace weft::worker
