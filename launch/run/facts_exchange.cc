// FactsExchange: see the header.

#include "weft/launch/run/facts_exchange.h"

#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/launch/stuck/shared_facts.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::launch {
namespace {

using Kind = FactsSharing::Call::Kind;
using rendezvous::v1::StoreReply;
using rendezvous::v1::StoreRequest;

// How long the coordinator holds a call that waits for a change.
constexpr absl::Duration kHold = absl::Seconds(10);
constexpr absl::Duration kAnswerTime = absl::Seconds(2);

std::string ThisHost() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

}  // namespace

std::vector<RankFacts> FactsExchange::Exchange(
    const std::vector<RankFacts>& own, const std::set<int>& nodes) {
  const Instant now = SteadyClock().Now();
  TakeReplies(now);
  const auto link = channel_.Get();
  if (!link.ok()) return {};
  for (const FactsSharing::Call& call : sharing_.Due(nodes, now)) {
    under_way_.push_back({call, Begin(**link, call, own)});
  }
  return sharing_.Known(now);
}

void FactsExchange::TakeReplies(Instant now) {
  std::vector<UnderWay> left;
  for (UnderWay& one : under_way_) {
    if (!one.reply.IsReady()) {
      left.push_back(std::move(one));
      continue;
    }
    const auto reply = one.reply.Wait(absl::ZeroDuration());
    StoreReply said;
    if (reply.ok() && said.ParseFromString(*reply)) {
      sharing_.OnAnswer(one.call, said.version(), said.value(), now);
    } else {
      sharing_.OnFailure(one.call);
    }
  }
  under_way_ = std::move(left);
}

Future<std::string> FactsExchange::Begin(
    rendezvous::CoordinatorLink& link, const FactsSharing::Call& call,
    const std::vector<RankFacts>& own) const {
  StoreRequest request;
  request.set_job(channel_.job());
  request.set_key(call.key());
  absl::Duration timeout = kAnswerTime;
  switch (call.kind) {
    case Kind::kAwaitQuestion:
    case Kind::kAwaitFacts:
      request.set_operation(StoreRequest::WAIT);
      request.set_version(call.after);
      request.set_wait_ms(absl::ToInt64Milliseconds(kHold));
      timeout += kHold;
      break;
    case Kind::kAsk:
      request.set_operation(StoreRequest::SET);
      request.set_value("asked");
      break;
    case Kind::kPublish:
      request.set_operation(StoreRequest::SET);
      request.set_value(FormatFacts(own, ThisHost()));
      break;
  }
  return link.Call("Store", request.SerializeAsString(), timeout);
}

}  // namespace weft::launch
