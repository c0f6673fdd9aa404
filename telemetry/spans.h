// Spans: what a rank did when, kept in a ring and written as a Chrome trace,
// which Perfetto and chrome://tracing open.
//
//   Span span = spans.Start("rpc.call", parent);
//   span.With("method", name);
//   metadata["traceparent"] = FormatTraceparent(span.context());

#ifndef WEFT_TELEMETRY_SPANS_H_
#define WEFT_TELEMETRY_SPANS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/trace_context.h"

namespace weft::telemetry {

class Spans;

// One piece of work: from Spans::Start until End or destruction. One that
// Spans made while disabled costs nothing and has no valid context.
// Thread-safety: one thread at a time; it may end on another than it began on.
class Span {
 public:
  Span() = default;
  Span(Span&& other) noexcept { *this = std::move(other); }
  Span& operator=(Span&& other) noexcept {
    if (!is_unused() || !other.is_unused()) MoveFrom(std::move(other));
    return *this;
  }
  ~Span() { End(); }

  const TraceContext& context() const { return context_; }

  template <typename T>
  Span& With(absl::string_view key, T&& value) {
    if (owner_ != nullptr) fields_.emplace_back(key, std::forward<T>(value));
    return *this;
  }

  void End() {  // idempotent
    if (owner_ != nullptr) Finish();
  }

 private:
  friend class Spans;

  // Whether it was made while spans are disabled; then every call makes such a
  // span.
  bool is_unused() const { return owner_ == nullptr && !context_.is_valid(); }
  void MoveFrom(Span&& other) noexcept;
  void Finish();

  Spans* owner_ = nullptr;
  TraceContext context_;
  uint64_t parent_ = 0;
  std::string name_;
  Instant start_;
  std::thread::id thread_;
  Fields fields_;
};

// Thread-safety: thread-safe. Must outlive its Span objects.
class Spans {
 public:
  struct Options {
    std::string job;
    std::string role;
    int rank = 0;
    bool enabled = false;
    size_t capacity = 65536;       // finished spans kept; the oldest give way
    uint64_t seed = 0;             // of the ids; 0 takes one from the system
    const Clock* clock = nullptr;  // null is SteadyClock()
  };

  explicit Spans(Options options);
  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;

  bool enabled() const { return options_.enabled; }

  // A child of `parent`; the root of a new trace if that is not valid.
  Span Start(absl::string_view name, const TraceContext& parent = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // Names the calling thread's track.
  void NameThisThread(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // The kept spans as one JSON object in Chrome's trace format. The process is
  // the rank, each thread a track, times are Unix microseconds. A span that
  // ended on another thread than it began on is a pair of asynchronous events,
  // since those of one track must nest.
  void WriteChromeTrace(std::ostream& out) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Span;

  struct Finished {
    TraceContext context;
    uint64_t parent;
    std::string name;
    Instant start;
    Instant end;
    int track;
    bool moved;  // ended on another thread
    Fields fields;
  };

  void Finish(Span& span) ABSL_LOCKS_EXCLUDED(mu_);
  int TrackOf(std::thread::id thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t NextId() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // never 0

  const Options options_;
  const Clock& clock_;
  const Instant start_;          // the same moment
  const absl::Time wall_start_;  // on two clocks
  mutable Mutex mu_;
  uint64_t id_state_ ABSL_GUARDED_BY(mu_);
  std::vector<Finished> ring_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // slot of the ring to write
  std::map<std::thread::id, int> tracks_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::string> track_names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_SPANS_H_
