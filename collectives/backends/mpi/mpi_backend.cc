#include "weft/collectives/backends/mpi/mpi_backend.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/library/library_backend.h"
#include "weft/collectives/backends/mpi/mpi_channels.h"
#include "weft/collectives/backends/mpi/mpi_ranks.h"
#include "weft/collectives/backends/mpi/mpi_state.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"

void WeftCollectivesHasMpi() {}

namespace weft::collectives {
namespace {

// MPI counts elements by int; larger operations are done in pieces.
constexpr int64_t kMostBytes = int64_t{1} << 30;
// How often a thread yields before it sleeps while MPI works.
constexpr int kYields = 200;

MPI_Datatype TypeOfWidth(int64_t bytes) {
  switch (bytes) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

class MpiBackend final : public LibraryBackend {
 public:
  MpiBackend(MpiSession& session, MpiOptions options,
             std::shared_ptr<Mesh> mesh)
      : LibraryBackend(std::move(mesh)),
        session_(session),
        options_(std::move(options)) {}
  ~MpiBackend() override {
    Leave();
    channels_ = nullptr;
    // The communicator stays until the session ends: to free it, all ranks
    // would have to come together.
  }

  absl::Status Start(int tag, Instant deadline);

  absl::string_view name() const override { return "mpi"; }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override;

 protected:
  absl::Status AllReduce(const Operation& operation,
                         Accumulators accumulators) override {
    return ReducePieces(operation, accumulators, /*to_all=*/true);
  }
  absl::Status Reduce(const Operation& operation,
                      Accumulators accumulators) override {
    return ReducePieces(operation, accumulators, /*to_all=*/false);
  }
  absl::Status Broadcast(const Operation& operation,
                         absl::Span<std::byte> bytes) override {
    return BroadcastFrom(operation, operation.root, bytes);
  }
  absl::Status AllGather(const Operation& operation, std::byte* memory,
                         const std::vector<size_t>& counts) override;

 private:
  // A copy of memory: MPI may use it after the operation has failed.
  using Staged = std::shared_ptr<std::vector<std::byte>>;
  static Staged Stage(const std::byte* memory, int64_t bytes) {
    return std::make_shared<std::vector<std::byte>>(memory, memory + bytes);
  }

  absl::Status ReducePieces(const Operation& operation,
                            Accumulators accumulators, bool to_all);
  absl::Status BroadcastFrom(const Operation& operation, int root,
                             absl::Span<std::byte> bytes);
  // Waits for what MPI does with `staged`, once `code` says that it has begun.
  absl::Status Await(const Operation& operation, int code, MPI_Request request,
                     const Staged& staged);

  MpiSession& session_;
  const MpiOptions options_;
  std::unique_ptr<MpiChannels> channels_;
  MPI_Comm elements_ = MPI_COMM_NULL;
};

absl::Status MpiBackend::Start(int tag, Instant deadline) {
  if (size() == 1) return absl::OkStatus();
  MpiSession::State& state = session_.state();
  channels_ =
      std::make_unique<MpiChannels>(state, tag, options_.ranks, shared_mesh());
  WEFT_RETURN_IF_ERROR(channels_->Start());
  // GroupTerms::check_wait is not looked at: a rank that it ends here alone
  // would leave others in MPI's meeting for ever.
  WEFT_RETURN_IF_ERROR(mesh().AwaitAll(deadline, [](int) {}));
  // The group may be over before all have come: others do not go on to MPI's
  // meeting then.
  WEFT_RETURN_IF_ERROR(health());
  // All are there: what follows has no deadline of its own.
  MPI_Group all = MPI_GROUP_NULL, own = MPI_GROUP_NULL;
  MPI_Comm_group(state.parent(), &all);
  MPI_Group_incl(all, size(), options_.ranks.data(), &own);
  const absl::Status status =
      MpiStatus(MPI_Comm_create_group(state.parent(), own, tag, &elements_),
                "MPI_Comm_create_group");
  MPI_Group_free(&own);
  MPI_Group_free(&all);
  WEFT_RETURN_IF_ERROR(status);
  MPI_Comm_set_errhandler(elements_, MPI_ERRORS_RETURN);
  return absl::OkStatus();
}

absl::Status MpiBackend::Await(const Operation& operation, int code,
                               MPI_Request request, const Staged& staged) {
  WEFT_RETURN_IF_ERROR(MpiStatus(code, name()));
  const Instant begin = driver().clock().Now();
  for (int i = 0;; ++i) {
    int is_done = 0;
    code = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    WEFT_RETURN_IF_ERROR(MpiStatus(code, name()));
    if (is_done != 0) return absl::OkStatus();
    if (i < kYields) {
      sched_yield();
      continue;
    }
    const Instant now = driver().clock().Now();
    if (now >= operation.deadline || !health().ok()) {
      session_.state().Keep(staged);
      return FailureOf(operation, "MPI has not ended it");
    }
    absl::SleepFor(MpiPollInterval(now - begin));
  }
}

absl::Status MpiBackend::ReducePieces(const Operation& operation,
                                      Accumulators accumulators, bool to_all) {
  const int64_t width = AccumulatorBytes(operation.dtype);
  const MPI_Datatype type = TypeOfWidth(width);
  WEFT_ASSIGN_OR_RETURN(
      const MPI_Op op,
      session_.state().ReductionOf(operation.dtype, operation.reduction.op));
  for (int64_t at = 0; at < accumulators.count; at += kMostBytes / width) {
    const int64_t n = std::min(kMostBytes / width, accumulators.count - at);
    std::byte* const memory = accumulators.memory + at * width;
    const Staged staged = Stage(memory, n * width);
    const bool is_receiver = to_all || rank() == operation.root;
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        to_all
            ? MPI_Iallreduce(MPI_IN_PLACE, staged->data(), static_cast<int>(n),
                             type, op, elements_, &request)
            : MPI_Ireduce(is_receiver ? MPI_IN_PLACE : staged->data(),
                          is_receiver ? staged->data() : nullptr,
                          static_cast<int>(n), type, op, operation.root,
                          elements_, &request);
    WEFT_RETURN_IF_ERROR(Await(operation, code, request, staged));
    if (is_receiver) memcpy(memory, staged->data(), staged->size());
  }
  return absl::OkStatus();
}

absl::Status MpiBackend::BroadcastFrom(const Operation& operation, int root,
                                       absl::Span<std::byte> bytes) {
  const int64_t total = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0; at < total; at += kMostBytes) {
    const int64_t n = std::min(kMostBytes, total - at);
    const Staged staged = Stage(bytes.data() + at, n);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Ibcast(staged->data(), static_cast<int>(n), MPI_BYTE,
                                root, elements_, &request);
    WEFT_RETURN_IF_ERROR(Await(operation, code, request, staged));
    if (rank() != root) memcpy(bytes.data() + at, staged->data(), n);
  }
  return absl::OkStatus();
}

absl::Status MpiBackend::AllGather(const Operation& operation,
                                   std::byte* memory,
                                   const std::vector<size_t>& counts) {
  std::vector<int> bytes, begins;
  int64_t total = 0;
  for (const size_t count : counts) {
    bytes.push_back(static_cast<int>(count));
    begins.push_back(static_cast<int>(total));
    total += static_cast<int64_t>(count);
  }
  if (total > kMostBytes) {
    size_t at = 0;
    for (int r = 0; r < size(); at += counts[r], ++r) {
      WEFT_RETURN_IF_ERROR(
          BroadcastFrom(operation, r, absl::MakeSpan(memory + at, counts[r])));
    }
    return absl::OkStatus();
  }
  // MPI reads the counts until the end, too.
  struct Arguments {
    std::vector<std::byte> elements;
    std::vector<int> bytes, begins;
  };
  auto arguments = std::make_shared<Arguments>();
  arguments->elements.assign(memory, memory + total);
  arguments->bytes = std::move(bytes);
  arguments->begins = std::move(begins);
  const Staged staged(arguments, &arguments->elements);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Iallgatherv(
      MPI_IN_PLACE, 0, MPI_BYTE, staged->data(), arguments->bytes.data(),
      arguments->begins.data(), MPI_BYTE, elements_, &request);
  WEFT_RETURN_IF_ERROR(Await(operation, code, request, staged));
  memcpy(memory, staged->data(), staged->size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend>> Connect(MpiSession& session,
                                                 MpiOptions options,
                                                 Instant deadline) {
  WEFT_RETURN_IF_ERROR(
      CheckMpiRanks(options, session.rank(), session.state().hosts()));
  WEFT_ASSIGN_OR_RETURN(const int tag, session.state().TagOf(options.name));
  const int own = static_cast<int>(
      std::find(options.ranks.begin(), options.ranks.end(), session.rank()) -
      options.ranks.begin());
  MeshOptions mesh_options(options, own,
                           static_cast<int>(options.ranks.size()));
  for (const int rank : options.ranks) {
    mesh_options.names.push_back(absl::StrCat("MPI rank ", rank));
  }
  auto mesh = std::make_shared<Mesh>(std::move(mesh_options), ParkingDriver());
  auto backend = std::make_unique<MpiBackend>(session, std::move(options),
                                              std::move(mesh));
  WEFT_RETURN_IF_ERROR(backend->Start(tag, deadline));
  return backend;
}

absl::StatusOr<std::unique_ptr<Backend>> MpiBackend::Subgroup(
    const SubgroupSpec& spec) {
  MpiOptions options = options_;
  options.name = SubgroupName(options_.name, spec.name);
  options.ranks.clear();
  for (const int member : spec.members) {
    options.ranks.push_back(options_.ranks[member]);
  }
  return Connect(session_, std::move(options), spec.deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectMpi(MpiSession& session,
                                                    MpiOptions options) {
  if (options.ranks.empty()) {
    for (int r = 0; r < session.size(); ++r) options.ranks.push_back(r);
  }
  const Instant deadline = SteadyClock().Now() + options.connect_timeout;
  return Connect(session, std::move(options), deadline);
}

}  // namespace weft::collectives
