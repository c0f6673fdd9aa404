// coordinator: no request of any method harms the coordinator. The first byte
// chooses the method.

#include <memory>
#include <utility>

#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr const char* kMethods[] = {"Join",     "Heartbeat", "Watch",
                                    "Announce", "Leave",     "ReportExit",
                                    "Barrier",  "Store",     "Nothing"};

// No time passes.
class NoTimers final : public rendezvous::TimerSource {
 public:
  Driver& driver() override { return ParkingDriver(); }
  void RunAfter(absl::Duration, absl::AnyInvocable<void() &&>) override {}
};

// A coordinator of the job "job", and what it answers.
class Coordinator {
 public:
  Coordinator() {
    rendezvous::CoordinatorOptions options;
    options.core.job = "job";
    auto made =
        rendezvous::Coordinator::Create(timers_, executor_, std::move(options));
    Hold(made.ok());
    coordinator_ = *std::move(made);
  }

  // Empty: refused, or held.
  std::string Handle(absl::string_view method, absl::string_view request) {
    rendezvous::Coordinator::Caller caller;
    caller.text = "the fuzzer";
    auto answer = std::make_shared<std::string>();
    coordinator_->Handle(caller, method, request,
                         [answer](absl::StatusOr<std::string> said) {
                           if (said.ok()) *answer = *std::move(said);
                         });
    return *answer;
  }

 private:
  NoTimers timers_;
  InlineExecutor executor_;
  std::unique_ptr<rendezvous::Coordinator> coordinator_;
};

// ps0, of a world of one.
std::string Join() {
  rendezvous::v1::JoinRequest join;
  join.set_job("job");
  join.mutable_member()->set_name("ps0");
  join.mutable_member()->set_role("ps");
  join.mutable_member()->set_address("unix:/run/ps0.sock");
  join.mutable_member()->set_incarnation(7);
  (*join.mutable_world()->mutable_roles())["ps"] = 1;
  return join.SerializeAsString();
}

// The method's number and a request of the member that has joined.
template <typename Request>
std::string OfMember(char method, Request request) {
  rendezvous::v1::JoinReply reply;
  Hold(reply.ParseFromString(Coordinator().Handle("Join", Join())));
  request.set_job("job");
  *request.mutable_key() = reply.key();
  return method + request.SerializeAsString();
}

std::vector<std::string> Seeds() {
  rendezvous::v1::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(7);
  heartbeat.add_departed()->set_name("ps1");
  rendezvous::v1::WatchRequest watch;
  watch.set_job("job");
  rendezvous::v1::AnnounceRequest announce;
  announce.set_incarnation(7);
  announce.set_phase(rendezvous::v1::DRAINED);
  rendezvous::v1::LeaveRequest leave;
  leave.set_incarnation(7);
  rendezvous::v1::ReportExitRequest exit;
  exit.set_job("job");
  exit.set_name("ps0");
  exit.mutable_process()->set_pid(7);
  exit.set_reason("killed by SIGKILL");
  rendezvous::v1::BarrierRequest barrier;
  barrier.set_tag("begin");
  barrier.add_members("ps0");
  barrier.set_arrival(1);
  barrier.set_wait_ms(5);
  barrier.set_payload("payload");
  rendezvous::v1::StoreRequest store;
  store.set_job("job");
  store.set_operation(rendezvous::v1::StoreRequest::SET);
  store.set_key("a/b");
  store.set_value("value");
  store.set_client(7);
  store.set_sequence(1);
  return {std::string(1, '\0') + Join(),
          OfMember('\1', heartbeat),
          '\2' + watch.SerializeAsString(),
          OfMember('\3', announce),
          OfMember('\4', leave),
          '\5' + exit.SerializeAsString(),
          OfMember('\6', barrier),
          '\7' + store.SerializeAsString()};
}

std::vector<std::string> Words() { return {"job", "ps0", "\x08\x01", "\x10"}; }

// A member that is there first receives it, and may join again afterwards.
void Run(absl::string_view input) {
  if (input.empty()) return;
  Coordinator coordinator;
  coordinator.Handle("Join", Join());
  const auto method = static_cast<uint8_t>(input[0]) % std::size(kMethods);
  coordinator.Handle(kMethods[method], input.substr(1));
  coordinator.Handle("Join", Join());
}

WEFT_FUZZ_TARGET(coordinator, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
