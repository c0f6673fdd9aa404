// Launcher: starts the ranks of a job on this host, watches them, and ends them
// together.

#ifndef WEFT_LAUNCH_RUN_LAUNCHER_H_
#define WEFT_LAUNCH_RUN_LAUNCHER_H_

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/launch/run/child.h"

namespace weft::launch {

// The ranks of one role.
struct RoleSpec {
  std::string role;
  int count = 1;
  std::vector<std::string> argv;
};

struct LaunchOptions {
  std::string job;
  // Of each node: the hosts of a job run the same roles, with a launcher each.
  std::vector<RoleSpec> roles;
  int nodes = 1;
  int node = 0;             // this one, from 0; 0 has the ranks from 0 on
  std::string coordinator;  // for WEFT_COORDINATOR; empty: not set
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  // Over what the launcher sets itself.
  std::map<std::string, std::string> environment;
  // Runs for each rank that has ended, at once.
  std::function<void(const Child& child, const Exit& exit)> on_exit;
  // How often all ranks are started again after one of them has failed.
  int max_restarts = 0;
  // After how many failures of trainers of this node the others go on, in each
  // start. For a job whose trainers can do without another: it is theirs to
  // know. A failure that would be every trainer's (by its exit code, or as
  // below), and that of the last trainer, ends the job all the same.
  int allowed_trainer_exits = 0;
  // Of this user alone, and there while the ranks run: a rank whose failure
  // no restart can help leaves a file here (worker::kNoRestartFile). Empty:
  // exit codes alone say so.
  std::string directory;
  // Between asking the ranks to end and killing them.
  absl::Duration shutdown_timeout = absl::Seconds(30);
  // Each rank's whole output goes to <log_dir>/<name>.log too, both streams as
  // they come, after what the file holds; empty: none. It must be there.
  std::string log_dir;
  // Removes what the ranks leave (run_directory.h): runs in the end, however
  // the launcher ends, in a process of its own; null: nothing.
  std::function<void()> sweep;
  // Output lines begin with "[ps0] ".
  bool prefix = true;
  std::ostream* out = nullptr;  // null: standard output
  std::ostream* err = nullptr;  // null: standard error
};

// "ps=2:bin/server --x 'a b'": the words as a shell would split them, without
// its expansions. kInvalidArgument says what is wrong.
absl::StatusOr<RoleSpec> ParseRole(absl::string_view text);
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text);

// What Run starts: name, command and environment of each rank of this node.
// RANK and WORLD_SIZE count within the role over all nodes, LOCAL_RANK within
// the role on this one.
// `restart` counts how often they were started before; `launcher` is the id in
// their marks (rank_mark.h).
std::vector<ChildSpec> PlanChildren(const LaunchOptions& options,
                                    int restart = 0,
                                    const std::string& launcher = "");

// Runs until all ranks have ended: 0 if all ended with 0. When one fails, ends
// the others, writes one block that names the first that failed and why, and
// returns its exit code (128 + signal if one killed it). With `max_restarts` it
// then starts all of them again instead, unless the exit code says that a
// restart cannot help (usage, configuration, diverged, checkpoint), the rank
// has said so, or a signal was passed on; the ranks find the number of restarts
// in TORCHELASTIC_RESTART_COUNT. With `allowed_trainer_exits` a trainer that
// fails may be reported and left out instead. SIGINT, SIGTERM, SIGHUP (unless
// it is ignored, as nohup does) and SIGQUIT are passed on, and after
// `shutdown_timeout` or a second SIGINT all are killed; then 128 + signal, or
// what a rank that failed before says. SIGUSR2 is passed on and ends nothing
// here. Must be called on a process's only thread; leaves signal handling as it
// was.
absl::StatusOr<int> Run(const LaunchOptions& options);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_LAUNCHER_H_
