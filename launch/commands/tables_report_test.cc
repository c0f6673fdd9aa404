#include "weft/launch/commands/tables_report.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ps::v1::ServerStats;
using ps::v1::TableSpec;
using ps::v1::TableStats;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TableStats& Table(ServerStats& of, const std::string& name, int64_t rows,
                  int64_t bytes, int64_t version) {
  TableStats& table = *of.add_tables();
  table.mutable_spec()->set_name(name);
  table.mutable_spec()->set_kind(TableSpec::SPARSE);
  table.mutable_spec()->set_mode(TableSpec::SYNC);
  table.mutable_spec()->set_partitions(16);
  table.set_rows(rows);
  table.set_memory_bytes(bytes);
  table.set_version(version);
  return table;
}

TEST(TablesReport, AddsUpWhatServersHaveAndNamesWhoIsBehind) {
  TablesReport report;
  report.servers.resize(2);
  report.servers[0].first = "ps0";
  report.servers[1].first = "ps1";
  Table(report.servers[0].second, "words", 10, 1000, 42);
  TableStats& late = Table(report.servers[1].second, "words", 5, 500, 40);
  late.set_evicted_idle(3);
  late.set_evicted_full(4);
  late.set_refused_pushes(1);
  const Json words = ToJson(report)["tables"]["words"];
  EXPECT_EQ(words["rows"], 15);
  EXPECT_EQ(words["bytes"], 1500);
  EXPECT_EQ(words["version"], 42);
  EXPECT_EQ(words["evicted"], 7);
  EXPECT_EQ(words["servers"]["ps0"]["versions_behind"], 0);
  EXPECT_EQ(words["servers"]["ps1"]["versions_behind"], 2);
  EXPECT_EQ(ToText(report),
            "tables\n"
            "  words: sparse, sync, 16 partitions, 15 rows, 1500 bytes, "
            "version 42, 7 rows evicted, 1 pushes refused\n"
            "    ps0: 10 rows, 1000 bytes, version 42\n"
            "    ps1: 5 rows, 500 bytes, version 40, 2 behind\n");
}

TEST(TablesReport, ShowsClocksWithTheSlowestWorkerAndLateParts) {
  TablesReport report;
  report.servers.resize(2);
  for (int i = 0; i < 2; ++i) {
    report.servers[i].first = absl::StrCat("ps", i);
    ServerStats& server = report.servers[i].second;
    TableStats& stale = Table(server, "stale", 1, 8, 3);
    stale.mutable_spec()->set_mode(TableSpec::ASYNC);
    stale.mutable_spec()->set_staleness(2);
    stale.set_clocks(3);
    stale.set_least_clock(5 - i);
    stale.set_most_clock(7 - i);
    stale.set_slowest_rank(1);
    stale.set_slowest_worker("trainer1");
    stale.set_waiting_pulls(1);
    TableStats& rounds = Table(server, "rounds", 1, 8, 3);
    rounds.mutable_spec()->set_quorum(2);
    rounds.set_late_folded(3);
    rounds.set_late_dropped(4);
  }
  const Json tables = ToJson(report)["tables"];
  EXPECT_EQ(tables["stale"]["clocks"]["least"], 4);
  EXPECT_EQ(tables["stale"]["clocks"]["most"], 7);
  EXPECT_EQ(tables["stale"]["clocks"]["slowest_worker"], "trainer1");
  EXPECT_EQ(tables["rounds"]["late_dropped"], 8);
  EXPECT_THAT(ToText(report),
              HasSubstr("    3 workers at clocks 4 to 7, staleness 2; the "
                        "slowest is rank 1, trainer1; 2 pulls wait\n"));
  EXPECT_THAT(ToText(report), HasSubstr("    rounds close with 2 parts; 6 late "
                                        "ones folded, 8 dropped; 0 pulls "
                                        "wait\n"));
}

ps::v1::TableLoad& AddLoad(ps::v1::ServerLoads& of, const std::string& table,
                           double busy, double backup) {
  ps::v1::TableLoad& load = *of.add_tables();
  load.set_table(table);
  load.mutable_load()->set_rows(100);
  load.mutable_load()->set_busy(busy);
  load.mutable_load()->set_backup(backup);
  return load;
}

void AddHot(ps::v1::TableLoad& to, uint32_t partition, double busy) {
  ps::v1::PartitionLoad& hot = *to.add_hottest();
  hot.set_partition(partition);
  hot.mutable_load()->set_busy(busy);
  hot.mutable_load()->set_rows(1234);
  hot.mutable_load()->set_requests(10);
  hot.mutable_load()->set_bytes(98765);
}

TEST(TablesReport, ShowsWhatServersHaveToDoAndTheHottestPartitions) {
  TablesReport report;
  EXPECT_TRUE(ToJson(report)["load"]["most_of_mean"].is_null());
  report.loads.resize(2);
  report.loads[0].first = "ps0";
  ps::v1::TableLoad& first = AddLoad(report.loads[0].second, "words", 0.5, 0.1);
  for (uint32_t p = 0; p < 5; ++p) AddHot(first, p, 0.01 * (p + 1));
  report.loads[1].first = "ps1";
  AddHot(AddLoad(report.loads[1].second, "words", 0.15, 0.05), 7, 0.2);
  const Json load = ToJson(report)["load"];
  EXPECT_NEAR(load["servers"]["ps0"].get<double>(), 0.6, 1e-9);
  EXPECT_NEAR(load["most_of_mean"].get<double>(), 1.5, 1e-9);
  EXPECT_NEAR(load["tables"]["words"]["busy"].get<double>(), 0.65, 1e-9);
  ASSERT_EQ(load["hottest"].size(), 5U);
  EXPECT_EQ(load["hottest"][0]["partition"], 7);
  EXPECT_EQ(load["hottest"][0]["server"], "ps1");
  EXPECT_NEAR(load["hottest"][0]["share"].get<double>(), 0.25, 1e-9);
  EXPECT_EQ(load["hottest"][1]["partition"], 4);
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("  work, in seconds a second: ps0 0.6 ps1 0.2; "
                              "the most is 1.5 of the mean\n"
                              "    partition 7 of words on ps1: 25 % of all, "
                              "10 requests, 1230 rows, 98800 bytes a "
                              "second\n"));
}

