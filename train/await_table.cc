#include "weft/train/await_table.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/table_client.h"

namespace weft::train {

ps::ClientOptions TrainersClient(worker::Worker& worker,
                                 absl::Duration timeout) {
  ps::ClientOptions options = worker::TableClientOptions(worker, timeout);
  options.is_asked_to_stop = AskedToStop;
  return options;
}

absl::Status EndOfWait(const absl::Status& why, const std::string& name,
                       bool is_asked_to_stop) {
  if (!is_asked_to_stop || !absl::IsCancelled(why)) return why;
  const int signal = StopSignal();
  return worker::EndedBySignal(
      signal != 0 ? signal : SIGTERM,
      absl::StrCat(name, " was asked to stop: ", why.message()));
}

}  // namespace weft::train
