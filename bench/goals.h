// Goals: the rows that every bench program prints under --goals.
//
//   GoalReport report(absl::StrSplit(goals, ','));    // "E1,E2"; empty: all
//   if (report.Wants("E1")) {
//     report.Add({.goal = "E1", .name = "chain100", .weft = ops, ...});
//   }
//   report.Finish();
//
// A row is one JSON object on a line: {goal, case, higher_is_better, weft,
// peer, peer_name, peer_version, ratio, must, aim, met, aim_met, control_ok};
// after the cases of a goal comes {goal, case: "all", met, aim_met,
// control_ok}. A ratio says how many times better than the peer: above 1 is
// better, for times and rates alike. An absent peer is null, and then the goal
// is not met. Source: docs/rulings.md 12.

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

// Thread-safety: one thread at a time.
class GoalReport {
 public:
  // Rows of goals that are not among `wanted` are not printed; empty: all are.
  explicit GoalReport(std::vector<std::string> wanted);

  bool Wants(const std::string& goal) const;

  // Measures the machine and prints the row.
  void Add(const GoalCase& goal_case);

  // Prints the "all" rows.
  void Finish();

 private:
  struct Summary {
    std::string goal;
    bool met = true;
    bool aim_met = true;
    bool control_ok = true;
  };

  const std::vector<std::string> wanted_;
  std::vector<Summary> summaries_;
};

// What the machine does now: figures whose usual values are known, so that a
// slow spell of it is not taken for one of ours.
struct Control {
  double memcpy_two_cores_gb_s = 0;  // 16 MiB blocks
  double spin_round_trip_us = 0;     // two cores, one cache line
  double tcp_round_trip_us = 0;      // 64 B over loopback, both ends polling

  // Each within 25 % of the usual.
  bool ok() const;
};
Control MeasureControl();

}  // namespace weft::bench

#endif  // WEFT_BENCH_GOALS_H_