TEST(TablesReport, SaysHowManyChangesAreOnOneCopy) {
  TablesReport report;
  report.servers.resize(2);
  report.loads.resize(2);
  for (int i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("ps", i);
    report.servers[i].first = report.loads[i].first = name;
    ServerStats& stats = report.servers[i].second;
    stats.set_entries(64);
    Table(stats, "words", 10, 1000, 42);
    AddLoad(report.loads[i].second, "words", 0.5, 0.1).set_lag(7 * i);
  }
  EXPECT_EQ(ToJson(report)["tables"]["words"]["lag"], 7);
  EXPECT_THAT(
      ToText(report),
      HasSubstr("version 42, 7 changes of one partition on one copy\n"));
}

// With two replicas a server that is the primary of nothing, as one that is
// drained, counts no rounds.
TEST(TablesReport, ServerThatHasNothingOfATableIsNotBehind) {
  TablesReport report;
  report.servers.resize(3);
  for (int i = 0; i < 3; ++i) {
    report.servers[i].first = absl::StrCat("ps", i);
    report.servers[i].second.set_entries(64);
  }
  Table(report.servers[0].second, "words", 10, 1000, 42);
  Table(report.servers[1].second, "words", 0, 0, 0);
  Table(report.servers[2].second, "words", 0, 0, 40);
  const Json servers = ToJson(report)["tables"]["words"]["servers"];
  EXPECT_EQ(servers["ps0"]["versions_behind"], 0);
  EXPECT_TRUE(servers["ps1"]["versions_behind"].is_null());
  EXPECT_EQ(servers["ps2"]["versions_behind"], 2);
  EXPECT_THAT(ToText(report),
              HasSubstr("    ps1: 0 rows, 0 bytes, version 0\n"));
  // One that has no replicas counts rounds without rows, too.
  for (auto& [name, stats] : report.servers) stats.set_entries(0);
  EXPECT_EQ(
      ToJson(report)["tables"]["words"]["servers"]["ps1"]["versions_behind"],
      42);
}

TEST(TablesReport, AsynchronousServersAreNotBehindEachOther) {
  TablesReport report;
  report.servers.resize(2);
  for (int i = 0; i < 2; ++i) {
    report.servers[i].first = i == 0 ? "ps0" : "ps1";
    TableStats& table = Table(report.servers[i].second, "t", 1, 1, 10 * i);
    table.mutable_spec()->set_mode(TableSpec::ASYNC);
    table.mutable_spec()->mutable_wire()->set_push(ps::v1::WireValues::INT8);
  }
  EXPECT_TRUE(ToJson(report)["tables"]["t"]["servers"]["ps0"]["versions_behind"]
                  .is_null());
  EXPECT_THAT(ToText(report), Not(HasSubstr("behind")));
  EXPECT_THAT(ToText(report), HasSubstr("pushes int8, pulls f32"));
}

TEST(TablesReport, TellsOfLostCopiesAndOfWhoDoesNotAnswer) {
  TablesReport report;
  report.servers.resize(1);
  report.servers[0].first = "ps0";
  report.servers[0].second.set_entries(64);
  report.servers[0].second.set_lost(3);
  report.silent = {{"ps1", absl::DeadlineExceededError("not \x1b[2J in 5s")}};
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("64 groups of partitions, 3 that have lost"));
  EXPECT_THAT(text, HasSubstr("  ps1: no answer: not \\x1b[2J in 5s\n"));
  EXPECT_EQ(ToJson(report)["no_answer"], Json::array({"ps1"}));
}

TEST(TablesReport, NumbersAndNamesThatServersMadeUpDoNoHarm) {
  TablesReport report;
  report.servers.resize(2);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (auto& [name, stats] : report.servers) {
    name = "ps\x1b";
    Table(stats, "\x1b[2J", kMost, kMost, kMost);
    TableStats& odd = Table(stats, "odd", -5, -kMost, -kMost);
    odd.mutable_spec()->set_kind(static_cast<TableSpec::Kind>(99));
    odd.mutable_spec()->set_mode(TableSpec::SYNC);
  }
  report.loads.resize(1);
  for (const double odd : {-1.0, 1e300, std::nan(""), HUGE_VAL}) {
    AddHot(AddLoad(report.loads[0].second, "\x1b[2J", odd, odd), 1, odd);
  }
  AddHot(AddLoad(report.loads[0].second, "\x1b[2J", 1, 0), 1, 1);
  EXPECT_EQ(ToJson(report)["load"]["most_of_mean"], 1);
  EXPECT_EQ(ToJson(report)["tables"]["\x1b[2J"]["rows"], kMost);
  EXPECT_EQ(ToJson(report)["tables"]["odd"]["rows"], 0);
  EXPECT_THAT(ToText(report), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace weft::launch
