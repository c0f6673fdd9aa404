// telemetry_bench: what it costs a rank to show what it does, by the call.
//
// Beside them stands what they are a part of: one step of autograd_bench takes
// some 30 us, one remote call some 50 us (bench/RESULTS.md). The goal for all
// that is always on is 1 % of a step.

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

#include "weft/base/check.h"
#include "weft/telemetry/telemetry.h"

namespace weft::telemetry {
namespace {

void Record(benchmark::State& state) {
  static FlightRecorder recorder;
  const uint64_t before = recorder.recorded();
  for (auto _ : state) recorder.Record("rpc.call", "ps0", 1, 2);
  WEFT_CHECK_GE(recorder.recorded() - before, state.iterations());
}
BENCHMARK(Record)->Threads(1)->Threads(2);

void RecordWhenOff(benchmark::State& state) {
  FlightRecorder recorder(/*clock=*/nullptr, /*enabled=*/false);
  for (auto _ : state) {
    recorder.Record("rpc.call", "ps0", 1, 2);
    benchmark::ClobberMemory();
  }
  WEFT_CHECK_EQ(recorder.recorded(), 0u);
}
BENCHMARK(RecordWhenOff);

void Increment(benchmark::State& state) {
  static Metrics metrics({});
  static Counter& counter = metrics.CounterFor("weft_bench_calls_total");
  for (auto _ : state) counter.Increment();
  WEFT_CHECK_GE(counter.Value(), state.iterations());
}
BENCHMARK(Increment)->Threads(1)->Threads(2);

void Observe(benchmark::State& state) {
  static Metrics metrics({});
  static Histogram& histogram = metrics.HistogramFor("weft_bench_call_seconds");
  for (auto _ : state) histogram.Observe(50e-6);
  WEFT_CHECK_GE(histogram.Count(), uint64_t(state.iterations()));
}
BENCHMARK(Observe)->Threads(1)->Threads(2);

// The argument: whether spans are kept.
void OneSpan(benchmark::State& state) {
  Spans::Options options;
  options.enabled = state.range(0) != 0;
  Spans spans(options);
  for (auto _ : state) {
    const Span span = spans.Start("rpc.call");
    benchmark::DoNotOptimize(span.context());
  }
}
BENCHMARK(OneSpan)->Arg(0)->Arg(1);

// A line below the log's level, and one that is written, to nowhere.
void LogLine(benchmark::State& state) {
  std::ofstream nowhere("/dev/null");
  Telemetry::Options options;
  options.log_level = state.range(0) != 0 ? Level::kInfo : Level::kError;
  options.log_output = &nowhere;
  Telemetry telemetry(options);
  for (auto _ : state) {
    WEFT_LOG(telemetry.logger(), Info, "round done").With("round", 7);
  }
}
BENCHMARK(LogLine)->Arg(0)->Arg(1);

}  // namespace
}  // namespace weft::telemetry

BENCHMARK_MAIN();
