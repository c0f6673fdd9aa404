// Goals: the rows that every bench program prints under --goals.
//
//   GoalReport report(absl::StrSplit(goals, ','));    // "E1,E2"; empty: all
//   if (report.Wants("E1")) {
//     report.Begin();
//     report.Add(...);                    // what was measured since Begin()
//     report.End();
//   }
//   report.Finish();
//
// A row is one JSON object on a line: {goal, case, higher_is_better, weft,
// peer, peer_name, peer_version, ratio, must, aim, met, aim_met, control_ok,
// control_before, control_after}; after the cases of a goal comes {goal, case:
// "all", met, aim_met, control_ok}. A ratio says how many times better than the
// peer: above 1 is better, for times and rates alike. An absent peer is null,
// and then the goal is not met. Source: docs/rulings.md 12.

#ifndef WEFT_BENCH_GOALS_H_
#define WEFT_BENCH_GOALS_H_

#include <optional>
#include <string>
#include <vector>

namespace weft::bench {

struct GoalCase {
  std::string goal;  // "L1"
  std::string name;  // "unix, 1 element"
  bool higher_is_better = true;
  double weft = 0;
  std::optional<double> peer;  // measured by a process of this run
  std::string peer_name;
  std::string peer_version;
  double must = 1;  // ratios
  double aim = 1;
};

// What the machine does now, so that a slow spell of it is not taken for one of
// ours.
struct Control {
  double memcpy_two_cores_gb_s = 0;  // 16 MiB blocks
  double spin_round_trip_us = 0;     // two cores, one cache line
  double tcp_round_trip_us = 0;      // 64 B over loopback, both ends polling
};
Control MeasureControl();

// Whether each figure of `after` is within 25 % of the one of `before`: then
// the machine was the same for all that was measured between them.
bool Agree(const Control& before, const Control& after);

// Thread-safety: one thread at a time.
class GoalReport {
 public:
  // Rows of goals that are not among `wanted` are not printed; empty: all are.
  explicit GoalReport(std::vector<std::string> wanted);

  bool Wants(const std::string& goal) const;

  // Takes the machine's control figures before a case is measured.
  void Begin();
  // A row of that case.
  void Add(const GoalCase& goal_case);
  // Takes the control figures again and prints the rows added since Begin().
  void End();

  // Prints the "all" rows.
  void Finish();

 private:
  struct Summary {
    std::string goal;
    bool met = true;
    bool aim_met = true;
    bool control_ok = true;
  };

  void Print(const GoalCase& goal_case, const Control& after);

  const std::vector<std::string> wanted_;
  Control before_;
  std::vector<GoalCase> rows_;  // since Begin()
  std::vector<Summary> summaries_;
};

}  // namespace weft::bench

#endif  // WEFT_BENCH_GOALS_H_
