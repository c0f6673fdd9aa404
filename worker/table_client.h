// TableClientOptions: how a worker reaches the tables of its job.
//
//   ps::Client client(worker::TableClientOptions(*worker, absl::Minutes(2)));

#ifndef WEFT_WORKER_TABLE_CLIENT_H_
#define WEFT_WORKER_TABLE_CLIENT_H_

#include "absl/time/time.h"
#include "weft/ps/client.h"
#include "weft/worker/worker.h"

namespace weft::worker {

// Options of a ps::Client that reaches all servers of the worker's job, as its
// rank, with the job's replicas. `timeout` is that of each operation. A second
// client of the same worker sets another ClientOptions::client. `worker` must
// outlive the client.
ps::ClientOptions TableClientOptions(Worker& worker, absl::Duration timeout);

}  // namespace weft::worker

#endif  // WEFT_WORKER_TABLE_CLIENT_H_
