#include "weft/collectives/backends/nccl/simulated_nccl.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/simulated_nccl_state.h"
#include "weft/device/simulated/runtime.h"

namespace weft::collectives {

using device::SimulatedRuntime;
using simulated::DeviceMemory;
using simulated::Gate;
using simulated::Result;
using simulated::Stream;

// ----- communicators

Result SimulatedNccl::State::TakeFault(int process, const std::string& name) {
  MutexLock lock(mu);
  Process& p = processes[process];
  const auto it = p.faults.find(name);
  if (it == p.faults.end()) return Result::kSuccess;
  const Result result = it->second;
  p.faults.erase(it);
  p.last_error = "as a test asked for";
  return result;
}

std::shared_ptr<SimulatedNccl::State::Endpoint> SimulatedNccl::State::Find(
    nccl::Comm comm) {
  MutexLock lock(mu);
  const auto it = endpoints.find(comm);
  if (it != endpoints.end()) return it->second;
  ++misuses;
  return nullptr;
}

Result SimulatedNccl::State::Init(int process, nccl::Comm* comm, int size,
                                  const nccl::UniqueId& id, int rank) {
  auto endpoint = std::make_shared<Endpoint>();
  MutexLock lock(mu);
  std::shared_ptr<Clique>& clique =
      cliques[std::string(id.bytes, sizeof id.bytes)];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = size;
  }
  if (clique->size != size || rank < 0 || rank >= size ||
      clique->members.count(rank) > 0) {
    return Result::kInvalidArgument;
  }
  clique->members[rank] = endpoint;
  ++clique->joined;
  endpoint->clique = clique;
  endpoint->process = process;
  endpoint->rank = rank;
  *comm = reinterpret_cast<nccl::Comm>(endpoint.get());
  endpoints[*comm] = std::move(endpoint);
  return Result::kInProgress;
}

Result SimulatedNccl::State::AsyncError(nccl::Comm comm, Result* result) {
  const std::shared_ptr<Endpoint> endpoint = Find(comm);
  if (endpoint == nullptr) return Result::kInvalidArgument;
  std::vector<std::function<Result()>> launches_now;
  {
    MutexLock lock(mu);
    *result = processes[endpoint->process].async_error;
    if (*result != Result::kSuccess) return Result::kSuccess;
    *result = Result::kInProgress;
    if (endpoint->clique->joined < endpoint->clique->size) {
      return Result::kSuccess;
    }
    if (endpoint->polls_to_come > 0 && --endpoint->polls_to_come > 0) {
      return Result::kSuccess;
    }
    launches_now.swap(endpoint->deferred);
  }
  *result = Result::kSuccess;
  for (const auto& launch : launches_now) {
    const Result launched = launch();
    if (launched != Result::kSuccess) *result = launched;
  }
  return Result::kSuccess;
}

Result SimulatedNccl::State::Finalize(nccl::Comm comm) {
  const std::shared_ptr<Endpoint> endpoint = Find(comm);
  if (endpoint == nullptr) return Result::kInvalidArgument;
  MutexLock lock(mu);
  return endpoint->unfinished > 0 ? Result::kInvalidUsage : Result::kSuccess;
}

Result SimulatedNccl::State::End(nccl::Comm comm, bool is_abort) {
  const std::shared_ptr<Endpoint> endpoint = Find(comm);
  if (endpoint == nullptr) return Result::kInvalidArgument;
  MutexLock lock(mu);
  endpoint->has_ended = true;
  endpoint->deferred.clear();
  endpoint->clique->members[endpoint->rank] = nullptr;
  aborts += is_abort;
  for (Gate& gate : endpoint->gates) {
    if (!gate.is_free) Open(&gate);
  }
  endpoints.erase(comm);
  return Result::kSuccess;
}

// ----- when calls take effect

Result SimulatedNccl::State::Launch(int process,
                                    const std::shared_ptr<Endpoint>& endpoint,
                                    std::function<Result()> launch) {
  {
    MutexLock lock(mu);
    if (!endpoint->deferred.empty() ||
        endpoint->clique->joined < endpoint->clique->size) {
      ++misuses;
      return Result::kInvalidUsage;
    }
    ++launches;
    Group& group = processes[process].groups[std::this_thread::get_id()];
    if (group.depth > 0) {
      group.calls[endpoint].launches.push_back(std::move(launch));
      return Result::kSuccess;
    }
    endpoint->polls_to_come = static_cast<int>(random_() % 4);
    if (endpoint->polls_to_come > 0) {
      endpoint->deferred.push_back(std::move(launch));
      return Result::kInProgress;
    }
  }
  return launch();
}

