#include "weft/telemetry/metrics.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "weft/base/check.h"
#include "weft/telemetry/field.h"

namespace weft::telemetry {
namespace {

constexpr size_t kMaxLabelBytes = 128;

bool IsWord(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

// weft_<area>_<what>_<unit>[_total]. What is counted is often its own unit, as
// in weft_rpc_calls_total: so a counter may have three words before _total.
bool IsMetricName(const std::string& name, bool is_counter) {
  const std::vector<std::string> words = absl::StrSplit(name, '_');
  return words.size() >= 4 && words.front() == "weft" &&
         std::all_of(words.begin(), words.end(), IsWord) &&
         (words.back() == "total") == is_counter;
}

// Label values are shown by tools that expect text.
void Sanitize(Metrics::Labels* labels) {
  for (auto& [key, value] : *labels) {
    if (value.size() > kMaxLabelBytes) value.resize(kMaxLabelBytes);
    value = Printable(value);
  }
}

// Descriptions and units of the metrics of Weft: the code that counts knows
// only their names. Metrics of users have descriptions of their own.
std::string HelpOf(const std::string& name) {
  static const auto& known = *new std::map<std::string, std::string>{
      {"weft_net_certificate_refusals_total",
       "Renewed certificates that could not be used"},
      {"weft_net_certificate_renewals_total",
       "Renewed certificates that are in use"},
      {"weft_net_listeners_reopened_total",
       "How often a listener that was not reachable was opened anew"},
      {"weft_net_refused_total", "What was refused at the edge, by kind"},
      {"weft_ps_backup_seconds_total",
       "Time at work on what primaries sent to this backup"},
      {"weft_ps_busy_seconds_total", "Time at work on pushes and pulls"},
      {"weft_ps_bytes_total", "Bytes of keys and values of pushes and pulls"},
      {"weft_ps_clock_least", "Lowest clock of a table with a staleness"},
      {"weft_ps_clock_most", "Highest clock of a table with a staleness"},
      {"weft_ps_clock_slowest_rank", "Rank of the worker of the lowest clock"},
      {"weft_ps_clock_workers", "Workers that have a clock of a table"},
      {"weft_ps_hottest_partition_ratio",
       "Share of the hottest partition of a table in the time at work"},
      {"weft_ps_late_parts_dropped",
       "Parts dropped that came after their round"},
      {"weft_ps_late_parts_folded",
       "Parts of a closed round that count in the open one"},
      {"weft_ps_lock_wait_seconds",
       "Wait of a push or a read for the lock of one of its partitions"},
      {"weft_ps_pull_bytes", "Bytes of keys and values of a pull"},
      {"weft_ps_push_bytes", "Bytes of keys and values of a push"},
      {"weft_ps_repeated_pushes_total",
       "Pushes that had been taken before, by partition"},
      {"weft_ps_replication_lag_changes",
       "Changes of a partition that its backup does not have yet, at most"},
      {"weft_ps_requests_total", "Parts of pushes and pulls, by partition"},
      {"weft_ps_rows_total", "Rows named by pushes and pulls"},
      {"weft_ps_staleness_versions",
       "Pushes applied between a client's pull and its push (asynchronous)"},
      {"weft_ps_table_dropped_late",
       "Gradients dropped, whose row was evicted a moment before"},
      {"weft_ps_table_evicted_full", "Rows evicted for want of room"},
      {"weft_ps_table_evicted_idle", "Rows evicted that no push named"},
      {"weft_ps_table_memory_bytes", "Memory of a table on this server"},
      {"weft_ps_table_not_admitted",
       "Gradients dropped, of rows that were not made"},
      {"weft_ps_table_refused_pushes",
       "Pushes refused that would have taken more memory than there is"},
      {"weft_ps_table_rows", "Rows of a table on this server"},
      {"weft_ps_table_version",
       "Rounds closed (synchronous) or pushes applied (asynchronous)"},
      {"weft_ps_waiting_pulls", "Pulls that wait for a round, or for clocks"},
      {"weft_rpc_bytes_total", "Bytes of remote calls, by peer and direction"},
      {"weft_rpc_calls_total", "Remote calls, by peer and direction"},
      {"weft_rpc_client_seconds",
       "Time of remote calls at the caller, from the call to its end"},
      {"weft_rpc_client_active_calls", "Remote calls that wait for a reply"},
      {"weft_rpc_errors_total",
       "Remote calls that ended with an error, by peer and direction"},
      {"weft_rpc_idle_threads", "Threads for remote calls that have no work"},
      {"weft_rpc_pool_threads", "Threads for remote calls"},
      {"weft_rpc_reply_bytes", "Bytes of the results of a remote call"},
      {"weft_rpc_request_bytes", "Bytes of the arguments of a remote call"},
      {"weft_rpc_server_seconds",
       "Time of calls that are served here, from the arrival to the reply"},
      {"weft_rpc_server_active_async_calls",
       "Calls of others whose functions have returned a Future"},
      {"weft_rpc_server_active_calls", "Calls of others that run here"},
  };
  const auto found = known.find(name);
  return found == known.end() ? "" : found->second;
}

prometheus::Counter* AddDroppedSeries(const Metrics::Options& options,
                                      prometheus::Registry& registry) {
  return &prometheus::BuildCounter()
              .Name("weft_telemetry_dropped_series_total")
              .Help("Series refused because there were too many.")
              .Labels({{"job", Printable(options.job)},
                       {"role", Printable(options.role)},
                       {"rank", absl::StrCat(options.rank)}})
              .Register(registry)
              .Add({});
}

}  // namespace

void Counter::Increment(double by) {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::Value() const {
  return counter_ != nullptr ? counter_->Value() : 0;
}

void Gauge::Set(double value) {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::Value() const { return gauge_ != nullptr ? gauge_->Value() : 0; }

void Histogram::Observe(double value) {
  if (histogram_ != nullptr) histogram_->Observe(value);
}
void Histogram::ObserveMany(const std::vector<double>& counts, double sum) {
  if (histogram_ != nullptr) histogram_->ObserveMultiple(counts, sum);
}
uint64_t Histogram::Count() const {
  if (histogram_ == nullptr) return 0;
  return histogram_->Collect().histogram.sample_count;
}

// The registry as Prometheus reads it.
class Metrics::Page final : public prometheus::Collectable {
 public:
  Page(std::shared_ptr<prometheus::Registry> registry,
       std::shared_ptr<Refreshers> refreshers)
      : registry_(std::move(registry)), refreshers_(std::move(refreshers)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    {
      MutexLock lock(refreshers_->mu);
      for (const auto& [id, refresh] : refreshers_->by_id) refresh();
    }
    return registry_->Collect();
  }

 private:
  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<Refreshers> refreshers_;
};

Metrics::Refresher::~Refresher() {
  MutexLock lock(all_->mu);
  all_->by_id.erase(id_);
}

std::unique_ptr<Metrics::Refresher> Metrics::BeforeReading(
    std::function<void()> refresh) {
  MutexLock lock(refreshers_->mu);
  const int64_t id = refreshers_->next_id++;
  refreshers_->by_id.emplace(id, std::move(refresh));
  return std::make_unique<Refresher>(refreshers_, id);
}

Metrics::Metrics(Options options)
    : options_(std::move(options)),
      registry_(std::make_shared<prometheus::Registry>()),
      page_(std::make_shared<Page>(registry_, refreshers_)),
      dropped_series_(AddDroppedSeries(options_, *registry_)) {}

Metrics::~Metrics() = default;

void Metrics::Check(const char* type, const std::string& name,
                    const Labels& labels) {
  WEFT_CHECK(IsMetricName(name, type == counters_.type))
      << "metric \"" << name << "\": wanted weft_<area>_<what>_<unit>, with "
      << "_total at the end of counters and of nothing else";
  const std::string& known = types_.try_emplace(name, type).first->second;
  WEFT_CHECK_EQ(known, type) << "metric \"" << name << "\" has two types";
  for (const auto& [key, value] : labels) {
    WEFT_CHECK(absl::c_linear_search(options_.labels, key))
        << "metric \"" << name << "\" has the label \"" << key
        << "\"; known are " << absl::StrJoin(options_.labels, ", ")
        << " (Metrics::Options::labels)";
  }
}

template <typename Handle, typename Metric, typename Build, typename Add>
Handle& Metrics::Find(Series<Handle, Metric>& series, const std::string& name,
                      Labels labels, const std::string& help, Build build,
                      Add add) {
  Check(series.type, name, labels);
  Sanitize(&labels);
  const auto found = series.handles.find({name, labels});
  if (found != series.handles.end()) return *found->second;
  if (series_count_ >= options_.max_series) {
    dropped_series_->Increment();
    return series.idle;
  }
  ++series_count_;
  prometheus::Family<Metric>*& family = series.families[name];
  if (family == nullptr) {
    family = &build()
                  .Name(name)
                  .Help(help.empty() ? HelpOf(name) : help)
                  .Labels({{"job", Printable(options_.job)},
                           {"role", Printable(options_.role)},
                           {"rank", absl::StrCat(options_.rank)}})
                  .Register(*registry_);
  }
  auto handle = std::make_unique<Handle>(&add(*family, labels));
  return *(series.handles[{name, std::move(labels)}] = std::move(handle));
}

Counter& Metrics::CounterFor(const std::string& name, Labels labels,
                             const std::string& help) {
  MutexLock lock(mu_);
  return Find(
      counters_, name, std::move(labels), help, prometheus::BuildCounter,
      [](auto& family, const Labels& of) -> auto& { return family.Add(of); });
}

Gauge& Metrics::GaugeFor(const std::string& name, Labels labels,
                         const std::string& help) {
  MutexLock lock(mu_);
  return Find(
      gauges_, name, std::move(labels), help, prometheus::BuildGauge,
      [](auto& family, const Labels& of) -> auto& { return family.Add(of); });
}

Histogram& Metrics::HistogramFor(const std::string& name, Labels labels,
                                 std::vector<double> bounds,
                                 const std::string& help) {
  if (bounds.empty()) bounds = DurationBounds();
  MutexLock lock(mu_);
  return Find(
      histograms_, name, std::move(labels), help,
      prometheus::BuildHistogram, [&](auto& family, const Labels& of) -> auto& {
        return family.Add(of, bounds);
      });
}

std::vector<double> Metrics::DurationBounds() {
  return {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02,
          0.05, 0.1,  0.2,  0.5,  1,    2,    5,    10,   20,   50,   100};
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(page_->Collect());
}

}  // namespace weft::telemetry
