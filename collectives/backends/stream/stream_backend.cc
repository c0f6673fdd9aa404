#include "weft/collectives/backends/stream/stream_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/algorithms/tree_broadcast.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/streams_state.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/subgroup_name.h"

namespace weft::collectives {
namespace {

absl::Status CheckOptions(const StreamOptions& options) {
  if (options.streams == nullptr) {
    return absl::InvalidArgumentError("StreamBackend: no streams are given");
  }
  const int size = static_cast<int>(options.ranks.size());
  if (options.rank < 0 || options.rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("StreamBackend: wants a rank from 0 to size - 1, found ",
                     options.rank, " of ", size));
  }
  if (options.name.size() > Frame::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "StreamBackend: wants a name of at most ", Frame::kMaxTextBytes,
        " bytes, found one of ", options.name.size(), ": ",
        options.name.substr(0, 100), "..."));
  }
  return absl::OkStatus();
}

// An operation of the backend's own, before the group's first.
Operation OwnOperation(uint64_t number, Instant deadline) {
  Operation operation;
  operation.verb = Verb::kBroadcast;
  operation.sequence = number - 16;  // below 0: see WireSequence in mesh.cc
  operation.label = number;
  operation.deadline = deadline;
  operation.site = CallSite::Here();
  return operation;
}

}  // namespace

StreamBackend::StreamBackend(StreamOptions options, std::shared_ptr<Mesh> mesh)
    : MeshBackend(std::move(mesh)), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<StreamBackend>> StreamBackend::Connect(
    StreamOptions options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  transport::Transport& transport = options.streams->transport();
  const Instant deadline = transport.clock().Now() + options.connect_timeout;
  MeshOptions mesh_options(options, options.rank,
                           static_cast<int>(options.ranks.size()));
  for (const transport::Destination& one : options.ranks) {
    mesh_options.names.push_back(one.name);
  }
  auto mesh =
      std::make_shared<Mesh>(std::move(mesh_options), transport.driver());
  const std::shared_ptr<Streams::State> state = options.streams->state();
  WEFT_RETURN_IF_ERROR(state->Add(mesh));
  // From here on its end leaves the group.
  std::unique_ptr<StreamBackend> backend(
      new StreamBackend(std::move(options), mesh));
  const StreamOptions& made = backend->options_;
  const auto open = [&](int r) {
    mesh->OnOpened(r, transport.Connect(StreamPurpose(), made.ranks[r],
                                        state->MakeEnd(mesh, r)));
  };
  for (int r = mesh->rank() + 1; r < mesh->size(); ++r) open(r);
  WEFT_RETURN_IF_ERROR(mesh->AwaitAll(deadline, open, made.check_wait));
  backend->cost_ = made.cost;
  if (made.measures_cost && backend->health().ok()) {
    WEFT_RETURN_IF_ERROR(backend->MeasureCost(deadline));
  }
  return backend;
}

StreamBackend::~StreamBackend() {
  mesh().Leave();
  options_.streams->state()->ForgetIfOver(shared_mesh());
}

absl::Status StreamBackend::MeasureCost(Instant deadline) {
  if (size() < 2) return absl::OkStatus();
  constexpr int kRounds = 8;
  constexpr int64_t kLarge = int64_t{1} << 20;
  const int last = size() - 1;
  Clock& clock = driver().clock();
  const Operation probe = OwnOperation(0, deadline);
  double seconds[2] = {1e9, 1e9};  // of a small message and a large one
  const auto measure = [&](Link& link) -> absl::Status {
    std::vector<std::byte> bytes(kLarge);
    for (int i = 0; i < 2 * kRounds; ++i) {
      const auto message =
          absl::MakeSpan(bytes).first(i < kRounds ? 8 : kLarge);
      const Instant begin = clock.Now();
      if (rank() == 0) WEFT_RETURN_IF_ERROR(link.Send(last, message));
      WEFT_RETURN_IF_ERROR(link.Receive(rank() == 0 ? last : 0, message));
      if (rank() == last) WEFT_RETURN_IF_ERROR(link.Send(0, message));
      double& least = seconds[i / kRounds];
      least = std::min(least, absl::ToDoubleSeconds(clock.Now() - begin) / 2);
    }
    return absl::OkStatus();
  };
  if (rank() == 0 || rank() == last) {
    WEFT_RETURN_IF_ERROR(RunWith(probe, measure));
  }
  double numbers[2] = {seconds[0], static_cast<double>(kLarge) /
                                       std::max(seconds[1] - seconds[0], 1e-9)};
  Operation tell = OwnOperation(1, deadline);
  const Block block = {reinterpret_cast<std::byte*>(numbers), sizeof numbers};
  tell.outputs = {block};
  WEFT_RETURN_IF_ERROR(RunWith(
      tell, [&](Link& link) { return TreeBroadcast(link, tell, block); }));
  cost_.seconds_per_message = numbers[0];
  cost_.bytes_per_second = numbers[1];
  return absl::OkStatus();
}

absl::Status StreamBackend::Run(const Operation& operation) {
  return RunWith(operation, [&](Link& link) {
    return RunOverLink(link, operation, cost_);
  });
}

std::string StreamBackend::AskWhoHasNotCalled(const Operation& operation) {
  return mesh().AskWhoHasNotCalled(operation);
}
void StreamBackend::OnAbort(std::function<void(const absl::Status&)> hook) {
  mesh().OnAbort(std::move(hook));
}

absl::StatusOr<std::unique_ptr<Backend>> StreamBackend::Subgroup(
    const SubgroupSpec& spec) {
  StreamOptions options = options_;
  options.name = SubgroupName(options_.name, spec.name);
  options.ranks.clear();
  for (const int member : spec.members) {
    options.ranks.push_back(options_.ranks[member]);
  }
  options.rank = spec.PlaceOf(rank());
  options.connect_timeout = spec.deadline - driver().clock().Now();
  options.check_wait = spec.check_wait;
  return StreamBackend::Connect(std::move(options));
}

}  // namespace weft::collectives
