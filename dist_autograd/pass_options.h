// What a backward pass is asked for, and how it ended.

#ifndef WEFT_DIST_AUTOGRAD_PASS_OPTIONS_H_
#define WEFT_DIST_AUTOGRAD_PASS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/autograd/gradient.h"

namespace weft::dist_autograd {

// Which messages of a context a pass waits for.
enum class PassMode {
  // The messages that the roots depend on. An unused result costs nothing.
  kSmart,
  // All messages that each of the participants has sent in the context, whether
  // the roots depend on them or not: the rule of PyTorch. A result that was not
  // used ends the pass with kDeadlineExceeded, which names it.
  kFast,
};

// How a pass ended well.
struct PassReport {
  int participants = 0;
  uint64_t live_messages = 0;
  // Participants that committed nothing because they died after the decision.
  std::vector<std::string> lost;
  // Participants of a SMART pass of which the lineage names no messages,
  // because it was shortened: they waited for all of theirs, as in FAST mode.
  std::vector<std::string> fast_participants;
};

struct PassOptions {
  PassMode mode = PassMode::kSmart;
  // The gradient of each root; none: ones, and each root has one element.
  std::vector<Gradient> seeds;
  // The pass fails with kDeadlineExceeded, on all workers, after this. The
  // error names the messages whose gradients did not come, for each worker.
  // Positive.
  absl::Duration timeout = absl::Seconds(60);
  // Keep what the nodes saved, so that the graph can be run again.
  bool retain_graph = false;
  // Gradients of one value that come in several messages are added in the order
  // of the messages, not of their arrival: two passes over the same graph give
  // the same bits. They are kept in memory until the last of them has come.
  bool deterministic = false;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PASS_OPTIONS_H_
