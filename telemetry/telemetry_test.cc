#include "weft/telemetry/telemetry.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/failpoint.h"
#include "weft/base/fake_clock.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::telemetry {
namespace {

using ::nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

// The deadline of a page all of whose sections answer.
constexpr absl::Duration kNoEnd = absl::InfiniteDuration();

// --- FlightRecorder

TEST(FlightRecorder, KeepsTheLast4096OldestFirst) {
  FakeClock clock;
  FlightRecorder recorder(&clock);
  for (int i = 0; i < 5000; ++i) recorder.Record("step", "", i);
  const std::vector<FlightEntry> entries = recorder.Entries();
  ASSERT_THAT(entries, SizeIs(4096));
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].number, 904 + i);
    EXPECT_EQ(entries[i].a, static_cast<int64_t>(904 + i));
  }
  EXPECT_EQ(recorder.recorded(), 5000u);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(FlightRecorder, CutsDetailAndKeepsItsNumbers) {
  FlightRecorder recorder;
  recorder.Record("call", std::string(100, 'x'), -1, INT64_MIN);
  recorder.Record("call", "short");
  const std::vector<FlightEntry> entries = recorder.Entries();
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].detail, std::string(48, 'x'));
  EXPECT_EQ(entries[0].a, -1);
  EXPECT_EQ(entries[0].b, INT64_MIN);
  EXPECT_EQ(entries[1].detail, "short");
}

TEST(FlightRecorder, OfALongNameTheEndIsKept) {
  FlightRecorder recorder;
  recorder.RecordFor("call", "ps0", "Pull");
  recorder.RecordFor("call", "ps0", std::string(60, 'x') + "::Pull");
  recorder.RecordFor("call", std::string(48, 'p'), "Pull");
  const std::vector<FlightEntry> entries = recorder.Entries();
  ASSERT_THAT(entries, SizeIs(3));
  EXPECT_EQ(entries[0].detail, "ps0 Pull");
  EXPECT_EQ(entries[1].detail, "ps0 " + std::string(38, 'x') + "::Pull");
  EXPECT_EQ(entries[2].detail, std::string(48, 'p'));
}

TEST(FlightRecorder, TheStatusPageShowsTheNewest) {
  Telemetry telemetry{Telemetry::Options()};
  for (int i = 0; i < 100; ++i) telemetry.recorder().Record("step", "", i);
  EXPECT_THAT(telemetry.status().RenderText(kNoEnd),
              AllOf(HasSubstr("step a=99 "), Not(HasSubstr("step a=50 "))));
}

TEST(FlightRecorder, DumpsAgesAndHostileDetail) {
  FakeClock clock;
  FlightRecorder recorder(&clock);
  recorder.Record("call", "\x1b[2J\n\xff", 1, 2);
  clock.Advance(absl::Milliseconds(1500));
  recorder.Record("reply");
  EXPECT_THAT(recorder.DumpText(),
              HasSubstr("0 -1.500000s call a=1 b=2 \\x1b[2J\\n\\xff\n"));
  const json dump = json::parse(recorder.DumpJson());
  EXPECT_EQ(dump["recorded"], 2);
  EXPECT_EQ(dump["entries"][0]["age_s"], 1.5);
  EXPECT_EQ(dump["entries"][1]["what"], "reply");
}