Result SimulatedNccl::State::EndGroup(int process) {
  Group group;
  {
    MutexLock lock(mu);
    Group& open = processes[process].groups[std::this_thread::get_id()];
    if (open.depth == 0) {
      ++misuses;
      return Result::kInvalidUsage;
    }
    if (--open.depth > 0) return Result::kSuccess;
    std::swap(group, open);
  }
  Result all = Result::kSuccess;
  for (auto& [endpoint, found] : group.calls) {
    const auto launch = [self = shared_from_this(), to = endpoint,
                         calls = std::move(found)]() -> Result {
      for (const auto& one : calls.launches) {
        const Result result = one();
        if (result != Result::kSuccess) return result;
      }
      return calls.batch == nullptr
                 ? Result::kSuccess
                 : self->EnqueueBatch(to, calls.stream, calls.batch);
    };
    const Result result = Launch(process, endpoint, launch);
    if (result != Result::kSuccess) all = result;
  }
  return all;
}

void SimulatedNccl::State::Open(Gate* gate) {
  static_cast<SimulatedRuntime&>(gate->stream.runtime())
      .SetHangs(gate->stream, false);
}

Result SimulatedNccl::State::Enqueue(
    const std::shared_ptr<Endpoint>& endpoint, Stream stream, const char* name,
    std::function<void(Gate*)> register_gate,
    std::function<absl::Status(const DeviceMemory&)> meet,
    std::function<absl::Status(const DeviceMemory&)> write) {
  auto& runtime = static_cast<SimulatedRuntime&>(stream.runtime());
  const auto self = shared_from_this();
  Gate* gate = nullptr;
  {
    MutexLock lock(mu);
    for (Gate& one : endpoint->gates) {
      if (one.is_free && gate == nullptr) gate = &one;
    }
  }
  const auto enqueue = [&]() -> absl::Status {
    if (gate == nullptr) {
      WEFT_ASSIGN_OR_RETURN(const Stream made,
                            runtime.CreateStream(stream.device()));
      MutexLock lock(mu);
      endpoint->gates.push_back({made, true});
      gate = &endpoint->gates.back();
    }
    {
      MutexLock lock(mu);
      gate->is_free = false;
      ++endpoint->unfinished;
      register_gate(gate);
    }
    runtime.SetHangs(gate->stream, true);
    WEFT_RETURN_IF_ERROR(runtime.EnqueueHost(
        gate->stream, "gate", [self, endpoint, gate](const DeviceMemory&) {
          MutexLock lock(self->mu);
          gate->is_free = true;
          return absl::OkStatus();
        }));
    WEFT_ASSIGN_OR_RETURN(device::Event opened,
                          runtime.CreateEvent(stream.device()));
    WEFT_RETURN_IF_ERROR(runtime.RecordEvent(opened, gate->stream));
    WEFT_RETURN_IF_ERROR(runtime.EnqueueHost(stream, name, std::move(meet)));
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(stream, opened));
    return runtime.EnqueueHost(
        stream, absl::StrCat(name, " results"),
        [self, endpoint, write = std::move(write)](const DeviceMemory& memory) {
          bool has_ended = false;
          {
            MutexLock lock(self->mu);
            --endpoint->unfinished;
            has_ended = endpoint->has_ended;
          }
          return has_ended ? absl::OkStatus() : write(memory);
        });
  };
  const absl::Status status = enqueue();
  if (status.ok()) return Result::kSuccess;
  MutexLock lock(mu);
  processes[endpoint->process].last_error = std::string(status.message());
  return Result::kUnhandledCudaError;
}

SimulatedNccl::SimulatedNccl(uint64_t seed)
    : state_(std::make_shared<State>(seed)) {}
SimulatedNccl::~SimulatedNccl() = default;

std::shared_ptr<const NcclFunctions> SimulatedNccl::Library(int process) {
  auto functions = std::make_shared<NcclFunctions>();
  state_->FillCommunicators(process, *functions);
  state_->FillCollectives(process, *functions);
  state_->FillMessages(process, *functions);
  return functions;
}

void SimulatedNccl::FailCall(int process, std::string name,
                             nccl::Result result) {
  MutexLock lock(state_->mu);
  state_->processes[process].faults.emplace(std::move(name), result);
}
void SimulatedNccl::SetAsyncError(int process, nccl::Result result) {
  MutexLock lock(state_->mu);
  state_->processes[process].async_error = result;
}
void SimulatedNccl::SetSilent(int process, bool is_silent) {
  MutexLock lock(state_->mu);
  state_->processes[process].is_silent = is_silent;
}
int SimulatedNccl::communicators() const {
  MutexLock lock(state_->mu);
  return static_cast<int>(state_->endpoints.size());
}
int SimulatedNccl::aborts() const {
  MutexLock lock(state_->mu);
  return state_->aborts;
}
int64_t SimulatedNccl::launches() const {
  MutexLock lock(state_->mu);
  return state_->launches;
}
int SimulatedNccl::mismatches() const {
  MutexLock lock(state_->mu);
  return state_->mismatches;
}
int SimulatedNccl::misuses() const {
  MutexLock lock(state_->mu);
  return state_->misuses;
}

}  // namespace weft::collectives
