// StoreClient: see the header.

#include "weft/rendezvous/client/store_client.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/client/coordinator_call.h"
#include "weft/rendezvous/core/poll_backoff.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

constexpr absl::string_view kOfRollCalls = "roll_call/";

class StoreClient final : public Store {
 public:
  StoreClient(TimerSource& timers, std::shared_ptr<CoordinatorLink> link,
              std::string job, uint64_t client,
              std::shared_ptr<OpenCalls> calls, WaitReport report)
      : timers_(timers),
        link_(std::move(link)),
        job_(std::move(job)),
        client_(client),
        calls_(std::move(calls)),
        report_(std::move(report)) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    v1::StoreRequest request = Request(v1::StoreRequest::SET, key);
    request.set_value(std::string(value));
    WEFT_ASSIGN_OR_RETURN(const v1::StoreReply reply,
                          Change(std::move(request), timeout));
    return reply.version();
  }

  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    WEFT_ASSIGN_OR_RETURN(
        v1::StoreReply reply,
        Ask(Request(v1::StoreRequest::GET, key), Deadline(timeout)));
    if (!reply.found()) {
      return absl::NotFoundError(
          absl::StrCat("store: there is no key \"", key, "\""));
    }
    return EntryOf(std::move(reply));
  }

  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    const Clock& clock = timers_.driver().clock();
    WaitReports reports(
        absl::StartsWith(key, kOfRollCalls) ? silent_ : report_,
        absl::StrCat("Wait for key ", WordOf(key), " of the store"),
        clock.Now());
    absl::StatusOr<StoreEntry> entry =
        WaitUntil(key, after, Deadline(timeout), reports);
    if (entry.ok() && entry->version <= after) {
      entry = absl::DeadlineExceededError(
          absl::StrCat("store: key \"", key, "\" did not change from version ",
                       after, " within ", absl::FormatDuration(timeout)));
    }
    reports.End(clock.Now(), entry.status());
    return entry;
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    v1::StoreRequest request = Request(v1::StoreRequest::ADD, key);
    request.set_delta(delta);
    WEFT_ASSIGN_OR_RETURN(const v1::StoreReply reply,
                          Change(std::move(request), timeout));
    int64_t sum = 0;
    if (absl::SimpleAtoi(reply.value(), &sum)) return sum;
    return BadAnswer(link_->address(), "Store",
                     absl::StrCat("the sum at key \"", key, "\" is no number"));
  }

  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    v1::StoreRequest request = Request(v1::StoreRequest::COMPARE_SET, key);
    request.set_version(expected_version);
    request.set_value(std::string(value));
    WEFT_ASSIGN_OR_RETURN(v1::StoreReply reply,
                          Change(std::move(request), timeout));
    const bool applied = reply.applied();
    return Swap{applied, EntryOf(std::move(reply))};
  }

  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    WEFT_ASSIGN_OR_RETURN(
        const v1::StoreReply reply,
        Change(Request(v1::StoreRequest::DELETE, key), timeout));
    return reply.applied();
  }

  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                    absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckTimeout(prefix, timeout));
    WEFT_ASSIGN_OR_RETURN(
        const v1::StoreReply reply,
        Ask(Request(v1::StoreRequest::COUNT, prefix), Deadline(timeout)));
    return reply.count();
  }

 private:
  // An entry of no later version than `after`: it did not change.
  absl::StatusOr<StoreEntry> WaitUntil(absl::string_view key, uint64_t after,
                                       Instant deadline, WaitReports& reports) {
    v1::StoreRequest request = Request(v1::StoreRequest::WAIT, key);
    request.set_version(after);
    const Clock& clock = timers_.driver().clock();
    PollBackoff backoff;
    for (;;) {
      const Instant asked = clock.Now();
      absl::StatusOr<v1::StoreReply> reply =
          Ask(request, std::min(deadline, reports.due()));
      const Instant now = clock.Now();
      if (!reply.ok()) {
        if (!absl::IsDeadlineExceeded(reply.status()) || now >= deadline) {
          return reply.status();
        }
        reports.OnTime(now, "the coordinator does not answer");
        continue;
      }
      if (reply->version() > after || now >= deadline) {
        return EntryOf(*std::move(reply));
      }
      reports.OnTime(
          now, after == 0 ? "nobody has set it" : "nobody has changed it");
      PauseFor(timers_, std::min(backoff.Pause(now - asked), deadline - now));
    }
  }

  Instant Deadline(absl::Duration timeout) const {
    return timers_.driver().clock().Now() + timeout;
  }

  v1::StoreRequest Request(v1::StoreRequest::Operation operation,
                           absl::string_view key) const {
    v1::StoreRequest request;
    request.set_job(job_);
    request.set_operation(operation);
    request.set_key(std::string(key));
    return request;
  }

  static StoreEntry EntryOf(v1::StoreReply reply) {
    return {std::move(*reply.mutable_value()), reply.version()};
  }

  absl::StatusOr<v1::StoreReply> Ask(v1::StoreRequest request,
                                     Instant deadline) {
    return CallUntil<v1::StoreReply>(
        *link_, timers_, "Store", deadline,
        [&](absl::Duration hold) {
          request.set_wait_ms(absl::ToInt64Milliseconds(hold));
          return request;
        },
        *calls_);
  }

  // The coordinator remembers one change of each client, so this one waits for
  // the one before.
  absl::StatusOr<v1::StoreReply> Change(v1::StoreRequest request,
                                        absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const Instant deadline = Deadline(timeout);
    Promise<void> mine(timers_.driver());  // its end says that this has ended
    for (;;) {
      Future<void> before = MakeReady();
      {
        MutexLock lock(mu_);
        if (last_change_.IsReady()) {
          last_change_ = mine.future();
          request.set_sequence(++last_sequence_);
          break;
        }
        before = last_change_;
      }
      const absl::Status waited =
          before.Wait(deadline - timers_.driver().clock().Now());
      if (before.IsReady()) continue;
      return absl::Status(
          waited.code(),
          absl::StrCat(
              "store: key \"", request.key(),
              "\": an earlier change is still in flight: ", waited.message()));
    }
    request.set_client(client_);
    return Ask(std::move(request), deadline);
  }

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> link_;
  const std::string job_;
  const uint64_t client_;
  const std::shared_ptr<OpenCalls> calls_;
  const WaitReport report_;
  const WaitReport silent_ = nullptr;
  Mutex mu_;
  Future<void> last_change_ ABSL_GUARDED_BY(mu_) = MakeReady();
  uint64_t last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

std::unique_ptr<Store> MakeStoreClient(TimerSource& timers,
                                       std::shared_ptr<CoordinatorLink> link,
                                       std::string job, uint64_t client,
                                       std::shared_ptr<OpenCalls> calls,
                                       WaitReport report) {
  return std::make_unique<StoreClient>(timers, std::move(link), std::move(job),
                                       client, std::move(calls),
                                       std::move(report));
}

}  // namespace weft::rendezvous
