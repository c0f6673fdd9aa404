// etcd: no answer of etcd harms the coordinator's journal in it, nor keeps the
// coordinator busy for ever.
//
// An etcd that is well answers, and the input replaces some of its answers:
// after so many honest ones (a byte) by so many bytes (a byte), which follow;
// by an error, if it is none.

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/etcd.pb.h"
#include "weft/rendezvous/journal/etcd_journal.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

namespace pb = etcdserverpb;

// An input has 4096 bytes at most, and each false answer costs two of them.
constexpr int kMostCalls = 10000;

constexpr char kLog[] = "weft/job/log/0000000000000001/000000000000000";

// Keys and values, without leases that end.
class HonestEtcd {
 public:
  void Put(const std::string& key, const std::string& value) {
    pb::KeyValue& kv = keys_[key];
    kv.set_key(key);
    kv.set_value(value);
    kv.set_mod_revision(++revision_);
  }

  std::string Answer(absl::string_view method, const std::string& request) {
    if (method == "KV/Range") return Range(As<pb::RangeRequest>(request));
    if (method == "KV/Txn") return Txn(As<pb::TxnRequest>(request));
    pb::LeaseKeepAliveResponse lease;  // also LeaseGrantResponse
    lease.set_id(7);
    lease.set_ttl(2);
    return method == "Lease/LeaseRevoke" ? "" : lease.SerializeAsString();
  }

 private:
  template <typename Request>
  static Request As(const std::string& bytes) {
    Request request;
    Hold(request.ParseFromString(bytes));
    return request;
  }

  std::string Range(const pb::RangeRequest& request) const {
    pb::RangeResponse response;
    auto it = keys_.lower_bound(request.key());
    const std::string end = request.range_end().empty() ? request.key() + '\0'
                                                        : request.range_end();
    for (; it != keys_.end() && it->first < end; ++it) {
      *response.add_kvs() = it->second;
    }
    return response.SerializeAsString();
  }

  std::string Txn(const pb::TxnRequest& request) {
    bool holds = true;
    for (const pb::Compare& compare : request.compare()) {
      const auto it = keys_.find(compare.key());
      const int64_t at = it == keys_.end() ? 0 : it->second.mod_revision();
      holds &= at == (compare.target() == pb::Compare::MOD
                          ? compare.mod_revision()
                          : compare.create_revision());
    }
    for (const pb::RequestOp& op : request.success()) {
      if (!holds) break;
      if (op.has_request_put()) {
        Put(op.request_put().key(), op.request_put().value());
        continue;
      }
      const auto& range = op.request_delete_range();
      keys_.erase(keys_.lower_bound(range.key()),
                  keys_.lower_bound(range.range_end()));
    }
    pb::TxnResponse response;
    response.set_succeeded(holds);
    return response.SerializeAsString();
  }

  std::map<std::string, pb::KeyValue> keys_;
  int64_t revision_ = 0;
};

class Link final : public rendezvous::CoordinatorLink {
 public:
  explicit Link(absl::string_view input) : input_(input) {
    rendezvous::v1::JournalHead head;
    head.set_generation(1);
    etcd_.Put("weft/job/head", head.SerializeAsString());
    rendezvous::v1::LogRecord record;
    record.mutable_opened()->set_term(3);
    const std::string frames = rendezvous::FrameRecords({record, record});
    etcd_.Put(absl::StrCat(kLog, 0), frames.substr(0, 20));
    etcd_.Put(absl::StrCat(kLog, 1), frames.substr(20));
    NextReplacement();
  }

  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration) override {
    Hold(++calls_ < kMostCalls);
    std::string answer = etcd_.Answer(method, request);
    if (input_.empty() || honest_left_-- > 0) {
      return MakeReady<std::string>(std::move(answer));
    }
    const size_t wanted = Byte();
    const size_t size = std::min(wanted, input_.size());
    answer = std::string(input_.substr(0, size));
    input_.remove_prefix(size);
    NextReplacement();
    if (size > 0) return MakeReady<std::string>(std::move(answer));
    return MakeReady<std::string>(calls_ % 8 == 0
                                      ? absl::InternalError("etcd")
                                      : absl::UnavailableError("etcd"));
  }
  const std::string& address() const override { return address_; }

 private:
  uint8_t Byte() {
    if (input_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(input_[0]);
    input_.remove_prefix(1);
    return byte;
  }
  void NextReplacement() { honest_left_ = Byte(); }

  absl::string_view input_;
  HonestEtcd etcd_;
  int honest_left_ = 0;
  int calls_ = 0;
  const std::string address_ = "etcd";
};

// Each look at the clock takes a while, and no pause does. The first timers, by
// which the lease is kept, run at once.
class HastyTimers final : public rendezvous::TimerSource,
                          private Driver,
                          private Clock {
 public:
  Driver& driver() override { return *this; }
  void RunAfter(absl::Duration, absl::AnyInvocable<void() &&> fn) override {
    if (--timers_ > 0) std::move(fn)();
  }

 private:
  Clock& clock() override { return *this; }
  bool Wait(Waitable& what, Instant) override {
    Hold(what.IsReady());
    return true;
  }
  Instant Now() const override { return now_ += absl::Milliseconds(200); }

  mutable Instant now_;
  int timers_ = 4;
};

std::string Replace(char after, const std::string& by) {
  return absl::StrCat(std::string(1, after),
                      std::string(1, static_cast<char>(by.size())), by);
}

std::vector<std::string> Seeds() {
  pb::RangeResponse found;
  rendezvous::v1::Meeting meeting;
  meeting.set_job("job");
  meeting.set_address("unix:/other");
  pb::KeyValue& kv = *found.add_kvs();
  kv.set_key(absl::StrCat(kLog, 0));
  kv.set_value(meeting.SerializeAsString());
  kv.set_mod_revision(5);
  const std::string host = found.SerializeAsString();
  rendezvous::v1::LogRecord record;
  record.mutable_opened()->set_job("job");
  kv.set_value(rendezvous::FrameRecords({record}));
  found.set_more(true);
  const std::string chunk = found.SerializeAsString();
  pb::TxnResponse refused;
  refused.mutable_header()->set_revision(3);
  std::vector<std::string> seeds = {"\xff", Replace(0, host)};
  // The journal is opened in nine calls, four of which are the lease's.
  for (char at = 0; at < 24; ++at) {
    seeds.push_back(Replace(at, ""));
    seeds.push_back(Replace(at, at % 2 == 0 ? chunk : host) +
                    Replace(0, refused.SerializeAsString()));
  }
  return seeds;
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"weft/job/", "\x12\x04"s, "\x18\x01"s, "\x10\x01"s, "\x01\x00"s};
}

void Run(absl::string_view input) {
  rendezvous::EtcdJournalOptions options;
  options.job = "job";
  options.address = "unix:/a";
  options.patience = absl::Milliseconds(500);
  options.append_patience = absl::Milliseconds(500);
  rendezvous::v1::LogRecord record;
  record.mutable_opened()->set_term(1);
  HastyTimers timers;
  const auto link = std::make_shared<Link>(input);
  const auto address =
      rendezvous::FindByEtcd(*link, "weft", "job").Wait(absl::ZeroDuration());
  Hold(!address.ok() || !address->empty());
  auto journal = rendezvous::OpenEtcdJournal(timers, link, options);
  if (!journal.ok()) return;
  (void)(*journal)->Append({record});
  (void)(*journal)->Rewrite({record, record});
  (void)(*journal)->Append({record});
  Hold((*journal)->bytes() >= 0);
}

WEFT_FUZZ_TARGET(etcd, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
