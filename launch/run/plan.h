// Plan: what a launcher starts: names, commands and environments.

#ifndef WEFT_LAUNCH_RUN_PLAN_H_
#define WEFT_LAUNCH_RUN_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/launch/run/child.h"
#include "weft/launch/run/launcher.h"

namespace weft::launch {

inline constexpr char kTrainer[] = "trainer";
inline constexpr char kServer[] = "ps";

// What Run starts: name, command and environment of each rank of this node.
// RANK and WORLD_SIZE count within the role over all nodes, LOCAL_RANK within
// the role on this one.
// `restart` counts how often they were started before; `launcher` is the id in
// their marks (rank_mark.h).
std::vector<ChildSpec> PlanChildren(const LaunchOptions& options,
                                    int restart = 0,
                                    const std::string& launcher = "");

// The number of nodes as the user has said it, for messages.
std::string NodesText(const LaunchOptions& options);

// The node whose launcher starts the rank of that name; nothing: none does.
std::optional<int> NodeOf(const LaunchOptions& options, absl::string_view rank);

// The same of the coordinator's own process, of `coordinator_argv`.
ChildSpec PlanCoordinator(const LaunchOptions& options, int restart,
                          const std::string& launcher);

// Its log, in each start its own; empty where there is no directory for it, or
// `coordinator_log` names another.
std::string CoordinatorLog(const LaunchOptions& options, int restart,
                           const std::string& launcher);

// Where a rank says that no restart can help; empty where ranks can leave no
// word.
std::string NoRestartFile(const LaunchOptions& options,
                          const std::string& rank);

// What to say where this node's ranks are more than its `cores`, and what
// follows from that; empty: they are not. One line, without its end.
std::string CoresWarning(const LaunchOptions& options, int cores);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_PLAN_H_
