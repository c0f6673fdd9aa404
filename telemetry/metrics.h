// Metrics: one rank's counters, gauges and histograms, as a page for Prometheus
// (worker/metrics_server.h serves it).
//
// Names are weft_<area>_<what>_<unit>, and end in _total for counters alone.
// Ask for a handle once, where the object is made, and keep the reference: it
// is as cheap as an atomic addition (a histogram: a short lock) and lives as
// long as the Metrics.

#ifndef WEFT_TELEMETRY_METRICS_H_
#define WEFT_TELEMETRY_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
template <typename T>
class Family;
}  // namespace prometheus

namespace weft::telemetry {

// Thread-safety of the three handles: thread-safe. A null metric is an idle
// handle.
class Counter {
 public:
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Increment(double by = 1);  // `by` below 0 changes nothing
  double Value() const;

 private:
  prometheus::Counter* const counter_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value);
  void Add(double by);
  double Value() const;

 private:
  prometheus::Gauge* const gauge_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram)
      : histogram_(histogram) {}
  void Observe(double value);
  // Values that were counted elsewhere: how many are in each bucket, of which
  // the last is above all bounds, and their sum.
  void ObserveMany(const std::vector<double>& counts, double sum);
  uint64_t Count() const;

 private:
  prometheus::Histogram* const histogram_;
};

// Thread-safety: thread-safe.
class Metrics {
 public:
  struct Options {
    std::string job;
    std::string role;
    int rank = 0;
    // Label names that a call may use beside job, role and rank. Their values
    // must come from small sets: never an id, a key or an address.
    std::vector<std::string> labels = {"code", "device", "direction",
                                       "kind", "method", "operation",
                                       "peer", "phase",  "table"};
    // Further series get a handle that does nothing, and are counted in
    // weft_telemetry_dropped_series_total.
    int max_series = 2000;
  };
  using Labels = std::map<std::string, std::string>;

  explicit Metrics(Options options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The series of `name` and `labels`; the same handle for the same question.
  // `help` counts when the name is new. Label values are cut at 128 bytes.
  // REQUIRES: a name as above, not in use for another type; known label names.
  Counter& CounterFor(const std::string& name, Labels labels = {},
                      const std::string& help = "") ABSL_LOCKS_EXCLUDED(mu_);
  Gauge& GaugeFor(const std::string& name, Labels labels = {},
                  const std::string& help = "") ABSL_LOCKS_EXCLUDED(mu_);
  // `bounds`: increasing upper bounds of the buckets; empty is DurationBounds.
  Histogram& HistogramFor(const std::string& name, Labels labels = {},
                          std::vector<double> bounds = {},
                          const std::string& help = "")
      ABSL_LOCKS_EXCLUDED(mu_);

  // 10 µs to 100 s, three to a decade, in seconds.
  static std::vector<double> DurationBounds();

  // Runs `refresh` before each reading of the page, for what is counted
  // elsewhere, until the registration ends; it waits for one that runs. No lock
  // that `refresh` takes may be held then.
  class Refresher;
  [[nodiscard]] std::unique_ptr<Refresher> BeforeReading(
      std::function<void()> refresh) ABSL_LOCKS_EXCLUDED(refreshers_->mu);

  // The page that Prometheus would read now.
  std::string Text() const;

 private:
  // Outlives the Metrics where a Refresher does.
  struct Refreshers {
    Mutex mu;
    std::map<int64_t, std::function<void()>> by_id ABSL_GUARDED_BY(mu);
    int64_t next_id ABSL_GUARDED_BY(mu) = 0;
  };
  class Page;

  // All series of one type. Handle is Counter, Gauge or Histogram; Metric is
  // the Prometheus type behind it.
  template <typename Handle, typename Metric>
  struct Series {
    const char* type;
    std::map<std::string, prometheus::Family<Metric>*> families;
    std::map<std::pair<std::string, Labels>, std::unique_ptr<Handle>> handles;
    Handle idle{nullptr};  // given out for series above the cap
  };

  // The handle of a series, which a new one gets from `add(build(), labels)`.
  template <typename Handle, typename Metric, typename Build, typename Add>
  Handle& Find(Series<Handle, Metric>& series, const std::string& name,
               Labels labels, const std::string& help, Build build, Add add)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Check(const char* type, const std::string& name, const Labels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<Refreshers> refreshers_ =
      std::make_shared<Refreshers>();
  const std::shared_ptr<Page> page_;
  Mutex mu_;
  Series<Counter, prometheus::Counter> counters_ ABSL_GUARDED_BY(mu_){
      "counter", {}, {}};
  Series<Gauge, prometheus::Gauge> gauges_ ABSL_GUARDED_BY(mu_){
      "gauge", {}, {}};
  Series<Histogram, prometheus::Histogram> histograms_ ABSL_GUARDED_BY(mu_){
      "histogram", {}, {}};
  std::map<std::string, std::string> types_
      ABSL_GUARDED_BY(mu_);  // of each name
  int series_count_ ABSL_GUARDED_BY(mu_) = 0;
  prometheus::Counter* const dropped_series_;
};

class Metrics::Refresher {
 public:
  Refresher(std::shared_ptr<Refreshers> all, int64_t id)
      : all_(std::move(all)), id_(id) {}
  Refresher(const Refresher&) = delete;
  Refresher& operator=(const Refresher&) = delete;
  ~Refresher();

 private:
  const std::shared_ptr<Refreshers> all_;
  const int64_t id_;
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_METRICS_H_
