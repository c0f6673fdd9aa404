// MetricsServer: the page of a worker's metrics, over HTTP, for Prometheus.

#ifndef WEFT_WORKER_TELEMETRY_METRICS_SERVER_H_
#define WEFT_WORKER_TELEMETRY_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/net/tls/credentials.h"

namespace weft {

// Serves GET /metrics, on one thread. Where the address is not of this host it
// does so with TLS 1.2 or later, shows the worker's certificate, and asks the
// client for one that the job's authority has signed, in any role: without, the
// answer is 403. Renewed files of the credentials count within ten seconds.
//
// A connection whose request is not answered within 2 s is cut; 64 may be open
// at a time. So half-sent requests delay no other.
//
// Thread-safety: thread-safe.
class MetricsServer {
 public:
  struct Options {
    // host:port; port 0: any free one.
    std::string listen = "127.0.0.1:0";
    // The credentials for an address that others can reach; Insecure(): without
    // TLS.
    net::Credentials credentials = net::Credentials::LocalOnly();
    // The page, in Prometheus's text format. Called on the server's thread.
    std::function<std::string()> page;
  };

  // kInvalidArgument: no address; kFailedPrecondition: others could reach it
  // and there are no certificates; kUnavailable: the port cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(Options options);
  // Ends within a quarter of a second.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Where it listens: "127.0.0.1:9100".
  const std::string& address() const;
  // "http://127.0.0.1:9100/metrics"; https where it demands certificates.
  std::string url() const;
  int port() const;

 private:
  class Daemon;
  explicit MetricsServer(std::unique_ptr<Daemon> daemon);

  const std::unique_ptr<Daemon> daemon_;
};

}  // namespace weft

#endif  // WEFT_WORKER_TELEMETRY_METRICS_SERVER_H_
