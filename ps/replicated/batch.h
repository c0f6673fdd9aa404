// Batch: what one server says to another at once: messages between replicas, of
// as many partitions and tables as have something to say.
//
// On the wire it is columns of numbers (proto ReplicaRun) and payloads, for one
// push makes a message for each of its partitions.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_REPLICATED_BATCH_H_
#define WEFT_PS_REPLICATED_BATCH_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/replication/open_clients.h"
#include "weft/ps/core/replication/replication.h"

namespace weft::ps {

// The table that a message belongs to.
struct TableIdentity {
  v1::TableSpec spec;
  uint64_t generation = 0;
};

// A message that is to be sent.
struct Envelope {
  std::shared_ptr<const TableIdentity> table;
  int partition = 0;
  ReplicaMessage message;
  // kFill: a piece of the rows, and who has the table open.
  Bytes copy;
  std::vector<OpenClients::Opening> openings;

  int64_t bytes() const;
};

struct EncodedBatch {
  v1::ReplicaBatch batch;
  std::vector<Bytes> payloads;
};
EncodedBatch EncodeBatch(const std::deque<Envelope>& envelopes);

// A message that has come.
struct Received {
  int partition = 0;
  // `entry` is not set: it is of the receiver's map.
  ReplicaMessage message;
  Bytes copy;                             // of kFill
  const v1::ReplicaCopy* said = nullptr;  // of kFill; points into the batch
};
struct ReceivedRun {
  std::string table;
  uint64_t generation = 0;
  std::vector<Received> messages;
};

// A batch as anyone may send it; no longer used than `batch` is. All payloads
// are Aligned (frame.h). kInvalidArgument: columns are of different lengths,
// there are more or fewer payloads than messages want, a message is of no known
// kind, or a partition of no possible number.
absl::StatusOr<std::vector<ReceivedRun>> DecodeBatch(
    const v1::ReplicaBatch& batch, absl::Span<const Bytes> payloads);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_BATCH_H_
