#include "weft/worker/table_client.h"

#include "absl/strings/str_cat.h"

namespace weft::worker {

ps::ClientOptions TableClientOptions(Worker& worker, absl::Duration timeout) {
  ps::ClientOptions options;
  options.agent = &worker.agent();
  for (int server = 0; server < worker.options().servers; ++server) {
    options.servers.push_back(absl::StrCat("ps", server));
  }
  options.client = worker.self().incarnation;
  options.rank = worker.options().rank;
  options.timeout = timeout;
  options.replicas = worker.options().replicas;
  return options;
}

}  // namespace weft::worker
