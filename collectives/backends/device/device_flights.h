// DeviceFlights: operations that were given to a communicator and have not
// ended: a thread looks at their events, and ends them in their order.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_FLIGHTS_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_FLIGHTS_H_

#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/device/device_passage.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// One operation. Until it has ended nothing that its kernels use is given back.
struct DeviceFlight {
  const Operation* operation = nullptr;
  Backend::Done done;
  // How it has ended, where it left nothing on the stream.
  absl::optional<absl::Status> ended;
  // Why it is to fail once the stream is done with it.
  absl::Status failure;
  device::Event event = {};  // after it
  DeviceScratch scratch = {};
  std::unique_ptr<DevicePassage> passage = nullptr;
};

// Thread-safety: thread-safe.
class DeviceFlights {
 public:
  // `host`, which it aborts when one fails, and `communicator`, which it then
  // aborts, must outlive it.
  // `title`: what runs them, in messages; a constant. `longest_end`: how long
  // the stream may take to end after its communicator was aborted.
  DeviceFlights(Backend& host, DeviceCommunicator& communicator,
                device::Stream stream, absl::string_view title,
                absl::Duration longest_end)
      : host_(host),
        communicator_(communicator),
        stream_(stream),
        title_(title),
        longest_end_(longest_end) {}
  // Waits for their ends.
  ~DeviceFlights();

  // kResourceExhausted: no thread.
  absl::Status Start();
  void Add(DeviceFlight flight) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // How it has ended; none: it goes on.
  absl::optional<absl::Status> Look(DeviceFlight& flight)
      ABSL_LOCKS_EXCLUDED(mu_);
  // OK, or why all that go on are to end.
  absl::Status CheckAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckDeadlines() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all for `why`.
  void Break(const absl::Status& why);

  Backend& host_;
  DeviceCommunicator& communicator_;
  const device::Stream stream_;
  const absl::string_view title_;
  const absl::Duration longest_end_;
  // --- Of the thread alone. ---
  absl::Status broken_;  // why the communicator was aborted
  Instant given_up_at_;  // when what still runs is left to the device
  Instant check_ranks_at_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<DeviceFlight> flights_ ABSL_GUARDED_BY(mu_);  // oldest first
  std::thread thread_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_FLIGHTS_H_
