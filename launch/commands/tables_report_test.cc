#include "weft/launch/commands/tables_report.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

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
  EXPECT_EQ(ToJson(report)["tables"]["\x1b[2J"]["rows"], kMost);
  EXPECT_EQ(ToJson(report)["tables"]["odd"]["rows"], 0);
  EXPECT_THAT(ToText(report), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace weft::launch
