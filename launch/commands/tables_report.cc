#include "weft/launch/commands/tables_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "weft/telemetry/field.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using ps::v1::TableSpec;
using ps::v1::TableStats;
using ps::v1::WireValues;

// Adds numbers that a server may have made up: neither negative numbers nor an
// overflow do harm.
int64_t Sum(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  a = std::max(a, int64_t{0});
  b = std::max(b, int64_t{0});
  return a > kMost - b ? kMost : a + b;
}

void Add(json& to, const char* key, int64_t more) {
  to[key] = Sum(to.value(key, int64_t{0}), more);
}

json NewTable(const TableSpec& spec) {
  const auto lower = [](const std::string& name) {
    return absl::AsciiStrToLower(name);
  };
  return {{"kind", lower(TableSpec::Kind_Name(spec.kind()))},
          {"mode", lower(TableSpec::Mode_Name(spec.mode()))},
          {"partitions", spec.partitions()},
          {"push_dtype", lower(WireValues::Dtype_Name(spec.wire().push()))},
          {"pull_dtype", lower(WireValues::Dtype_Name(spec.wire().pull()))},
          {"version", 0},
          {"lag", uint64_t{0}},
          {"servers", json::object()}};
}

// The clocks of a table with a staleness, of the server whose lowest is the
// lowest; and the late parts of one with a quorum.
void AddConsistency(const TableStats& stats, json& to) {
  Add(to, "waiting_pulls", stats.waiting_pulls());
  if (stats.spec().has_quorum()) {
    to["quorum"] = stats.spec().quorum();
    Add(to, "late_folded", stats.late_folded());
    Add(to, "late_dropped", stats.late_dropped());
  }
  if (!stats.spec().has_staleness() || stats.clocks() <= 0) return;
  json& clocks = to["clocks"];
  const bool is_lower =
      clocks.is_null() || stats.least_clock() < clocks["least"].get<int64_t>();
  const int64_t most = clocks.is_null() ? 0 : clocks["most"].get<int64_t>();
  if (is_lower) {
    clocks = {{"staleness", stats.spec().staleness()},
              {"workers", stats.clocks()},
              {"least", stats.least_clock()},
              {"slowest_rank", stats.slowest_rank()},
              {"slowest_worker", stats.slowest_worker()}};
  }
  clocks["most"] = std::max(most, stats.most_clock());
}

// What server `name` has of the table `to`.
void AddServer(const std::string& name, const TableStats& stats, json& to) {
  Add(to, "rows", stats.rows());
  Add(to, "bytes", stats.memory_bytes());
  Add(to, "evicted", Sum(stats.evicted_idle(), stats.evicted_full()));
  Add(to, "dropped_gradients", Sum(stats.not_admitted(), stats.dropped_late()));
  Add(to, "refused_pushes", stats.refused_pushes());
  AddConsistency(stats, to);
  to["version"] = std::max(to["version"].get<int64_t>(), stats.version());
  to["servers"][name] = {{"rows", stats.rows()},
                         {"bytes", stats.memory_bytes()},
                         {"version", stats.version()},
                         {"versions_behind", nullptr}};
}

// `number`, or 0 if it makes no sense: a server may have made it up.
double Sane(double number) {
  return number > 0 && number < 1e18 ? number : 0;  // NaN is not
}

// The same, with three digits that count.
double Rounded(double number) {
  if (number <= 0) return 0;
  const double scale = std::pow(10, 2 - std::floor(std::log10(number)));
  return std::round(number * scale) / scale;
}

json ToJson(const ps::v1::Load& load) {
  return {{"requests", Sane(load.requests())},
          {"rows", Sane(load.rows())},
          {"bytes", Sane(load.bytes())},
          {"busy", Sane(load.busy())},
          {"backup", Sane(load.backup())}};
}

