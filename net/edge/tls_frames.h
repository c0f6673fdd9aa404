// TlsFrames: what gRPC's TLS reads and writes on one connection, for the frame
// guard.
//
// gRPC has no hook between TLS and HTTP/2, and owns its SSL objects. But it
// calls OpenSSL through the dynamic linker, for which a definition in the
// program comes before that in libssl: tls_frames.cc defines SSL_read,
// SSL_write and SSL_set_bio by other functions of libssl (SSL_read_ex and so
// on). Of a connection that is watched, its guard gets the plain bytes, and
// learns of the records that are TLS's own; for all other SSL objects they do
// what libssl's do. See docs/decisions/0014-frame-guard.md.

#ifndef WEFT_NET_EDGE_TLS_FRAMES_H_
#define WEFT_NET_EDGE_TLS_FRAMES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/frame_guard.h"

namespace weft::net {

// Thread-safety: as the SSL object that it belongs to, which is used by one
// thread at a time.
class TlsFrames {
 public:
  // A flood was found; the connection ends by itself, as if its TLS were
  // broken. `who`: its peer_name().
  // Runs on a thread of gRPC's, which may hold locks of gRPC.
  using OnFlood =
      std::function<void(const std::string& who, const std::string& why)>;

  TlsFrames(FrameGuard::Options options, OnFlood on_flood);

  // For the hooks. `ssl` is an SSL; `bytes` may be none; false if the
  // connection is to end.
  bool OnRead(const void* ssl, absl::string_view bytes);
  // The proven name in the peer's certificate (trainer1); empty before the
  // first bytes after the handshake. Thread-safety: thread-safe.
  std::string peer_name() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnTlsRecord() { guard_.OnTlsRecord(); }
  void OnWritten(absl::string_view bytes) { guard_.OnSent(bytes); }

 private:
  FrameGuard guard_;
  const OnFlood on_flood_;
  bool is_cut_ = false;
  bool is_named_ = false;
  mutable Mutex mu_;
  std::string peer_name_ ABSL_GUARDED_BY(mu_);
};

// While it lives, the server's end of TLS that is made on this thread, if any,
// is watched by `frames`: gRPC makes it before HandleNewConnection returns.
// Thread-safety: of one thread; not nested.
class WatchNewTls {
 public:
  explicit WatchNewTls(std::shared_ptr<TlsFrames> frames);
  ~WatchNewTls();
  WatchNewTls(const WatchNewTls&) = delete;
  WatchNewTls& operator=(const WatchNewTls&) = delete;

  // Whether one was made.
  bool is_watched() const { return frames_ == nullptr; }

  // For the hooks: what watches the server's end that is made now, or null.
  static std::shared_ptr<TlsFrames> Take();

 private:
  std::shared_ptr<TlsFrames> frames_;
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_TLS_FRAMES_H_
