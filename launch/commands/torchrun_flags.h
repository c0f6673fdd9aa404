// TorchrunFlags: the flags of `weft run` that torchrun has too, by its names
// and variables (PET_...), and what follows from them.

#ifndef WEFT_LAUNCH_COMMANDS_TORCHRUN_FLAGS_H_
#define WEFT_LAUNCH_COMMANDS_TORCHRUN_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/launch/run/launcher.h"
#include "weft/worker/flags.h"

namespace weft::launch {

struct TorchrunFlags {
  std::string processes;    // --nproc-per-node
  std::string nodes = "1";  // --nnodes: N or MIN:MAX
  int node = 0;             // --node-rank
  // --no-python: a program whose name ends with .py is run as it is.
  bool python = true;
  // Understood, without effect.
  bool standalone = true;
  std::string rdzv_backend = "static";
  std::string job;          // --rdzv-id
  std::string coordinator;  // --rdzv-endpoint
  std::string unused;       // of several flags
};

// Adds them to `flags`. Those that LaunchOptions has are set there. Both must
// outlive `flags`.
void AddTorchrunFlags(worker::Flags& flags, TorchrunFlags& torchrun,
                      LaunchOptions& options);

// After Flags::Parse, all with exit code 2 (usage) for what cannot be: sets
// nodes, node, and job and coordinator where they are given by torchrun's
// names, and checks the number of restarts and the port.
absl::Status ReadTorchrunFlags(const worker::Flags& parsed,
                               const TorchrunFlags& flags,
                               LaunchOptions& options);

// Makes a role of `words`, the program after the flags.
absl::Status AddProgram(const TorchrunFlags& torchrun,
                        const std::vector<std::string>& words,
                        LaunchOptions& options);

// --nnodes=MIN:MAX is --elastic by hosts: with so many trainers on each. After
// AddProgram.
absl::Status ReadElasticNodes(const TorchrunFlags& flags,
                              LaunchOptions& options);

// Ranks of several hosts need the address of their coordinator and the name of
// their job. The address may also be given as torchrun's, by --master-addr and
// --master-port. MASTER_PORT is the program's own and not the coordinator's:
// whichever of the two is not given is the next port after the other.
absl::Status CompleteNodes(const std::string& init, LaunchOptions& options);

// "weft run: ..." with exit code 2.
absl::Status RunUsage(absl::string_view message);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_TORCHRUN_FLAGS_H_
