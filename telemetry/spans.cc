#include "weft/telemetry/spans.h"

#include <xxhash.h>

#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSpanKind[] = "span.kind";  // as OpenTelemetry names it

uint64_t SystemSeed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

Json Metadata(const char* kind, int rank, int track, const std::string& name) {
  return {{"name", kind},
          {"ph", "M"},
          {"pid", rank},
          {"tid", track},
          {"args", {{"name", name}}}};
}

// The process of a rank's events: files of several ranks may be joined in one
// view.
int ProcessOf(const Spans::Options& options) {
  const std::string rank =
      absl::StrCat(options.job, "/", options.role, "/", options.rank);
  return static_cast<int>(XXH3_64bits(rank.data(), rank.size()) & 0x7FFFFFFF);
}

std::string KindOf(const Fields& fields) {
  for (const Field& field : fields) {
    const auto* kind = std::get_if<std::string>(&field.value);
    if (field.key == kSpanKind && kind != nullptr) return *kind;
  }
  return "";
}

// The two ends of an arrow from who calls (a span of kind "client") to who
// serves it ("server"), which has the caller's span for its parent. An arrow
// binds to a slice of a thread, which an asynchronous span is not: it gets one
// of a microsecond.
void WriteFlow(const Json& event, const std::string& kind,
               const std::string& id, std::ostream& out) {
  if (kind != "client" && kind != "server") return;
  Json slice = {{"name", kind == "client" ? "call" : "serve"},
                {"cat", "flow"},
                {"ph", "X"},
                {"pid", event["pid"]},
                {"tid", event["tid"]},
                {"ts", event["ts"]},
                {"dur", 1}};
  if (event["ph"] == "b") out << ",\n" << DumpLine(slice);
  slice.erase("dur");
  slice["name"] = "rpc";
  slice["ph"] = kind == "client" ? "s" : "f";
  if (kind == "server") slice["bp"] = "e";  // the slice around it
  slice["id"] = id;
  out << ",\n" << DumpLine(slice);
}

}  // namespace

void Span::MoveFrom(Span&& other) noexcept {
  if (this == &other) return;
  End();
  owner_ = std::exchange(other.owner_, nullptr);
  context_ = std::exchange(other.context_, {});
  parent_ = other.parent_;
  name_ = std::move(other.name_);
  start_ = other.start_;
  thread_ = other.thread_;
  fields_ = std::move(other.fields_);
}

void Span::Finish() { std::exchange(owner_, nullptr)->Finish(*this); }

Spans::Spans(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : SteadyClock()),
      start_(clock_.Now()),
      wall_start_(absl::Now()),
      id_state_(options_.seed != 0 ? options_.seed : SystemSeed()) {}

Span Spans::Start(absl::string_view name, const TraceContext& parent) {
  Span span;
  if (!options_.enabled) return span;
  {
    MutexLock lock(mu_);
    span.context_ = parent;
    if (!parent.is_valid()) {
      span.context_ = {NextId(), NextId(), 0, /*sampled=*/true};
    }
    span.parent_ = parent.is_valid() ? parent.span : 0;
    span.context_.span = NextId();
  }
  span.owner_ = this;
  span.name_ = std::string(name);
  span.thread_ = std::this_thread::get_id();
  span.start_ = clock_.Now();
  return span;
}

void Spans::NameThisThread(absl::string_view name) {
  if (!options_.enabled) return;
  MutexLock lock(mu_);
  track_names_[TrackOf(std::this_thread::get_id())] = std::string(name);
}

void Spans::Finish(Span& span) {
  const Instant end = clock_.Now();
  const bool moved = std::this_thread::get_id() != span.thread_;
  MutexLock lock(mu_);
  Finished finished{span.context_,
                    span.parent_,
                    std::move(span.name_),
                    span.start_,
                    end,
                    TrackOf(span.thread_),
                    moved,
                    std::move(span.fields_)};
  if (ring_.size() < options_.capacity) {
    ring_.push_back(std::move(finished));
  } else if (options_.capacity > 0) {
    ring_[next_] = std::move(finished);
    next_ = (next_ + 1) % options_.capacity;
  }
}

int Spans::TrackOf(std::thread::id thread) {
  return tracks_.try_emplace(thread, static_cast<int>(tracks_.size()) + 1)
      .first->second;
}

// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014 (SplitMix64).
uint64_t Spans::NextId() {
  uint64_t z = id_state_ += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return z != 0 ? z : 1;
}

void Spans::WriteChromeTrace(std::ostream& out) const {
  std::vector<Finished> spans;
  std::map<int, std::string> names;
  {
    MutexLock lock(mu_);
    for (size_t i = 0; i < ring_.size(); ++i) {
      spans.push_back(ring_[(next_ + i) % ring_.size()]);
    }
    names = track_names_;
  }
  const auto unix_us = [this](Instant at) {
    return absl::ToDoubleMicroseconds(wall_start_ - absl::UnixEpoch() +
                                      (at - start_));
  };
  const int process_id = ProcessOf(options_);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  out << DumpLine(Metadata(
      "process_name", process_id, 0,
      absl::StrCat(options_.role, options_.rank, " of ", options_.job)));
  for (const auto& [track, name] : names) {
    out << ",\n" << DumpLine(Metadata("thread_name", process_id, track, name));
  }
  for (const Finished& span : spans) {
    Json args = ToJson(span.fields);
    args["trace"] = TraceIdText(span.context);
    args["span"] = absl::StrFormat("%016x", span.context.span);
    if (span.parent != 0)
      args["parent"] = absl::StrFormat("%016x", span.parent);
    Json event = {{"name", span.name}, {"cat", "weft"},
                  {"ph", "X"},         {"pid", process_id},
                  {"tid", span.track}, {"ts", unix_us(span.start)}};
    if (!span.moved) {
      event["dur"] = absl::ToDoubleMicroseconds(span.end - span.start);
    } else {
      event["ph"] = "b";
      event["id"] = args["span"];
    }
    const std::string kind = KindOf(span.fields);
    const std::string flow =
        kind == "server" ? args.value("parent", "") : std::string(args["span"]);
    event["args"] = std::move(args);
    out << ",\n" << DumpLine(event);
    if (!flow.empty()) WriteFlow(event, kind, flow, out);
    if (span.moved) {
      event["ph"] = "e";
      event["ts"] = unix_us(span.end);
      event.erase("args");
      out << ",\n" << DumpLine(event);
    }
  }
  out << "]}\n";
}

}  // namespace weft::telemetry