TEST(FlightRecorder, AnEntryIsNeverTornByOthers) {
  FlightRecorder recorder;
  std::atomic<int> writing{3};
  const auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    if (rank < 3) {
      for (int64_t i = 0; i < 20000; ++i) {
        const std::string detail = absl::StrCat(rank, ":", i);
        recorder.Record("write", detail, rank, i);
      }
      --writing;
      return absl::OkStatus();
    }
    do {
      for (const FlightEntry& entry : recorder.Entries()) {
        if (entry.detail != absl::StrCat(entry.a, ":", entry.b)) {
          return absl::DataLossError(entry.detail);
        }
      }
    } while (writing > 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(recorder.recorded(), 60000u);
  // A lost entry leaves an older one in its slot, never a hole.
  EXPECT_THAT(recorder.Entries(), SizeIs(4096));
}

// --- Traces

TEST(TraceContext, RoundTrips) {
  const absl::string_view header =
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  WEFT_ASSERT_OK_AND_ASSIGN(TraceContext context, ParseTraceparent(header));
  EXPECT_TRUE(context.sampled);
  EXPECT_EQ(context.span, 0x00f067aa0ba902b7u);
  EXPECT_EQ(TraceIdText(context), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(FormatTraceparent(context), header);
}

TEST(TraceContext, ReadsLaterVersionsByTheirFirstFields) {
  const std::string later =
      "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
  WEFT_ASSERT_OK_AND_ASSIGN(TraceContext context, ParseTraceparent(later));
  EXPECT_FALSE(context.sampled);
}

TEST(TraceContext, RefusesMalformedTraceparents) {
  for (const char* bad :
       {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "\xff\xff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}) {
    EXPECT_THAT(ParseTraceparent(bad),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
  }
}

Spans::Options Tracing(const Clock& clock) {
  Spans::Options options;
  options.job = "job";
  options.role = "trainer";
  options.rank = 1;
  options.enabled = true;
  options.seed = 9;
  options.clock = &clock;
  return options;
}

json TraceOf(const Spans& spans) {
  std::ostringstream out;
  spans.WriteChromeTrace(out);
  return json::parse(out.str())["traceEvents"];
}

TEST(Spans, AChildIsOfItsParentsTraceAndLiesWithinIt) {
  FakeClock clock;
  Spans spans(Tracing(clock));
  spans.NameThisThread("main");
  {
    Span step = spans.Start("step");
    clock.Advance(absl::Milliseconds(1));
    {
      Span call = spans.Start("call", step.context());
      call.With("method", "Push\xff").With("bytes", 12);
      clock.Advance(absl::Milliseconds(2));
    }
    clock.Advance(absl::Milliseconds(3));
  }
  const json events = TraceOf(spans);
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0]["args"]["name"], "trainer1 of job");
  EXPECT_EQ(events[1]["args"]["name"], "main");
  const json& call = events[2];
  const json& step = events[3];
  EXPECT_EQ(call["ph"], "X");
  EXPECT_EQ(call["tid"], step["tid"]);
  EXPECT_EQ(call["dur"], 2000.0);
  EXPECT_EQ(step["dur"], 6000.0);
  EXPECT_NEAR(call["ts"].get<double>() - step["ts"].get<double>(), 1000, 1);
  EXPECT_EQ(call["args"]["trace"], step["args"]["trace"]);
  EXPECT_EQ(call["args"]["parent"], step["args"]["span"]);
  EXPECT_EQ(call["args"]["bytes"], 12);
  EXPECT_FALSE(step["args"].contains("parent"));
}

TEST(Spans, EachThreadHasItsTrack) {
  FakeClock clock;
  Spans spans(Tracing(clock));
  { Span here = spans.Start("here"); }
  std::thread([&] { Span there = spans.Start("there"); }).join();
  const json events = TraceOf(spans);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_NE(events[1]["tid"], events[2]["tid"]);
}

TEST(Spans, ASpanThatChangesThreadsIsAsynchronous) {
  FakeClock clock;
  Spans spans(Tracing(clock));
  Span moving = spans.Start("moving");
  std::thread([moved = std::move(moving)]() mutable { moved.End(); }).join();
  const json events = TraceOf(spans);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[1]["ph"], "b");
  EXPECT_EQ(events[2]["ph"], "e");
  EXPECT_EQ(events[1]["id"], events[2]["id"]);
}

TEST(Spans, ArrowLeadsFromTheCallersSpanToTheCallees) {
  FakeClock clock;
  Spans spans(Tracing(clock));
  Span call = spans.Start("call");
  call.With("span.kind", "client");
  const TraceContext context = call.context();
  std::thread([moved = std::move(call)]() mutable { moved.End(); }).join();
  spans.Start("serve", context).With("span.kind", "server").End();
  json begins, ends;
  for (const json& event : TraceOf(spans)) {
    if (event["ph"] == "s") begins.push_back(event);
    if (event["ph"] == "f") ends.push_back(event);
  }
  ASSERT_THAT(begins, SizeIs(1));
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(begins[0]["id"], ends[0]["id"]);
  EXPECT_EQ(begins[0]["id"], absl::StrFormat("%016x", context.span));
  EXPECT_EQ(ends[0]["bp"], "e");
}

TEST(Spans, ProcessesOfSeveralRanksAreApart) {
  FakeClock clock;
  Spans::Options options = Tracing(clock);
  Spans one(options);
  options.rank = 0;
  Spans other(options);
  EXPECT_NE(TraceOf(one)[0]["pid"], TraceOf(other)[0]["pid"]);
}

TEST(Spans, TheOldestAreDropped) {
  FakeClock clock;
  Spans::Options options = Tracing(clock);
  options.capacity = 3;
  Spans spans(options);
  for (int i = 0; i < 5; ++i) spans.Start(absl::StrCat("span", i)).End();
  const json events = TraceOf(spans);
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[1]["name"], "span2");
  EXPECT_EQ(events[3]["name"], "span4");
}

