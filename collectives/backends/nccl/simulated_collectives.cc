// How ranks of a simulated NCCL meet: collective operations, and messages.

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/nccl/simulated_nccl_state.h"
#include "weft/tensor/half.h"

namespace weft::collectives {

using namespace simulated;  // NOLINT: the types of the state

namespace simulated {

DType DTypeOf(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return DType::kI8;
    case DataType::kUint8:
      return DType::kU8;
    case DataType::kInt32:
      return DType::kI32;
    case DataType::kInt64:
      return DType::kI64;
    case DataType::kFloat16:
      return DType::kF16;
    case DataType::kFloat32:
      return DType::kF32;
    case DataType::kFloat64:
      return DType::kF64;
    case DataType::kBfloat16:
      return DType::kBF16;
  }
  return DType::kU8;
}

}  // namespace simulated

namespace {

// `factor` as an element.
double Rounded(double factor, DataType type) {
  const auto f32 = static_cast<float>(factor);
  switch (type) {
    case DataType::kFloat64:
      return factor;
    case DataType::kFloat16:
      return weft::internal::FloatOfFloat16(weft::internal::Float16Bits(f32));
    case DataType::kBfloat16:
      return weft::internal::FloatOfBFloat16(weft::internal::BFloat16Bits(f32));
    default:
      return f32;
  }
}

}  // namespace

// ----- collective operations

std::string SimulatedNccl::State::ResultOf(const Clique& clique,
                                           const Meeting& meeting) {
  const Signature& s = meeting.parts.begin()->second.signature;
  if (s.kind == Kind::kBroadcast) return meeting.inputs.at(s.root);
  std::string all;
  if (s.kind == Kind::kAllGather) {
    for (const auto& [rank, input] : meeting.inputs) all += input;
    return all;
  }
  const DType dtype = DTypeOf(s.type);
  const bool divides = s.op == RedOp::kAvg && !IsFloating(dtype);
  const std::map<RedOp, ReduceOp> ops = {{RedOp::kProd, ReduceOp::kProduct},
                                         {RedOp::kMax, ReduceOp::kMax},
                                         {RedOp::kMin, ReduceOp::kMin}};
  ReduceOp op = divides ? ReduceOp::kAverage : ReduceOp::kSum;
  if (ops.count(s.op) > 0) op = ops.at(s.op);
  std::vector<Contribution> contributions;
  for (const auto& [rank, input] : meeting.inputs) {
    // NCCL multiplies before it adds.
    const double factor = s.op == RedOp::kAvg && !divides
                              ? Rounded(1.0 / clique.size, s.type)
                              : meeting.parts.at(rank).factor;
    contributions.push_back(
        {reinterpret_cast<const std::byte*>(input.data()), factor});
  }
  all.resize(meeting.inputs.begin()->second.size());
  auto* const out = reinterpret_cast<std::byte*>(all.data());
  ReduceContributions(dtype, op, contributions, {&out, 1},
                      static_cast<int64_t>(all.size()) / ItemSize(dtype));
  return all;
}

void SimulatedNccl::State::Meet(Endpoint& endpoint, uint64_t number,
                                const Part& part, std::string input) {
  MutexLock lock(mu);
  if (endpoint.has_ended || IsSilent(endpoint)) return;
  Clique& clique = *endpoint.clique;
  Meeting& meeting = clique.meetings[number];
  if (!meeting.parts.empty() && !meeting.is_broken &&
      meeting.parts.begin()->second.signature != part.signature) {
    meeting.is_broken = true;
    ++mismatches;
  }
  meeting.parts[endpoint.rank] = part;
  meeting.inputs[endpoint.rank] = std::move(input);
  if (meeting.is_broken ||
      static_cast<int>(meeting.parts.size()) < clique.size) {
    return;
  }
  meeting.result = ResultOf(clique, meeting);
  for (const auto& [rank, gate] : meeting.gates) {
    if (clique.members[rank] != nullptr) Open(gate);
  }
}

Result SimulatedNccl::State::EnqueuePart(
    const std::shared_ptr<Endpoint>& endpoint, Stream stream, Part part,
    size_t sent_bytes, size_t taken_bytes) {
  const auto self = shared_from_this();
  uint64_t number = 0;
  {
    MutexLock lock(mu);
    number = endpoint->next++;
  }
  return Enqueue(
      endpoint, stream, "NCCL",
      [=](Gate* gate) {
        endpoint->clique->meetings[number].gates[endpoint->rank] = gate;
      },
      [=](const DeviceMemory& memory) -> absl::Status {
        std::string input;
        if (part.from != nullptr) {
          WEFT_ASSIGN_OR_RETURN(
              const char* const read,
              memory.At(part.from, static_cast<int64_t>(sent_bytes)));
          input.assign(read, sent_bytes);
        }
        self->Meet(*endpoint, number, part, std::move(input));
        return absl::OkStatus();
      },
      [=](const DeviceMemory& memory) -> absl::Status {
        std::string result;
        {
          MutexLock lock(self->mu);
          Clique& clique = *endpoint->clique;
          Meeting& meeting = clique.meetings[number];
          const size_t at = part.signature.kind == Kind::kReduceScatter
                                ? taken_bytes * endpoint->rank
                                : 0;
          result = meeting.result.substr(at, taken_bytes);
          if (++meeting.taken == clique.size) clique.meetings.erase(number);
        }
        if (part.to == nullptr) return absl::OkStatus();
        WEFT_ASSIGN_OR_RETURN(
            char* const written,
            memory.At(part.to, static_cast<int64_t>(taken_bytes)));
        memcpy(written, result.data(), taken_bytes);
        return absl::OkStatus();
      });
}

