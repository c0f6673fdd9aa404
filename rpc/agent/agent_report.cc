#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/agent/agent_state.h"
#include "weft/rpc/call.h"

namespace weft::rpc {

telemetry::Fields AgentState::Describe() {
  const std::vector<PendingCall> calls = Pending();
  telemetry::Fields fields;
  fields.emplace_back("worker", options_.name);
  fields.emplace_back("key", options_.key.ToString());
  for (const PendingCall& call : calls) {
    fields.emplace_back(
        absl::StrCat(call.is_served ? "serving " : "call ", call.id,
                     call.is_served ? " of " : " to ", call.peer),
        absl::StrCat(call.function, ", ", NameOf(call.phase), ", ",
                     absl::FormatDuration(call.age), " old, ",
                     absl::FormatDuration(call.remaining), " left",
                     call.for_id == 0 ? ""
                                      : absl::StrCat(", for ", call.for_id,
                                                     " of ", call.for_peer)));
  }
  WaitsFor waits;
  waits.Add(options_.name, calls);
  fields.emplace_back("waits", waits.ToString());
  const AgentMetrics metrics = Metrics();
  fields.emplace_back("pool_threads", metrics.pool_threads);
  fields.emplace_back("idle_threads", metrics.idle_threads);
  for (const auto& [peer, counts] : metrics.peers) {
    fields.emplace_back(
        absl::StrCat("with ", peer),
        absl::StrCat(counts.calls, " calls, ", counts.errors,
                     " errors; served ", counts.served, ", ",
                     counts.served_errors, " errors; sent ", counts.sent_bytes,
                     " bytes, received ", counts.received_bytes));
  }
  return fields;
}

std::vector<PendingCall> AgentState::Pending() {
  std::vector<PendingCall> calls;
  ForEachSource([&](PendingSource& source) { source.AddPending(&calls); });
  // The request for this list is a pending call too, but a short one.
  calls.erase(std::remove_if(calls.begin(), calls.end(),
                             [](const PendingCall& call) {
                               return call.function ==
                                      "weft::rpc::PendingCalls";
                             }),
              calls.end());
  return calls;
}

void AgentState::NoteCut() {
  std::vector<std::string> open = StillOpen();
  LeakList streams;
  for (const PendingCall& call : Pending()) {
    const Function* function = registry_.FindName(call.function);
    const bool is_own = call.is_served && call.peer == options_.name;
    if (function == nullptr || !function->is_stream || is_own) continue;
    streams.Add({true, call.is_served, call.peer, call.function}, call.id);
  }
  MutexLock lock(mu_);
  if (std::exchange(has_cut_, true)) return;  // these were counted
  leaks_.Add(streams);
  cut_ = std::move(open);
}

std::vector<std::string> AgentState::CutCalls() const {
  MutexLock lock(mu_);
  return cut_;
}

std::vector<Leak> AgentState::Leaks() const {
  LeakList all;
  parts_.handles->AddTo(&all);
  parts_.objects.AddTo(&all);
  MutexLock lock(mu_);
  all.Add(leaks_);
  return all.Sorted();
}

AgentMetrics AgentState::Metrics() {
  AgentMetrics metrics;
  const ThreadPool::Stats threads = threads_->stats();
  metrics.pool_threads = threads.threads;
  metrics.idle_threads = threads.idle;
  ActiveCalls active;
  ForEachSource([&](PendingSource& source) { source.AddActive(&active); });
  metrics.client_active_calls = static_cast<int64_t>(active.made);
  metrics.server_active_calls = static_cast<int64_t>(active.served);
  metrics.server_active_async_calls = static_cast<int64_t>(active.served_async);
  metrics.peers = shared_->traffic.Counts();
  return metrics;
}

void AgentState::Export() {
  telemetry::Metrics& to = telemetry_.metrics();
  const AgentMetrics metrics = Metrics();
  to.GaugeFor("weft_rpc_pool_threads").Set(metrics.pool_threads);
  to.GaugeFor("weft_rpc_idle_threads").Set(metrics.idle_threads);
  to.GaugeFor("weft_rpc_client_active_calls").Set(metrics.client_active_calls);
  to.GaugeFor("weft_rpc_server_active_calls").Set(metrics.server_active_calls);
  to.GaugeFor("weft_rpc_server_active_async_calls")
      .Set(metrics.server_active_async_calls);
  shared_->histograms.Export(to);
  for (const auto& [peer, now] : metrics.peers) {
    Traffic::Counts& then = exported_[peer];
    const auto add = [&to, &peer = peer](const char* name, const char* way,
                                         int64_t by) {
      to.CounterFor(name, {{"peer", peer}, {"direction", way}}).Increment(by);
    };
    add("weft_rpc_calls_total", "out", now.calls - then.calls);
    add("weft_rpc_calls_total", "in", now.served - then.served);
    add("weft_rpc_errors_total", "out", now.errors - then.errors);
    add("weft_rpc_errors_total", "in", now.served_errors - then.served_errors);
    add("weft_rpc_bytes_total", "out", now.sent_bytes - then.sent_bytes);
    add("weft_rpc_bytes_total", "in", now.received_bytes - then.received_bytes);
    then = now;
  }
}

std::unique_ptr<telemetry::Span> AgentState::StartSpan(const Worker& peer,
                                                       const Request& request) {
  if (!telemetry_.spans().enabled()) return nullptr;
  auto span = std::make_unique<telemetry::Span>(telemetry_.spans().Start(
      absl::StrCat("rpc_serve#", request.function, "(", peer.name, " -> ",
                   options_.name, ")"),
      request.trace));
  span->With("span.kind", "server");
  return span;
}

std::vector<PendingCall> PendingCalls(CallContext& context) {
  return context.agent().Pending();
}
WEFT_RPC_INLINE(PendingCalls);

Future<std::vector<PendingCall>> AskPending(const Target& target) {
  return CallAsync(target, PendingCalls);
}

WaitsFor AskWaitsFor(Agent& agent, const std::vector<std::string>& workers,
                     absl::Duration timeout, std::vector<std::string>* silent) {
  std::vector<Future<std::vector<PendingCall>>> answers;
  for (const std::string& worker : workers) {
    answers.push_back(AskPending(agent.To(worker, timeout)));
  }
  WaitsFor waits;
  waits.Add(agent.name(), agent.Pending());
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto calls = answers[i].Wait(timeout + absl::Seconds(1));
    if (calls.ok()) {
      if (workers[i] != agent.name()) waits.Add(workers[i], *calls);
    } else if (silent != nullptr) {
      silent->push_back(workers[i]);
    }
  }
  return waits;
}

}  // namespace weft::rpc
