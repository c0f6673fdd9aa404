// FileStore: a Store in a file that all ranks can open, where nobody hosts a
// coordinator: processes of one host, or of hosts with a common file system
// whose locks work (flock).

#ifndef WEFT_RENDEZVOUS_FILE_STORE_H_
#define WEFT_RENDEZVOUS_FILE_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

struct FileStoreOptions {
  // Made by whoever comes first, for its user alone; removed by nobody.
  std::string path;
  // Names one run of the job: a file that another run has left is refused.
  std::string session;
};

// A log of changes. Each operation locks the file, reads what is new, and
// appends its change; the part that a killed process has written of one is cut
// off by the next. Wait looks again after 1 ms, 2 ms, ... 50 ms.
//
// kInvalidArgument: no path or session; kFailedPrecondition: the file is of
// another session, or no store; kPermissionDenied, kUnavailable: it cannot be
// opened. Operations are kUnavailable where the file cannot be written, and
// kDataLoss where it cannot be read any more.
absl::StatusOr<std::unique_ptr<Store>> OpenFileStore(FileStoreOptions options);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_FILE_STORE_H_
