// Codec<Worker>, Codec<WorkerKey>: a worker as a value of a call.
//
// Its role does not travel: only a certificate proves one.

#ifndef WEFT_RPC_CODEC_WORKER_CODEC_H_
#define WEFT_RPC_CODEC_WORKER_CODEC_H_

#include <string>

#include "absl/status/status.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/object_id.h"
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

template <>
struct Codec<ObjectId> {
  static std::string TypeName() { return "object"; }
  static void Encode(const ObjectId& id, Encoder& e) {
    e.Varint(id.call);
    for (const WorkerKey key : {id.creator, id.owner}) {
      e.Varint(key.id);
      e.Varint(key.epoch);
    }
  }
  static absl::Status Decode(Decoder& d, ObjectId& id) {
    WEFT_RETURN_IF_ERROR(d.Varint(id.call));
    for (WorkerKey* const key : {&id.creator, &id.owner}) {
      uint64_t number = 0;
      WEFT_RETURN_IF_ERROR(d.Varint(number));
      if (number > UINT32_MAX) return Decoder::Malformed("no id of a worker");
      key->id = static_cast<uint32_t>(number);
      WEFT_RETURN_IF_ERROR(d.Varint(key->epoch));
    }
    return absl::OkStatus();
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_WORKER_CODEC_H_
