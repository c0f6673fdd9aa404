// Tls: what a Loop shows to its peers and how it judges theirs, renewed while
// it runs.
//
// The files of Credentials::FromDirectory are looked at every `check_every`.
// What has changed counts for new connections; open ones live on. Files that
// cannot be used change nothing: it says so, and looks again.

#ifndef WEFT_NET_TLS_TLS_H_
#define WEFT_NET_TLS_TLS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/net/refusal_log.h"
#include "weft/net/tls/credentials.h"
#include "weft/net/tls/trust.h"
#include "weft/telemetry/telemetry.h"

namespace weft::net {

// PEM text as a path that gRPC's file watcher reads: in memory, so that no key
// is copied to a disk, and replaced as a whole.
//
// Thread-safety: one thread at a time; the path may be read at any.
class PemInMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PemInMemory>> Create(
      const std::string& text);
  ~PemInMemory();

  const std::string& path() const { return path_; }
  absl::Status Replace(const std::string& text);

 private:
  explicit PemInMemory(int fd);

  const int fd_;
  const std::string path_;
  int version_ = 1;
};

// Thread-safety: thread-safe.
class Tls {
 public:
  struct Options {
    Credentials credentials = Credentials::LocalOnly();  // REQUIRES: secure()
    absl::Duration check_every = absl::Seconds(10);
    telemetry::Telemetry* telemetry = nullptr;
    RefusalLog* refusal_log = nullptr;  // both must outlive it
    // The addresses of the clients that shake hands, for the log; null: nobody
    // knows them. gRPC does not say of which connection a certificate is.
    std::function<std::vector<std::string>()> handshaking = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<Tls>> Create(Options options);
  ~Tls();

  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;

  // Uses `credentials` for new connections: at once to judge peers, within a
  // second or `check_every` to show itself. On an error nothing has changed,
  // but for the last:
  //   kInvalidArgument  they are of somebody else, or cannot be read
  //   kUnauthenticated  their own authority did not sign them
  //   kInternal         no memory for them
  absl::Status Renew(const Credentials& credentials) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit Tls(Options options);

  absl::Status Start();
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  void LookAtFiles();

  const Options options_;
  telemetry::Telemetry& telemetry_;
  std::shared_ptr<Trust> trust_;
  std::unique_ptr<PemInMemory> identity_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<PemInMemory> authorities_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  // The watching thread keeps the files that are in use, and those that cannot
  // be.
  std::string seen_;
  std::string refused_;

  Mutex mu_;
  CondVar stopping_changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TLS_TLS_H_
