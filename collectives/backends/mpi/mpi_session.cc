#include "weft/collectives/backends/mpi/mpi_session.h"

#include <xxhash.h>

#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/mpi/mpi_state.h"

namespace weft::collectives {
namespace {

constexpr size_t kNumReduceOps = 8;

// MPI hands its functions no context: one for each dtype and operation.
using ReduceFunction = void (*)(void*, void*, int*, MPI_Datatype*);

template <size_t kIndex>
void ReduceOf(void* in, void* in_out, int* count, MPI_Datatype*) {
  AddAccumulators(kAllDTypes[kIndex / kNumReduceOps],
                  static_cast<ReduceOp>(kIndex % kNumReduceOps), in, in_out,
                  *count);
}

template <size_t... kIndices>
constexpr auto MakeFunctions(std::index_sequence<kIndices...>) {
  return std::array<ReduceFunction, sizeof...(kIndices)>{ReduceOf<kIndices>...};
}

constexpr auto kFunctions = MakeFunctions(
    std::make_index_sequence<std::size(kAllDTypes) * kNumReduceOps>());

size_t IndexOf(DType dtype, ReduceOp op) {
  size_t i = 0;
  while (kAllDTypes[i] != dtype) ++i;
  return i * kNumReduceOps + static_cast<size_t>(op);
}

}  // namespace

absl::Status MpiStatus(int code, absl::string_view what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(
      absl::StrCat(what, ": ", absl::string_view(text, length)));
}

absl::Status MpiSession::State::Start() {
  int is_finalized = 0, is_initialized = 0, threads = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) {
    return absl::FailedPreconditionError(
        "MpiSession: MPI was finalized, and cannot be initialized again");
  }
  MPI_Initialized(&is_initialized);
  if (is_initialized != 0) {
    MPI_Query_thread(&threads);
  } else {
    WEFT_RETURN_IF_ERROR(MpiStatus(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads),
        "MPI_Init_thread"));
    must_finalize_ = true;
  }
  if (threads < MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "MpiSession wants MPI_THREAD_MULTIPLE (",
        static_cast<int>(MPI_THREAD_MULTIPLE), "), MPI was initialized with ",
        threads, "; call MPI_Init_thread with it, or leave it to Start"));
  }
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_dup(MPI_COMM_WORLD, &messages_), "MPI_Comm_dup"));
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_dup(MPI_COMM_WORLD, &parent_), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(parent_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(messages_, &rank_);
  MPI_Comm_size(messages_, &size_);
  // The lowest rank of each host, as all of them find it.
  MPI_Comm host = MPI_COMM_NULL;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_split_type(messages_, MPI_COMM_TYPE_SHARED, rank_,
                                    MPI_INFO_NULL, &host),
                "MPI_Comm_split_type"));
  int lowest = rank_;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Bcast(&lowest, 1, MPI_INT, 0, host), "MPI_Bcast"));
  MPI_Comm_free(&host);
  hosts_.resize(size_);
  return MpiStatus(
      MPI_Allgather(&lowest, 1, MPI_INT, hosts_.data(), 1, MPI_INT, messages_),
      "MPI_Allgather");
}

MpiSession::State::~State() {
  if (must_finalize_) {
    MPI_Finalize();
    // Its memory was MPI's to use until now.
    return;
  }
  // MPI goes on, and so may what it does with this.
  MutexLock lock(mu_);
  if (!kept_.empty()) {
    new std::vector<std::shared_ptr<const void>>(std::move(kept_));
  }
}

absl::StatusOr<int> MpiSession::State::TagOf(const std::string& name) {
  MutexLock lock(mu_);
  if (!names_.insert(name).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("this process has a rank of group ", name,
                     " already: each name is used once"));
  }
  void* most = nullptr;
  int is_set = 0;
  MPI_Comm_get_attr(messages_, MPI_TAG_UB, &most, &is_set);
  const uint64_t tags =
      is_set != 0 ? static_cast<uint64_t>(*static_cast<int*>(most)) : 32767;
  return static_cast<int>(XXH3_64bits(name.data(), name.size()) % tags);
}

absl::StatusOr<MPI_Op> MpiSession::State::ReductionOf(DType dtype,
                                                      ReduceOp op) {
  MutexLock lock(mu_);
  if (operations_.empty()) operations_.resize(kFunctions.size(), MPI_OP_NULL);
  const size_t index = IndexOf(dtype, op);
  MPI_Op& operation = operations_[index];
  if (operation == MPI_OP_NULL) {
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Op_create(kFunctions[index], /*commute=*/1, &operation),
                  "MPI_Op_create"));
  }
  return operation;
}

void MpiSession::State::Keep(std::shared_ptr<const void> memory) {
  MutexLock lock(mu_);
  kept_.push_back(std::move(memory));
}

MpiSession::MpiSession(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
MpiSession::~MpiSession() = default;

absl::StatusOr<std::unique_ptr<MpiSession>> MpiSession::Start() {
  auto state = std::make_unique<State>();
  WEFT_RETURN_IF_ERROR(state->Start());
  return std::unique_ptr<MpiSession>(new MpiSession(std::move(state)));
}

int MpiSession::rank() const { return state_->rank(); }
int MpiSession::size() const { return state_->size(); }

}  // namespace weft::collectives
