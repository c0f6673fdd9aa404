// ServerList: what each server of a job with two replicas has, as a map says.
//
// Pure. Thread-safety: values.

#ifndef WEFT_PS_SERVER_LIST_H_
#define WEFT_PS_SERVER_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

struct ServerList {
  struct Server {
    rendezvous::WorkerKey key;
    std::string state;  // "live", "silent", "gone"
    bool is_drained = false;
    // The numbers of entries (groups of partitions) of which it is the primary,
    // the backup, or a copy that does not have all yet.
    int primaries = 0;
    int backups = 0;
    int filling = 0;

    // Whether it can be stopped without any change for the others.
    bool has_nothing() const { return primaries + backups + filling == 0; }
  };
  // The servers that have the copies of an entry.
  struct Entry {
    rendezvous::WorkerKey primary;
    rendezvous::WorkerKey backup;
  };
  uint64_t epoch = 0;  // of the map
  int entries = 0;
  int lost = 0;                 // of how many all copies are lost
  int single = 0;               // how many others have one copy
  std::vector<Server> servers;  // by key.id
  std::vector<Entry> placed;    // of each entry

  // Null: there is none.
  const Server* Find(uint32_t id) const;

  // Reads what GetMap returned. kInvalidArgument: that is no map.
  static absl::StatusOr<ServerList> Of(absl::string_view encoded_map);
};

}  // namespace weft::ps

#endif  // WEFT_PS_SERVER_LIST_H_
