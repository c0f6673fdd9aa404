#include "weft/collectives/backends/host/peer_memory.h"

#include <errno.h>
#include <sys/uio.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

// What a rank must find at the probe of another.
constexpr uint64_t kProbe = 0x7765667470726f62;
const volatile uint64_t probe = kProbe;

}  // namespace

uint64_t PeerMemory::OwnProbe() {
  return reinterpret_cast<uint64_t>(const_cast<const uint64_t*>(&probe));
}

PeerMemory::PeerMemory(std::vector<Peer> peers) : peers_(std::move(peers)) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    uint64_t found = 0;
    const absl::Status read =
        peers_[r].pid == 0
            ? absl::UnavailableError("")
            : Read(static_cast<int>(r), peers_[r].probe, sizeof found,
                   reinterpret_cast<std::byte*>(&found));
    if (!read.ok() || found != kProbe) return;
  }
  reads_all_ = !peers_.empty();
}

// Also of ranks that are threads of this process: memory that its owner has
// given up, after an error, is an error here too and not a crash.
absl::Status PeerMemory::Read(int rank, uint64_t address, int64_t bytes,
                              std::byte* to) const {
  // Simulates a kernel that does not permit it any more, or never did.
  WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("collectives/read_peer"));
  while (bytes > 0) {
    iovec local = {to, static_cast<size_t>(bytes)};
    iovec remote = {reinterpret_cast<void*>(address),
                    static_cast<size_t>(bytes)};
    const ssize_t n =
        process_vm_readv(peers_[rank].pid, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return absl::UnavailableError(absl::StrCat(
          "the memory of process ", peers_[rank].pid,
          " cannot be read: ", n < 0 ? std::strerror(errno) : "it has ended"));
    }
    to += n;
    address += static_cast<uint64_t>(n);
    bytes -= n;
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
