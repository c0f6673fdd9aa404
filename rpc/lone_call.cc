#include "weft/rpc/lone_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/failure.h"
#include "weft/rpc/outcome.h"

namespace weft::rpc {
namespace {

Bytes Copy(const Slices& slices) {
  std::string bytes;
  for (const Bytes& slice : slices) absl::StrAppend(&bytes, slice.view());
  return Bytes::Own(std::move(bytes));
}

}  // namespace

LoneCall::LoneCall(std::shared_ptr<Dispatcher> dispatcher, Transport& transport,
                   Worker caller, const Function& function,
                   const Request& request, CancelSource cancel,
                   internal::Caller::Done done)
    : ServedCall(
          dispatcher->agent(),
          std::make_shared<const Worker>(std::move(caller)),
          LineageOf(request, cancel.token()),
          Incoming{request.id, Received{request.body, /*is_private=*/false},
                   request.keeps_result, request.alias}),
      dispatcher_(std::move(dispatcher)),
      transport_(transport),
      function_(function),
      cancel_(std::move(cancel)),
      done_(std::move(done)) {}

LoneCall::~LoneCall() {
  Finish(absl::CancelledError("the call was dropped unserved"));
  dispatcher_->CallEnded();
}

Lineage LoneCall::lineage() const {
  Lineage lineage = inherited();
  lineage.chain =
      ChainBeyond(lineage.chain, dispatcher_->self(), function_.name);
  return lineage;
}

void LoneCall::Follow(const CancelToken& agent, const CancelToken& caller) {
  if (!deadline().is_infinite()) {
    timer_ = transport_.RunAt(deadline(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) {
        self->Abandon(absl::DeadlineExceededError(absl::StrCat(
            "the deadline passed in the ", NameOf(self->phase()))));
      }
    });
  }
  const auto abandon = [weak = weak_from_this()](const absl::Status& why) {
    if (auto self = weak.lock()) self->Abandon(why);
  };
  with_agent_ = agent.OnCancel(abandon);
  with_caller_ = caller.OnCancel(abandon);
}

void LoneCall::Abandon(const absl::Status& why) {
  End(internal::MarkFailure(WithOutcomeUnknown(why), phase()), nullptr);
  cancel_.Cancel(why);
}

void LoneCall::Finish(absl::StatusOr<Slices> result) {
  auto reply = std::make_shared<Reply>();
  reply->status = internal::NameFailure(result.status(), dispatcher_->self(),
                                        function_.name, phase());
  if (result.ok()) reply->body = *std::move(result);
  End(reply->status, reply);
}

void LoneCall::End(absl::Status status, ReplyPtr reply) {
  if (ended_.exchange(true)) return;
  transport_.CancelTimer(timer_);
  std::move(done_)(std::move(status), std::move(reply));
}

internal::Caller::Abandon SelfCaller::Start(std::shared_ptr<Request> request,
                                            Done done) {
  request->id = ++last_id_;
  // Elements that are only lent are read later, by the handler.
  if (!request->borrowed.empty()) request->body = {Copy(request->body)};
  if (const std::shared_ptr<LoneServer> server = server_.lock()) {
    return server->ServeAlone(self_, std::move(request), CancelToken(),
                              std::move(done));
  }
  std::move(done)(absl::UnavailableError("the agent has ended"), nullptr);
  return [](const absl::Status&) {};
}

}  // namespace weft::rpc
