// Streams: a process's end of the streams between ranks of several hosts.
//
//   Streams streams(transport);                 // one for each transport
//   StreamOptions options;
//   options.streams = &streams;
//   ...
//   auto backend = ConnectStreams(options);     // stream_backend.h

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

class Mesh;

// The purpose of connections that are streams between ranks; only members of
// the job may open them.
const transport::Purpose& StreamPurpose();

// Hands what peers open to the group that they name. A stream that names none
// is refused.
//
// Thread-safety: thread-safe.
class Streams {
 public:
  // Registers StreamPurpose() at `transport`, which must outlive it and, over
  // gRPC, whose endpoint must not have started.
  explicit Streams(transport::Transport& transport);
  // Ends the streams of all groups, whose operations then fail. Waits up to 2 s
  // for peers of groups that this process has left to have what it sent them.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  transport::Transport& transport() const { return transport_; }

  // --- For Mesh. ---

  class State;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  transport::Transport& transport_;
  const std::shared_ptr<State> state_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_H_
