#include "weft/worker/telemetry/status.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"

namespace weft::worker {

// Inline, as the handlers' threads may be what the reader wants to know about.
Future<std::string> ReadStatusPage(rpc::CallContext& context, bool as_json) {
  const StatusSource* const source = context.Local<StatusSource>();
  if (source == nullptr) {
    return MakeReady<std::string>(absl::UnimplementedError(
        "an agent that is no Worker's has no status page"));
  }
  Promise<std::string> promise;
  Future<std::string> page = promise.future();
  source->executor->Schedule(
      [page = source->page, as_json,
       promise = std::make_shared<Promise<std::string>>(std::move(promise))] {
        promise->Set(as_json ? page->RenderJson() : page->RenderText());
      });
  return page;
}
WEFT_RPC_INLINE(ReadStatusPage);

Future<std::string> AskStatusPage(const rpc::Target& target, bool as_json) {
  return rpc::CallAsync(target, ReadStatusPage, as_json);
}

}  // namespace weft::worker
