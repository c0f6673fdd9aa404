// Worlds of ranks of one and of several hosts, in one process.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TEST_WORLDS_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TEST_WORLDS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"

namespace weft::collectives {

// Whatever does not travel with its announcement, for tests of few bytes.
inline constexpr int64_t kReadAll = 0;

class HostTestWorld final : public TestWorld {
 public:
  HostTestWorld(int size, DiagnosisOptions diagnosis,
                int64_t least_read_bytes = kReadAll)
      : size_(size),
        diagnosis_(std::move(diagnosis)),
        least_read_bytes_(least_read_bytes) {}

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    HostOptions host;
    host.store = &store_;
    host.rank = rank;
    host.size = size_;
    host.directory = directory_.path();
    host.arena_bytes = 8 << 20;
    host.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    host.diagnosis = diagnosis_;
    host.least_read_bytes = least_read_bytes_;
    return ConnectHost(host);
  }

 private:
  const int size_;
  const DiagnosisOptions diagnosis_;
  const int64_t least_read_bytes_;
  testing::TempDir directory_;
  rendezvous::MemoryStore store_;
};

// Ranks of one machine as if of several: `host_of` says which.
class HostsTestWorld final : public TestWorld {
 public:
  HostsTestWorld(int size, DiagnosisOptions diagnosis,
                 std::function<int(int rank)> host_of,
                 absl::Duration connect_timeout = absl::Seconds(20))
      : size_(size),
        diagnosis_(std::move(diagnosis)),
        host_of_(std::move(host_of)),
        connect_timeout_(connect_timeout) {
    for (int r = 0; r < size; ++r) {
      transports_.push_back(*network_.MakeTransport(absl::StrCat("r", r)));
      streams_.push_back(std::make_unique<Streams>(*transports_.back()));
    }
  }
  ~HostsTestWorld() override { streams_.clear(); }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    HostOptions host;
    host.store = &store_;
    host.rank = rank;
    host.size = size_;
    host.directory = directory_.path();
    host.arena_bytes = 8 << 20;
    host.connect_timeout = connect_timeout_;
    host.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    host.diagnosis = diagnosis_;
    host.streams = streams_[rank].get();
    host.own_stream = {absl::StrCat("r", rank), absl::StrCat("r", rank)};
    host.host = absl::StrCat("host", host_of_(rank));
    host.least_read_bytes = kReadAll;
    host.check_member = check_member;
    return ConnectHost(host);
  }
  void Kill(int rank) { network_.Break(absl::StrCat("r", rank)); }

  std::function<absl::Status(int rank)> check_member;  // of each rank

 private:
  const int size_;
  const DiagnosisOptions diagnosis_;
  const std::function<int(int rank)> host_of_;
  const absl::Duration connect_timeout_;
  testing::TempDir directory_;
  rendezvous::MemoryStore store_;
  transport::LocalNetwork network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Streams>> streams_;
};

inline HostOptions OptionsOf(int rank, int size, rendezvous::Store* store,
                             const std::string& directory) {
  HostOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.directory = directory;
  options.arena_bytes = 1 << 20;
  return options;
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TEST_WORLDS_H_
