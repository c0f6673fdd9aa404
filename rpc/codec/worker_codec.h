// Codec<Worker>, Codec<WorkerKey>: a worker as a value of a call.
//
// Its role does not travel: only a certificate proves one.

#ifndef WEFT_RPC_CODEC_WORKER_CODEC_H_
#define WEFT_RPC_CODEC_WORKER_CODEC_H_

#include <string>

#include "absl/status/status.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/session/directory.h"

namespace weft::rpc {

template <>
struct Codec<WorkerKey> {
  static std::string TypeName() { return "weft.WorkerKey"; }
  static void Encode(const WorkerKey& key, Encoder& e) {
    e.Write(key.id, key.epoch);
  }
  static absl::Status Decode(Decoder& d, WorkerKey& key) {
    return d.Read(key.id, key.epoch);
  }
};

template <>
struct Codec<Worker> {
  static std::string TypeName() { return "weft.Worker"; }
  static void Encode(const Worker& worker, Encoder& e) {
    e.Write(worker.name, worker.key, worker.address);
  }
  static absl::Status Decode(Decoder& d, Worker& worker) {
    worker.role.clear();
    return d.Read(worker.name, worker.key, worker.address);
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_WORKER_CODEC_H_
