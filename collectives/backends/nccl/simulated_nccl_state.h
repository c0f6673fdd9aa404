// SimulatedNccl::State: what the processes of a simulated NCCL share.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_STATE_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"
#include "weft/collectives/backends/nccl/simulated_nccl.h"
#include "weft/device/runtime.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {
namespace simulated {

using device::DeviceMemory;
using device::Stream;
using nccl::DataType;
using nccl::RedOp;
using nccl::Result;

DType DTypeOf(DataType type);

enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter };

// What must be equal on all ranks that meet.
struct Signature {
  Kind kind;
  size_t count;
  DataType type;
  bool is_premultiplied;
  RedOp op;  // kSum if premultiplied
  int root;

  friend bool operator!=(const Signature& a, const Signature& b) {
    const auto tie = [](const Signature& s) {
      return std::tie(s.kind, s.count, s.type, s.is_premultiplied, s.op,
                      s.root);
    };
    return tie(a) != tie(b);
  }
};

// One rank's part of a collective operation.
struct Part {
  Signature signature;
  const char* from = nullptr;
  char* to = nullptr;
  double factor = 1;
};

// A stream that hangs: what waits for its event waits until it is opened.
struct Gate {
  Stream stream;
  bool is_free = true;
};

struct Message {
  int peer = 0;
  const char* from = nullptr;  // of a send
  char* to = nullptr;          // of a receive
  size_t bytes = 0;
  uint64_t number = 0;  // of those between the two, in that direction
};

}  // namespace simulated

// Thread-safety: thread-safe.
class SimulatedNccl::State : public std::enable_shared_from_this<State> {
 public:
  using DataType = nccl::DataType;
  using DeviceMemory = device::DeviceMemory;
  using Gate = simulated::Gate;
  using Message = simulated::Message;
  using Part = simulated::Part;
  using RedOp = nccl::RedOp;
  using Result = nccl::Result;
  using Stream = device::Stream;

  struct Endpoint;
  // Where the parts of one operation meet.
  struct Meeting {
    std::map<int, Part> parts;
    std::map<int, std::string> inputs;
    std::map<int, Gate*> gates;
    bool is_broken = false;
    std::string result;  // of all, where reduced or gathered
    int taken = 0;
  };
  // Messages from one rank to another.
  struct Channel {
    uint64_t sends = 0, receives = 0;  // that were called
    std::map<uint64_t, std::string> sent;
    std::map<uint64_t, size_t> posted;  // bytes that are wanted
  };
  // Messages of one rank that are called at once.
  struct Batch {
    std::vector<Message> sends, receives;
    Gate* gate = nullptr;
    bool is_open = false;
  };
  struct Clique {
    int size = 0;
    std::map<int, std::shared_ptr<Endpoint>> members;  // null: it has ended
    int joined = 0;
    std::map<uint64_t, Meeting> meetings;
    std::map<std::pair<int, int>, Channel> channels;
    std::vector<std::pair<int, std::shared_ptr<Batch>>> batches;  // by rank
  };
  struct Endpoint {
    std::shared_ptr<Clique> clique;
    int process = 0;
    int rank = 0;
    bool has_ended = false;
    uint64_t next = 0;      // collective operation
    int unfinished = 0;     // tasks that write results
    int polls_to_come = 0;  // until `deferred` is put on the stream
    std::vector<std::function<Result()>> deferred;
    std::map<int, double> factors;  // by RedOp
    std::deque<Gate> gates;
  };
  // Calls of one thread between GroupStart and GroupEnd.
  struct Group {
    struct Calls {
      std::vector<std::function<Result()>> launches;
      Stream stream;
      std::shared_ptr<Batch> batch;  // null: no messages
    };
    int depth = 0;
    std::map<std::shared_ptr<Endpoint>, Calls> calls;
  };
  struct Process {
    std::multimap<std::string, Result> faults;
    Result async_error = Result::kSuccess;
    bool is_silent = false;
    std::map<std::thread::id, Group> groups;
    std::string last_error;
  };

  explicit State(uint64_t seed) : random_(seed) {}

  // The functions of one process.
  void FillCommunicators(int process, NcclFunctions& f);
  void FillCollectives(int process, NcclFunctions& f);
  void FillMessages(int process, NcclFunctions& f);

  mutable Mutex mu;
  std::map<int, Process> processes ABSL_GUARDED_BY(mu);
  std::map<nccl::Comm, std::shared_ptr<Endpoint>> endpoints ABSL_GUARDED_BY(mu);
  std::map<std::string, std::shared_ptr<Clique>> cliques ABSL_GUARDED_BY(mu);
  uint64_t next_id ABSL_GUARDED_BY(mu) = 1;
  int aborts ABSL_GUARDED_BY(mu) = 0;
  int64_t launches ABSL_GUARDED_BY(mu) = 0;
  int mismatches ABSL_GUARDED_BY(mu) = 0;
  int misuses ABSL_GUARDED_BY(mu) = 0;

  // --- What they do. ---

  // The result that a test asked for, if any.
  Result TakeFault(int process, const std::string& name);
  std::shared_ptr<Endpoint> Find(nccl::Comm comm);
  Result Init(int process, nccl::Comm* comm, int size, const nccl::UniqueId& id,
              int rank);
  Result AsyncError(nccl::Comm comm, Result* result);
  Result Finalize(nccl::Comm comm);
  Result End(nccl::Comm comm, bool is_abort);
  Result EndGroup(int process);
  // Calls `launch` now, at the end of the group, or when it is asked for.
  Result Launch(int process, const std::shared_ptr<Endpoint>& endpoint,
                std::function<Result()> launch);
  Result Collect(int process, nccl::Comm comm, void* stream, Part part,
                 size_t sent_bytes, size_t taken_bytes, RedOp op);
  Result AddMessage(int process, nccl::Comm comm, void* stream, bool is_send,
                    Message message);
  // Puts `meet` and, once the gate is open, `write` on the stream.
  Result Enqueue(const std::shared_ptr<Endpoint>& endpoint, Stream stream,
                 const char* name, std::function<void(Gate*)> register_gate,
                 std::function<absl::Status(const DeviceMemory&)> meet,
                 std::function<absl::Status(const DeviceMemory&)> write);
  Result EnqueuePart(const std::shared_ptr<Endpoint>& endpoint, Stream stream,
                     Part part, size_t sent_bytes, size_t taken_bytes);
  Result EnqueueBatch(const std::shared_ptr<Endpoint>& endpoint, Stream stream,
                      std::shared_ptr<Batch> batch);
  static void Open(Gate* gate);
  void Meet(Endpoint& endpoint, uint64_t number, const Part& part,
            std::string input) ABSL_LOCKS_EXCLUDED(mu);
  static std::string ResultOf(const Clique& clique, const Meeting& meeting);
  void OpenBatches(Clique& clique) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool IsMet(Clique& clique, int rank, const Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool IsSilent(const Endpoint& endpoint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return processes[endpoint.process].is_silent;
  }

  std::mt19937_64 random_ ABSL_GUARDED_BY(mu);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_SIMULATED_NCCL_STATE_H_
