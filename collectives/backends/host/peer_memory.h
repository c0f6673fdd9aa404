// PeerMemory: reads memory of the other ranks of a host that is not shared,
// where the kernel permits it (process_vm_readv: same user, and Yama's
// ptrace_scope of 0 or a common parent that may trace).

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_PEER_MEMORY_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_PEER_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class PeerMemory {
 public:
  struct Peer {
    pid_t pid = 0;       // 0: unknown
    uint64_t probe = 0;  // OwnProbe() of that process
  };

  // An address in this process, at which the others try whether they may read.
  static uint64_t OwnProbe();

  // `peers`: ranks 0, 1, ... of this host. Tries to read the memory of each.
  explicit PeerMemory(std::vector<Peer> peers);
  // Reads nobody.
  PeerMemory() = default;

  // Whether all of them can be read.
  bool reads_all() const { return reads_all_; }

  // Copies `bytes` at `address` of that rank's process. kUnavailable: the
  // process has ended, or has no such memory any more.
  absl::Status Read(int rank, uint64_t address, int64_t bytes,
                    std::byte* to) const;

 private:
  std::vector<Peer> peers_;
  bool reads_all_ = false;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_PEER_MEMORY_H_