Result SimulatedNccl::State::Collect(int process, nccl::Comm comm, void* stream,
                                     Part part, size_t sent_bytes,
                                     size_t taken_bytes, RedOp op) {
  const std::shared_ptr<Endpoint> endpoint = Find(comm);
  if (endpoint == nullptr) return Result::kInvalidArgument;
  {
    MutexLock lock(mu);
    const auto factor = endpoint->factors.find(static_cast<int>(op));
    part.signature.is_premultiplied = factor != endpoint->factors.end();
    part.signature.op = op;
    if (part.signature.is_premultiplied) {
      part.signature.op = RedOp::kSum;
      part.factor = factor->second;
    } else if (static_cast<int>(op) >= nccl::kNumRedOps) {
      ++misuses;
      return Result::kInvalidArgument;
    }
  }
  return Launch(
      process, endpoint,
      [self = shared_from_this(), endpoint, on = *static_cast<Stream*>(stream),
       part, sent_bytes, taken_bytes] {
        return self->EnqueuePart(endpoint, on, part, sent_bytes, taken_bytes);
      });
}

// ----- messages

bool SimulatedNccl::State::IsMet(Clique& clique, int rank, const Batch& batch) {
  for (const Message& one : batch.receives) {
    const Channel& channel = clique.channels[{one.peer, rank}];
    const auto sent = channel.sent.find(one.number);
    if (sent == channel.sent.end() || sent->second.size() != one.bytes) {
      return false;
    }
  }
  for (const Message& one : batch.sends) {
    const Channel& channel = clique.channels[{rank, one.peer}];
    const auto wanted = channel.posted.find(one.number);
    if (wanted == channel.posted.end() || wanted->second != one.bytes) {
      return false;
    }
  }
  return true;
}

void SimulatedNccl::State::OpenBatches(Clique& clique) {
  auto& batches = clique.batches;
  for (auto& [rank, batch] : batches) {
    if (!IsMet(clique, rank, *batch)) continue;
    batch->is_open = true;
    if (clique.members[rank] != nullptr) Open(batch->gate);
  }
  batches.erase(
      std::remove_if(batches.begin(), batches.end(),
                     [](const auto& one) { return one.second->is_open; }),
      batches.end());
}

Result SimulatedNccl::State::EnqueueBatch(
    const std::shared_ptr<Endpoint>& endpoint, Stream stream,
    std::shared_ptr<Batch> batch) {
  const auto self = shared_from_this();
  const int rank = endpoint->rank;
  {
    MutexLock lock(mu);
    auto& channels = endpoint->clique->channels;
    for (Message& m : batch->sends) {
      m.number = channels[{rank, m.peer}].sends++;
    }
    for (Message& m : batch->receives) {
      m.number = channels[{m.peer, rank}].receives++;
    }
  }
  return Enqueue(
      endpoint, stream, "NCCL messages",
      [=](Gate* gate) { batch->gate = gate; },
      [=](const DeviceMemory& memory) -> absl::Status {
        std::vector<std::string> contents;
        for (const Message& one : batch->sends) {
          WEFT_ASSIGN_OR_RETURN(
              const char* const read,
              memory.At(one.from, static_cast<int64_t>(one.bytes)));
          contents.emplace_back(read, one.bytes);
        }
        MutexLock lock(self->mu);
        if (endpoint->has_ended || self->IsSilent(*endpoint)) {
          return absl::OkStatus();
        }
        Clique& clique = *endpoint->clique;
        for (size_t i = 0; i < contents.size(); ++i) {
          const Message& one = batch->sends[i];
          clique.channels[{rank, one.peer}].sent[one.number] =
              std::move(contents[i]);
        }
        for (const Message& one : batch->receives) {
          clique.channels[{one.peer, rank}].posted[one.number] = one.bytes;
        }
        clique.batches.emplace_back(rank, batch);
        self->OpenBatches(clique);
        return absl::OkStatus();
      },
      [=](const DeviceMemory& memory) -> absl::Status {
        for (const Message& one : batch->receives) {
          std::string content;
          {
            MutexLock lock(self->mu);
            content =
                endpoint->clique->channels[{one.peer, rank}].sent[one.number];
          }
          WEFT_ASSIGN_OR_RETURN(
              char* const written,
              memory.At(one.to, static_cast<int64_t>(one.bytes)));
          memcpy(written, content.data(), content.size());
        }
        return absl::OkStatus();
      });
}

Result SimulatedNccl::State::AddMessage(int process, nccl::Comm comm,
                                        void* stream, bool is_send,
                                        Message message) {
  const std::shared_ptr<Endpoint> endpoint = Find(comm);
  if (endpoint == nullptr) return Result::kInvalidArgument;
  MutexLock lock(mu);
  Group& group = processes[process].groups[std::this_thread::get_id()];
  if (group.depth == 0) return Result::kInvalidUsage;  // not simulated
  Group::Calls& calls = group.calls[endpoint];
  calls.stream = *static_cast<Stream*>(stream);
  if (calls.batch == nullptr) calls.batch = std::make_shared<Batch>();
  (is_send ? calls.batch->sends : calls.batch->receives).push_back(message);
  return Result::kSuccess;
}

}  // namespace weft::collectives