json LoadOf(const TablesReport& report) {
  constexpr size_t kHottest = 5;
  json load = {{"servers", json::object()},
               {"most_of_mean", nullptr},
               {"tables", json::object()},
               {"hottest", json::array()}};
  double most = 0;
  double all = 0;
  std::vector<json> hottest;
  for (const auto& [name, loads] : report.loads) {
    double of_server = 0;
    for (const ps::v1::TableLoad& table : loads.tables()) {
      const json its = ToJson(table.load());
      of_server += its["busy"].get<double>() + its["backup"].get<double>();
      json& sum = load["tables"][table.table()];
      if (sum.is_null()) sum = json::object();
      for (const auto& [key, value] : its.items()) {
        sum[key] = sum.value(key, 0.0) + value.get<double>();
      }
      for (const ps::v1::PartitionLoad& one : table.hottest()) {
        json hot = ToJson(one.load());
        hot["table"] = table.table();
        hot["partition"] = one.partition();
        hot["server"] = name;
        hottest.push_back(std::move(hot));
      }
    }
    load["servers"][name] = of_server;
    most = std::max(most, of_server);
    all += of_server;
  }
  if (all <= 0) return load;
  load["most_of_mean"] = most * static_cast<double>(report.loads.size()) / all;
  std::sort(hottest.begin(), hottest.end(), [](const json& a, const json& b) {
    return a["busy"].get<double>() > b["busy"].get<double>();
  });
  hottest.resize(std::min(hottest.size(), kHottest));
  for (json& hot : hottest) {
    hot["share"] =
        (hot["busy"].get<double>() + hot["backup"].get<double>()) / all;
    load["hottest"].push_back(std::move(hot));
  }
  return load;
}

// `text` of a worker, in the column of a terminal.
std::string Shown(const std::string& text) {
  return telemetry::Printable(text);
}

std::string Number(const json& of, const char* key) { return of[key].dump(); }

std::string TextOfConsistency(const json& table) {
  std::string text;
  if (table.contains("clocks")) {
    const json& clocks = table["clocks"];
    absl::StrAppend(&text, "    ", Number(clocks, "workers"),
                    " workers at clocks ", Number(clocks, "least"), " to ",
                    Number(clocks, "most"), ", staleness ",
                    Number(clocks, "staleness"), "; the slowest is rank ",
                    Number(clocks, "slowest_rank"), ", ",
                    Shown(clocks["slowest_worker"].get<std::string>()), "; ",
                    Number(table, "waiting_pulls"), " pulls wait\n");
  }
  if (table.contains("quorum")) {
    absl::StrAppend(&text, "    rounds close with ", Number(table, "quorum"),
                    " parts; ", Number(table, "late_folded"),
                    " late ones folded, ", Number(table, "late_dropped"),
                    " dropped; ", Number(table, "waiting_pulls"),
                    " pulls wait\n");
  }
  return text;
}

std::string TextOf(const std::string& name, const json& table) {
  std::string text = absl::StrCat(
      "  ", Shown(name), ": ", table["kind"].get<std::string>(), ", ",
      table["mode"].get<std::string>(), ", ", Number(table, "partitions"),
      " partitions, ", Number(table, "rows"), " rows, ", Number(table, "bytes"),
      " bytes, version ", Number(table, "version"));
  const auto push = table["push_dtype"].get<std::string>();
  const auto pull = table["pull_dtype"].get<std::string>();
  if (push != "f32" || pull != "f32") {
    absl::StrAppend(&text, ", pushes ", push, ", pulls ", pull);
  }
  for (const auto& [key, what] :
       {std::pair("evicted", " rows evicted"),
        std::pair("dropped_gradients", " gradients dropped"),
        std::pair("refused_pushes", " pushes refused")}) {
    if (table[key] != 0) absl::StrAppend(&text, ", ", Number(table, key), what);
  }
  if (table["lag"] != 0) {
    absl::StrAppend(&text, ", ", Number(table, "lag"),
                    " changes of one partition on one copy");
  }
  text.push_back('\n');
  absl::StrAppend(&text, TextOfConsistency(table));
  for (const auto& [server, of] : table["servers"].items()) {
    absl::StrAppend(&text, "    ", Shown(server), ": ", Number(of, "rows"),
                    " rows, ", Number(of, "bytes"), " bytes, version ",
                    Number(of, "version"));
    const json& behind = of["versions_behind"];
    if (behind.is_number() && behind != 0) {
      absl::StrAppend(&text, ", ", behind.dump(), " behind");
    }
    text.push_back('\n');
  }
  return text;
}