TEST(Spans, NothingIsKeptWhenTracingIsOff) {
  Spans spans({});
  Span span = spans.Start("step");
  span.With("key", 1);
  EXPECT_FALSE(span.context().is_valid());
  span.End();
  EXPECT_THAT(TraceOf(spans), SizeIs(1));
}

// --- StatusPage

TEST(StatusPage, ShowsEachSectionByName) {
  StatusPage page;
  auto rpc = page.Register("rpc", [] {
    return Fields{{"pending", 3}, {"peer", "ps0"}};
  });
  auto ps = page.Register("ps", [] { return Fields{{"rows", 1.5}}; });
  EXPECT_EQ(json::parse(page.RenderJson(kNoEnd)), json::parse(R"({"sections": [
                {"name": "ps", "fields": {"rows": 1.5}},
                {"name": "rpc", "fields": {"pending": 3, "peer": "ps0"}}]})"));
  EXPECT_EQ(page.RenderText(kNoEnd),
            "ps\n  rows=1.5\nrpc\n  pending=3\n  peer=ps0\n");
}

TEST(StatusPage, ASectionLeavesWithItsRegistration) {
  StatusPage page;
  {
    auto gone = page.Register("gone", [] { return Fields{}; });
    auto moved = std::move(gone);
    EXPECT_THAT(page.RenderText(kNoEnd), HasSubstr("gone"));
  }
  EXPECT_EQ(page.RenderText(kNoEnd), "");
}

TEST(StatusPage, WhereNoThreadCanBeStartedASectionSaysSoAndMayLeave) {
  StatusPage page;
  auto registration = page.Register("rpc", [] { return Fields{{"calls", 1}}; });
  {
    const ScopedFailpoint threads("base/start_thread",
                                  "error(RESOURCE_EXHAUSTED,no thread)");
    EXPECT_THAT(page.RenderText(kNoEnd), HasSubstr("no thread"));
  }
  EXPECT_THAT(page.RenderText(kNoEnd), HasSubstr("calls"));
  registration.Release();
}

TEST(StatusPage, SectionThatThrowsShowsItsErrorAndAffectsNoOther) {
  StatusPage page;
  auto bad = page.Register(
      "bad", []() -> Fields { throw std::runtime_error("no\nluck"); });
  auto good = page.Register("good", [] { return Fields{{"x", 1}}; });
  EXPECT_THAT(page.RenderText(kNoEnd), HasSubstr("no\\nluck"));
  EXPECT_THAT(page.RenderText(kNoEnd), HasSubstr("good\n  x=1\n"));
}

