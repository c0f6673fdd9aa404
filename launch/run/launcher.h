// Launcher: starts the ranks of a job on this host, watches them, and ends them
// together.

#ifndef WEFT_LAUNCH_RUN_LAUNCHER_H_
#define WEFT_LAUNCH_RUN_LAUNCHER_H_

#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/launch/run/child.h"
#include "weft/launch/run/role_spec.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

struct LaunchOptions {
  std::string job;
  // Each node runs these: a job's hosts have the same roles, with a launcher
  // each.
  std::vector<RoleSpec> roles;
  int nodes = 1;
  std::string nodes_text;   // as the user has said it: "1:3"; empty: `nodes`
  int node = 0;             // this one, from 0; 0 has the ranks from 0 on
  std::string coordinator;  // for WEFT_COORDINATOR; empty: not set
  // For WEFT_COORDINATOR_HOST: a process of its own hosts the coordinator,
  // coordinator0. Empty: not set, a rank hosts it.
  std::string coordinator_host;
  // The program and flags of that process, where it is of this node: it is
  // started before the ranks, started again whenever it ends before they have
  // ended, and ended after them. Empty: it is of another node, or a rank's.
  std::vector<std::string> coordinator_argv;
  // The file in which its records outlive this launcher, for another one of the
  // same job. Empty: it has one in `directory`, which is removed at the end,
  // unless its records are in etcd.
  std::string coordinator_log;
  bool coordinator_in_etcd = false;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  // Over what the launcher sets itself.
  std::map<std::string, std::string> environment;
  // Runs for each rank that has ended, at once.
  std::function<void(const Child& child, const Exit& exit)> on_exit;
  // Of a job of several nodes, to be called at least once a second: tells the
  // launchers of others that ask what is seen of the ranks here, `own`, and
  // asks those of `nodes`. Returns what is known of their ranks; does not wait.
  // Null: the nodes know nothing of each other.
  std::function<std::vector<RankFacts>(const std::vector<RankFacts>& own,
                                       const std::set<int>& nodes)>
      share_facts;
  // For WEFT_REPLICAS: servers that have each partition of the tables. With
  // more than one the others go on when a parameter server (role ps) fails, and
  // it alone is started again.
  int replicas = 1;
  // For WEFT_WORKERS, "MIN:MAX": the job is elastic, and a trainer that fails
  // is started again alone, while the others go on. Empty: it is not.
  std::string workers;
  // How often all ranks are started again after one of them has failed.
  int max_restarts = 0;
  // After how many failures of trainers of this node the others go on, in each
  // start. For a job whose trainers can do without another: it is theirs to
  // know. A failure that would be every trainer's (by its exit code, or as
  // below), and that of the last trainer, ends the job all the same.
  int allowed_trainer_exits = 0;
  // It belongs to this user alone and is there while the ranks run: a rank
  // whose failure no restart can help leaves a file here
  // (worker::kNoRestartFile). Empty: exit codes alone say so.
  std::string directory;
  // Between asking the ranks to end and killing them.
  absl::Duration shutdown_timeout = absl::Seconds(30);
  // Each rank's whole output goes to <log_dir>/<name>.log too, both streams as
  // they come, after what the file holds; empty: none. It must be there.
  std::string log_dir;
  // A file for the events of the job (event_log.h); empty: none.
  std::string events_file;
  // Makes `directory`, which it returns; empty: there is none. Runs once, when
  // `sweep` will run however the launcher ends. Its error is Run's. Null: the
  // directory is there.
  std::function<absl::StatusOr<std::string>()> make_directory;
  // Removes what the ranks leave (run_directory.h): runs in the end, however
  // the launcher ends, in a process of its own; null: nothing.
  std::function<void()> sweep;
  // Output lines begin with "[ps0] ".
  bool prefix = true;
  std::ostream* out = nullptr;  // null: standard output
  std::ostream* err = nullptr;  // null: standard error
};

// Runs until all ranks have ended: 0 if all ended with 0. When one fails, ends
// the others, writes one block that names the rank that the job failed by
// (root_cause.h) and how the others ended, and returns the exit code of the
// rank that failed first (128 + signal if one killed it). With `max_restarts`
// it then starts all of them again instead, unless the exit code says that a
// restart cannot help (usage, configuration, diverged, checkpoint), the rank
// has said so, or a signal was passed on; the ranks find the number of restarts
// in TORCHELASTIC_RESTART_COUNT. A coordinator of its own is a new one in each
// of these starts; one that cannot start is what has failed. With
// `allowed_trainer_exits` a trainer that fails may be reported and left out
// instead, and with `replicas` a server that fails may be started again alone,
// as often as it takes, until all trainers of this node have ended: with
// WEFT_REJOIN, and unless it ends within 2 s of its start three times in a row
// without having had partitions of tables, or says as above that it would end
// so again; one that had some is started after a pause then. In an elastic job
// that holds for a trainer, until one has ended with 0; one that fails after
// that is reported, and the others end as they do. SIGINT, SIGTERM, SIGHUP
// (unless it is ignored, as nohup does) and SIGQUIT are passed on, and after
// `shutdown_timeout` or a second SIGINT all are killed; then 128 + signal, or
// what a rank that failed before says. SIGUSR2 is passed on and ends nothing
// here. Must be called on a process's only thread; leaves signal handling as it
// was.
absl::StatusOr<int> Run(LaunchOptions options);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_LAUNCHER_H_