// Shows nothing if the servers have nothing to do.
std::string TextOfLoad(const json& load) {
  if (load["most_of_mean"].is_null()) return "";
  std::string text = "  work, in seconds a second:";
  for (const auto& [server, busy] : load["servers"].items()) {
    absl::StrAppend(&text, " ", Shown(server), " ",
                    Rounded(busy.get<double>()));
  }
  absl::StrAppend(&text, "; the most is ",
                  Rounded(load["most_of_mean"].get<double>()),
                  " of the mean\n");
  for (const json& hot : load["hottest"]) {
    absl::StrAppend(&text, "    partition ", hot["partition"].dump(), " of ",
                    Shown(hot["table"].get<std::string>()), " on ",
                    Shown(hot["server"].get<std::string>()), ": ",
                    Rounded(100 * hot["share"].get<double>()), " % of all, ",
                    Rounded(hot["requests"].get<double>()), " requests, ",
                    Rounded(hot["rows"].get<double>()), " rows, ",
                    Rounded(hot["bytes"].get<double>()), " bytes a second\n");
  }
  return text;
}

}  // namespace

json ToJson(const TablesReport& report) {
  json answer = {{"tables", json::object()},
                 {"groups", 0},
                 {"lost", 0},
                 {"no_answer", json::array()},
                 {"reasons", json::object()}};
  json& tables = answer["tables"];
  // With two replicas: servers that are the primary of nothing that the table
  // has, as those that are drained. They say version 0, and count no rounds.
  std::set<std::pair<std::string, std::string>> idle;
  for (const auto& [name, stats] : report.servers) {
    answer["groups"] =
        std::max<int64_t>(answer["groups"].get<int64_t>(), stats.entries());
    answer["lost"] =
        std::max<int64_t>(answer["lost"].get<int64_t>(), stats.lost());
    for (const TableStats& table : stats.tables()) {
      const std::string& key = table.spec().name();
      if (!tables.contains(key)) tables[key] = NewTable(table.spec());
      AddServer(name, table, tables[key]);
      if (stats.entries() > 0 && table.rows() == 0 && table.version() == 0) {
        idle.emplace(key, name);
      }
    }
  }
  for (const auto& [key, table] : tables.items()) {
    if (table["mode"] != "sync") continue;
    for (const auto& [name, server] : table["servers"].items()) {
      if (idle.count({key, name}) > 0) continue;
      // Neither is negative, of a server that counts rounds.
      server["versions_behind"] =
          table["version"].get<int64_t>() -
          std::max(server["version"].get<int64_t>(), int64_t{0});
    }
  }
  for (const auto& [name, loads] : report.loads) {
    for (const ps::v1::TableLoad& table : loads.tables()) {
      if (!tables.contains(table.table())) continue;
      json& lag = tables[table.table()]["lag"];
      lag = std::max(lag.get<uint64_t>(), table.lag());
    }
  }
  answer["load"] = LoadOf(report);
  for (const auto& [name, why] : report.silent) {
    answer["no_answer"].push_back(name);
    answer["reasons"][name] = why.ToString();
  }
  return answer;
}

std::string ToText(const TablesReport& report) {
  const json all = ToJson(report);
  std::string text = all["tables"].empty() ? "no tables\n" : "tables\n";
  for (const auto& [name, table] : all["tables"].items()) {
    absl::StrAppend(&text, TextOf(name, table));
  }
  absl::StrAppend(&text, TextOfLoad(all["load"]));
  if (all["groups"] != 0) {
    absl::StrAppend(&text, "  with two replicas: ", Number(all, "groups"),
                    " groups of partitions, ", Number(all, "lost"),
                    " that have lost both copies\n");
  }
  for (const auto& [name, why] : report.silent) {
    absl::StrAppend(&text, "  ", Shown(name),
                    ": no answer: ", Shown(std::string(why.message())), "\n");
  }
  return text;
}

}  // namespace weft::launch
