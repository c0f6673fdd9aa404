#include "weft/rendezvous/etcd_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/proto/etcd.pb.h"
#include "weft/rendezvous/store_requests.h"

namespace weft::rendezvous {
namespace {

constexpr int64_t kMaxValueBytes = 1 << 20;

class EtcdStore final : public Store {
 public:
  EtcdStore(TimerSource& timers, std::shared_ptr<CoordinatorLink> etcd,
            std::string prefix)
      : timers_(timers), etcd_(std::move(etcd)), prefix_(std::move(prefix)) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    WEFT_RETURN_IF_ERROR(CheckSize(key, value));
    etcdserverpb::TxnRequest request;
    AddPut(request, key, value);
    WEFT_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse reply,
                          Txn(key, request, Deadline(timeout)));
    return static_cast<uint64_t>(reply.header().revision());
  }

  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    WEFT_ASSIGN_OR_RETURN(StoreEntry entry, Look(key, Deadline(timeout)));
    if (entry.version == 0) return NoSuchKey(key);
    return entry;
  }

  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    const Instant deadline = Deadline(timeout);
    absl::Duration pause = absl::Milliseconds(5);
    while (true) {
      const absl::StatusOr<StoreEntry> entry = Look(key, deadline);
      const Instant now = clock().Now();
      if (entry.ok() && entry->version > after) return entry;
      if (now >= deadline) return DidNotChange(key, after, timeout);
      WEFT_RETURN_IF_ERROR(entry.status());
      Pause(std::min(pause, deadline - now));
      pause = std::min(2 * pause, absl::Milliseconds(200));
    }
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    const Instant deadline = Deadline(timeout);
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const StoreEntry now, Look(key, deadline));
      int64_t sum = 0;
      if (now.version != 0 && !absl::SimpleAtoi(now.value, &sum)) {
        return absl::InvalidArgumentError(
            absl::StrCat("store: Add to key \"", key,
                         "\": wanted a decimal number there, found \"",
                         now.value.substr(0, 32), "\""));
      }
      if (__builtin_add_overflow(sum, delta, &sum)) {
        return absl::InvalidArgumentError(
            absl::StrCat("store: Add to key \"", key, "\": the sum overflows"));
      }
      WEFT_ASSIGN_OR_RETURN(
          const Swap swap,
          SwapUntil(key, now.version, absl::StrCat(sum), deadline));
      if (swap.applied) return sum;
    }
  }

  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return SwapUntil(key, expected_version, value, Deadline(timeout));
  }

  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_range()->set_key(KeyOf(key));
    request.add_success()->mutable_request_delete_range()->set_key(KeyOf(key));
    WEFT_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse reply,
                          Txn(key, request, Deadline(timeout)));
    if (reply.responses_size() != 2) return BadAnswer(key);
    return reply.responses(0).response_range().kvs_size() > 0;
  }

  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                    absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckTimeout(prefix, timeout));
    etcdserverpb::RangeRequest request;
    request.set_key(KeyOf(prefix));
    request.set_range_end(EndOfKeysWith(request.key()));
    request.set_count_only(true);
    WEFT_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse reply,
                          Ask<etcdserverpb::RangeResponse>(
                              prefix, "KV/Range", request, Deadline(timeout)));
    return reply.count();
  }

 private:
  Clock& clock() const { return timers_.driver().clock(); }
  Instant Deadline(absl::Duration timeout) const {
    return clock().Now() + timeout;
  }
  std::string KeyOf(absl::string_view key) const {
    return absl::StrCat(prefix_, "/", key);
  }
  static absl::Status BadAnswer(absl::string_view key) {
    return absl::InternalError(
        absl::StrCat("store: key \"", key, "\": etcd's answer makes no sense"));
  }
  // The first key that is above all that begin with `prefix`.
  static std::string EndOfKeysWith(std::string prefix) {
    while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
    if (prefix.empty()) return std::string(1, '\0');  // etcd: no end
    ++prefix.back();
    return prefix;
  }
  static absl::Status CheckSize(absl::string_view key,
                                absl::string_view value) {
    if (static_cast<int64_t>(value.size()) <= kMaxValueBytes) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("store: key \"", key, "\": the value has ", value.size(),
                     " bytes, the limit is ", kMaxValueBytes));
  }

  void Pause(absl::Duration time) {
    Promise<void> over(timers_.driver());
    Future<void> is_over = over.future();
    timers_.RunAfter(time, [over = std::move(over)]() mutable {
      over.Set(absl::OkStatus());
    });
    is_over.Wait(time + absl::Seconds(1)).IgnoreError();
  }

  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Ask(absl::string_view key, absl::string_view method,
                            const Request& request, Instant deadline) {
    const absl::Duration left =
        std::max(deadline - clock().Now(), absl::Milliseconds(1));
    const absl::StatusOr<std::string> answer =
        etcd_->Call(method, request.SerializeAsString(), left)
            .Wait(left + absl::Seconds(1));
    if (!answer.ok()) {
      return absl::Status(
          answer.status().code(),
          absl::StrCat("store: key \"", key, "\": etcd at ", etcd_->address(),
                       ": ", answer.status().message()));
    }
    Reply reply;
    if (!reply.ParseFromString(*answer)) return BadAnswer(key);
    return reply;
  }

  absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      absl::string_view key, const etcdserverpb::TxnRequest& request,
      Instant deadline) {
    return Ask<etcdserverpb::TxnResponse>(key, "KV/Txn", request, deadline);
  }

  static StoreEntry EntryIn(const etcdserverpb::RangeResponse& range) {
    if (range.kvs_size() == 0) return {};
    return {range.kvs(0).value(),
            static_cast<uint64_t>(range.kvs(0).mod_revision())};
  }

  absl::StatusOr<StoreEntry> Look(absl::string_view key, Instant deadline) {
    etcdserverpb::RangeRequest request;
    request.set_key(KeyOf(key));
    WEFT_ASSIGN_OR_RETURN(
        const etcdserverpb::RangeResponse reply,
        Ask<etcdserverpb::RangeResponse>(key, "KV/Range", request, deadline));
    return EntryIn(reply);
  }

  void AddPut(etcdserverpb::TxnRequest& request, absl::string_view key,
              absl::string_view value) const {
    auto* put = request.add_success()->mutable_request_put();
    put->set_key(KeyOf(key));
    put->set_value(std::string(value));
  }

  absl::StatusOr<Swap> SwapUntil(absl::string_view key,
                                 uint64_t expected_version,
                                 absl::string_view value, Instant deadline) {
    WEFT_RETURN_IF_ERROR(CheckSize(key, value));
    etcdserverpb::TxnRequest request;
    auto* compare = request.add_compare();
    compare->set_key(KeyOf(key));
    if (expected_version == 0) {
      compare->set_target(etcdserverpb::Compare::CREATE);
      compare->set_create_revision(0);  // absent
    } else {
      compare->set_target(etcdserverpb::Compare::MOD);
      compare->set_mod_revision(static_cast<int64_t>(expected_version));
    }
    AddPut(request, key, value);
    request.add_failure()->mutable_request_range()->set_key(KeyOf(key));
    WEFT_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse reply,
                          Txn(key, request, deadline));
    if (reply.succeeded()) {
      return Swap{true,
                  {std::string(value),
                   static_cast<uint64_t>(reply.header().revision())}};
    }
    if (reply.responses_size() != 1) return BadAnswer(key);
    return Swap{false, EntryIn(reply.responses(0).response_range())};
  }

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> etcd_;
  const std::string prefix_;
};

}  // namespace

std::unique_ptr<Store> MakeEtcdStore(TimerSource& timers,
                                     std::shared_ptr<CoordinatorLink> etcd,
                                     std::string prefix) {
  return std::make_unique<EtcdStore>(timers, std::move(etcd),
                                     std::move(prefix));
}

}  // namespace weft::rendezvous
