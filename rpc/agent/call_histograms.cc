#include "weft/rpc/agent/call_histograms.h"

#include <utility>

namespace weft::rpc {

CallHistograms::CallHistograms(const Registry& registry)
    : methods_(registry.size() + 1) {
  methods_[0].name = "unknown";
  for (const std::string& name : registry.Names()) {
    const size_t index = registry.FindName(name)->index;
    if (index < methods_.size()) methods_[index].name = name;
  }
}

CallHistograms::~CallHistograms() {
  for (Method& method : methods_) delete method.times.load();
}

void CallHistograms::Served(const Function* function, Instant began,
                            Instant now) {
  const size_t index = function == nullptr ? 0 : function->index;
  Method& method = methods_[index < methods_.size() ? index : 0];
  Times* times = method.times.load(std::memory_order_acquire);
  if (times == nullptr) {
    auto made = std::make_unique<Times>(telemetry::kDurationBoundsInNs);
    // Two threads may make one: that of the first is kept.
    if (method.times.compare_exchange_strong(times, made.get())) {
      times = made.release();
    }
  }
  times->Add(now.nanoseconds() - began.nanoseconds());
}

void CallHistograms::Export(telemetry::Metrics& to) {
  constexpr double kNanosecond = 1e-9;
  client_.ExportTo(to, "weft_rpc_client_seconds", {}, kNanosecond);
  for (Method& method : methods_) {
    Times* const times = method.times.load(std::memory_order_acquire);
    if (times == nullptr) continue;
    times->ExportTo(to, "weft_rpc_server_seconds", {{"method", method.name}},
                    kNanosecond);
  }
  const telemetry::Metrics::Labels out = {{"direction", "out"}};
  const telemetry::Metrics::Labels in = {{"direction", "in"}};
  requests_out_.ExportTo(to, "weft_rpc_request_bytes", out);
  requests_in_.ExportTo(to, "weft_rpc_request_bytes", in);
  replies_out_.ExportTo(to, "weft_rpc_reply_bytes", out);
  replies_in_.ExportTo(to, "weft_rpc_reply_bytes", in);
}

}  // namespace weft::rpc