TEST(StatusPage, SectionThatHangsIsNamedAndDelaysNoOther) {
  StatusPage page;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future();
  std::atomic<int> calls{0};
  auto stuck = page.Register("stuck", [&, released] {
    ++calls;
    released.wait();
    return Fields{{"free", true}};
  });
  auto good = page.Register("zgood", [] { return Fields{{"x", 1}}; });
  for (int i = 0; i < 3; ++i) {
    const std::string text = page.RenderText(absl::Milliseconds(20));
    EXPECT_THAT(text, HasSubstr("stuck\n  error: DEADLINE_EXCEEDED"));
    EXPECT_THAT(text, HasSubstr("zgood"));
    EXPECT_TRUE(Becomes([&] { return calls > 0; }));
  }
  EXPECT_EQ(calls, 1);  // a section that is busy is not called again
  release.set_value();
  EXPECT_THAT(page.RenderText(absl::Seconds(60)), HasSubstr("free=true"));
}

TEST(StatusPage, WaitsForASectionWithoutEnd) {
  StatusPage page;
  std::promise<void> release;
  auto slow = page.Register("slow", [released = release.get_future().share()] {
    released.wait();
    return Fields{{"free", true}};
  });
  auto text =
      std::async(std::launch::async, [&] { return page.RenderText(kNoEnd); });
  EXPECT_EQ(text.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  release.set_value();
  EXPECT_THAT(text.get(), HasSubstr("free=true"));
}

TEST(StatusPage, ARegistrationWaitsForARunningCall) {
  StatusPage page;
  std::promise<void> entered, release;
  std::atomic<bool> finished{false};
  auto slow = std::make_unique<StatusPage::Registration>(
      page.Register("slow", [&, released = release.get_future().share()] {
        entered.set_value();
        released.wait();
        finished = true;
        return Fields{};
      }));
  page.RenderText(absl::ZeroDuration());
  entered.get_future().wait();
  std::thread releaser([&] { release.set_value(); });
  slow.reset();
  EXPECT_TRUE(finished);
  releaser.join();
}

// --- Telemetry

TEST(Telemetry, ItsPartsCarryTheRank) {
  std::ostringstream log;
  Telemetry::Options options;
  options.job = "mnist";
  options.role = "ps";
  options.rank = 1;
  options.log_format = LogFormat::kJson;
  options.log_output = &log;
  options.tracing = true;
  Telemetry telemetry(options);
  WEFT_LOG(telemetry.logger(), Error, "x");
  telemetry.metrics().CounterFor("weft_test_events_total").Increment();
  telemetry.recorder().Record("x");
  telemetry.spans().Start("x").End();
  EXPECT_EQ(json::parse(log.str())["role"], "ps");
  EXPECT_THAT(telemetry.metrics().Text(),
              HasSubstr("weft_test_events_total{job=\"mnist\",rank=\"1\",role="
                        "\"ps\"} 1"));
  EXPECT_EQ(telemetry.recorder().recorded(), 1u);
  EXPECT_THAT(TraceOf(telemetry.spans()), SizeIs(2));
}

TEST(Telemetry, SilentWorksAndKeepsNothing) {
  Telemetry& silent = OrSilent(nullptr);
  EXPECT_EQ(&silent, &Silent());
  WEFT_LOG(silent.logger(), Error, "nobody hears this");
  silent.metrics().CounterFor("weft_test_events_total").Increment();
  silent.recorder().Record("x");
  auto section = silent.status().Register("x", [] { return Fields{}; });
  EXPECT_FALSE(silent.spans().Start("x").context().is_valid());
  EXPECT_THAT(silent.metrics().Text(), Not(HasSubstr("weft_test")));
  EXPECT_THAT(silent.recorder().Entries(), IsEmpty());
  EXPECT_EQ(silent.status().RenderText(), "");
}

}  // namespace
}  // namespace weft::telemetry
