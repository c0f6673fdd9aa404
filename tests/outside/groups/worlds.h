// Worlds: the ranks of one test, on each backend that a binary always has.
//
//   for (const Kind& kind : AllKinds()) { auto world = kind.make(3, options); }

#ifndef WEFT_TESTS_OUTSIDE_GROUPS_WORLDS_H_
#define WEFT_TESTS_OUTSIDE_GROUPS_WORLDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"

namespace weft::outside {

// How much of what nobody asks for a rank keeps of another: so little that a
// message of some MiB has to wait.
inline constexpr int64_t kMaxUnaskedBytes = 1 << 20;

// What a rank says of what it hears.
using DiagnosisOf = std::function<collectives::DiagnosisOptions(int rank)>;

class World {
 public:
  virtual ~World() = default;
  // Once on the thread of each rank.
  virtual absl::StatusOr<std::unique_ptr<collectives::Backend>> Connect(
      int rank) = 0;
};

class Local final : public World {
 public:
  Local(int size, const DiagnosisOf& diagnosis)
      : world_(size, OptionsWith(diagnosis(0))) {}
  absl::StatusOr<std::unique_ptr<collectives::Backend>> Connect(
      int rank) override {
    return world_.Connect(rank);
  }

 private:
  static collectives::LocalWorld::Options OptionsWith(
      collectives::DiagnosisOptions diagnosis) {
    collectives::LocalWorld::Options options;
    options.diagnosis = std::move(diagnosis);
    options.max_unasked_bytes = kMaxUnaskedBytes;
    return options;
  }
  collectives::LocalWorld world_;
};

class Stream final : public World {
 public:
  Stream(int size, DiagnosisOf diagnosis)
      : diagnosis_(std::move(diagnosis)), streams_(size) {
    for (int r = 0; r < size; ++r) {
      const std::string name = absl::StrCat("rank", r);
      transports_.push_back(*network_.MakeTransport(name));
      ranks_.push_back({name, name});
      streams_[r] = std::make_unique<collectives::Streams>(*transports_[r]);
    }
  }
  ~Stream() override {
    for (auto& streams : streams_) streams.reset();
  }
  absl::StatusOr<std::unique_ptr<collectives::Backend>> Connect(
      int rank) override {
    collectives::StreamOptions options;
    options.streams = streams_[rank].get();
    options.rank = rank;
    options.ranks = ranks_;
    options.connect_timeout = absl::Seconds(30);
    options.diagnosis = diagnosis_(rank);
    options.max_unasked_bytes = kMaxUnaskedBytes;
    return collectives::StreamBackend::Connect(options);
  }

 private:
  const DiagnosisOf diagnosis_;
  transport::LocalNetwork network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<transport::Destination> ranks_;
  std::vector<std::unique_ptr<collectives::Streams>> streams_;
};

// Its ranks are on one host, or on as many as `ranks_a_host` makes.
class Host final : public World {
 public:
  Host(int size, DiagnosisOf diagnosis, int ranks_a_host)
      : size_(size),
        diagnosis_(std::move(diagnosis)),
        ranks_a_host_(ranks_a_host) {
    for (int r = 0; r < size && ranks_a_host > 0; ++r) {
      transports_.push_back(*network_.MakeTransport(absl::StrCat("r", r)));
      streams_.push_back(
          std::make_unique<collectives::Streams>(*transports_[r]));
    }
  }
  ~Host() override { streams_.clear(); }
  absl::StatusOr<std::unique_ptr<collectives::Backend>> Connect(
      int rank) override {
    collectives::HostOptions host;
    host.store = &store_;
    host.rank = rank;
    host.size = size_;
    host.directory = directory_.path();
    host.arena_bytes = 1 << 20;
    host.connect_timeout = absl::Seconds(30);
    host.diagnosis = diagnosis_(rank);
    host.max_unasked_bytes = kMaxUnaskedBytes;
    if (ranks_a_host_ > 0) {
      host.streams = streams_[rank].get();
      host.own_stream = {absl::StrCat("r", rank), absl::StrCat("r", rank)};
      host.host = absl::StrCat("host", rank / ranks_a_host_);
    }
    return collectives::ConnectHost(host);
  }

 private:
  const int size_;
  const DiagnosisOf diagnosis_;
  const int ranks_a_host_;
  weft::testing::TempDir directory_;
  rendezvous::MemoryStore store_;
  transport::LocalNetwork network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<collectives::Streams>> streams_;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<World>(int size, const DiagnosisOf&)> make;
  // Whether a rank that needs nobody goes on while another stays away.
  bool runs_ahead = false;

  friend void PrintTo(const Kind& kind, std::ostream* out) {
    *out << kind.name;
  }
};

inline std::vector<Kind> AllKinds() {
  const auto host = [](int ranks_a_host) {
    return [ranks_a_host](int size, const DiagnosisOf& diagnosis) {
      return std::make_unique<Host>(size, diagnosis, ranks_a_host);
    };
  };
  return {{"local",
           [](int size, const DiagnosisOf& diagnosis) {
             return std::make_unique<Local>(size, diagnosis);
           },
           true},
          {"stream",
           [](int size, const DiagnosisOf& diagnosis) {
             return std::make_unique<Stream>(size, diagnosis);
           },
           true},
          {"host", host(0), false},
          {"one_a_host", host(1), true},
          {"two_a_host", host(2), false}};
}

inline DiagnosisOf Quiet() {
  return [](int) {
    collectives::DiagnosisOptions quiet;
    quiet.report_after = absl::Minutes(1);
    return quiet;
  };
}

// Runs `body` as each rank of a new group of `kind`.
inline std::vector<absl::Status> RunGroups(
    const Kind& kind, int size,
    const std::function<absl::Status(collectives::ProcessGroup&)>& body,
    const std::function<collectives::GroupOptions(int rank)>& options =
        [](int) {
          collectives::GroupOptions one;
          one.timeout = absl::Seconds(60);
          return one;
        },
    const DiagnosisOf& diagnosis = Quiet()) {
  const std::unique_ptr<World> world = kind.make(size, diagnosis);
  return weft::testing::RunRanks(size, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                          world->Connect(rank));
    const auto group =
        collectives::ProcessGroup::Create(std::move(backend), options(rank));
    return body(*group);
  });
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_GROUPS_WORLDS_H_
