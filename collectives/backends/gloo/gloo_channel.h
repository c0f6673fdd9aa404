// GlooChannel: the messages of a Mesh between this rank and one other, over
// gloo's sockets.

#ifndef WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_CHANNEL_H_
#define WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_CHANNEL_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "weft/collectives/backends/stream/mesh.h"

namespace weft::collectives {

// Thread-safety: Start and the destructor, one thread; it has two of its own,
// one that writes and one that reads, since gloo has no wait for either of two.
class GlooChannel {
 public:
  // `context` has a connected pair to rank `peer`. `on_lost` is called, on one
  // of its threads, if the peer ends without having left.
  GlooChannel(std::shared_ptr<::gloo::Context> context, int peer,
              std::shared_ptr<Mesh> mesh, std::function<void()> on_lost);
  // Ends both threads. What has not been written is not sent.
  ~GlooChannel();
  GlooChannel(const GlooChannel&) = delete;
  GlooChannel& operator=(const GlooChannel&) = delete;

  // Hands the mesh its connection. kResourceExhausted: no thread.
  absl::Status Start();

 private:
  class Outbox;
  class Connection;

  void RunWriter();
  void RunReader();
  // Takes what has been read. False: the mesh wants no more.
  bool TakeMessage();
  void OnLost(const absl::Status& why);

  const std::shared_ptr<::gloo::Context> context_;
  const int peer_;
  const std::shared_ptr<Mesh> mesh_;
  const std::function<void()> on_lost_;
  // What one message is written from, and read into.
  std::vector<char> outgoing_cell_;
  std::vector<char> incoming_cell_;
  const std::unique_ptr<::gloo::transport::UnboundBuffer> outgoing_;
  const std::unique_ptr<::gloo::transport::UnboundBuffer> incoming_;
  const std::shared_ptr<Outbox> outbox_;
  std::thread writer_;
  std::thread reader_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_CHANNEL_H_
