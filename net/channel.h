// Channel: the calling end towards one endpoint. It connects when first used
// and again when the connection was lost.

#ifndef WEFT_NET_CHANNEL_H_
#define WEFT_NET_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/net/loop/loop.h"
#include "weft/net/stream.h"
#include "weft/net/tls/identity.h"

namespace weft::net {

struct ChannelOptions {
  // The endpoint's name (ps0). It routes the call where several endpoints share
  // an address; over TLS the peer's certificate must be for it.
  std::string name;
  // Calls to a peer that cannot be reached wait for it, within their time-out,
  // instead of failing at once.
  bool wait_for_ready = false;
  // The longest pause between two attempts to connect.
  absl::Duration max_reconnect_pause = absl::Seconds(1);
};

// Thread-safety: thread-safe. A destroyed Channel ends its open calls with
// kCancelled; the Futures stay valid.
class Channel {
 public:
  // Does not connect yet. kInvalidArgument for an address that cannot be read;
  // kFailedPrecondition for TCP without certificates.
  static absl::StatusOr<std::unique_ptr<Channel>> Create(
      Loop& loop, absl::string_view address, ChannelOptions options = {});
  // For net itself.
  static absl::StatusOr<std::unique_ptr<Channel>> Create(
      Loop::Core& core, absl::string_view address, ChannelOptions options);
  ~Channel();

  // One request, one reply. kDeadlineExceeded names method and address;
  // kUnavailable names the address and what went wrong there, kUnauthenticated
  // too if it has a certificate of another authority or name; else the
  // handler's own status. Future::Cancel tells the peer.
  Future<Slices> UnaryCall(absl::string_view method, Slices request,
                           absl::Duration timeout,
                           const Metadata& metadata = {});

  // Opens a stream; messages may be written at once. The observer learns of a
  // failure by OnClosed, which never runs before this returns on the same
  // thread, unless the Loop was shut down before.
  std::unique_ptr<Stream> OpenStream(absl::string_view method,
                                     std::shared_ptr<StreamObserver> observer,
                                     const Metadata& metadata = {});

  const std::string& address() const;

  struct State;

 private:
  explicit Channel(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace weft::net

#endif  // WEFT_NET_CHANNEL_H_
