#include "weft/net/tls/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

absl::StatusOr<int> InMemory(const std::string& text, int version) {
  const int fd = memfd_create("weft-pem", MFD_CLOEXEC);
  // gRPC reads a pair again whose time changed while it read: so each version
  // has its own.
  const timespec time = {version, 0};
  const timespec times[2] = {time, time};
  if (fd >= 0 &&
      write(fd, text.data(), text.size()) ==
          static_cast<ssize_t>(text.size()) &&
      futimens(fd, times) == 0) {
    return fd;
  }
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("no memory file for certificates: ", strerror(errno)));
  if (fd >= 0) close(fd);
  return status;
}

std::string Text(grpc::string_ref text) {
  return std::string(text.data(), text.size());
}

constexpr size_t kMostAddresses = 4;

// The peer of a failed handshake, for the log: an address, or several if
// several shake hands. What a certificate says is a claim of somebody who has
// not proven it.
std::string PresenterOf(const TlsCustomVerificationCheckRequest& request,
                        std::vector<std::string> addresses) {
  std::vector<std::string> names;
  for (const grpc::string_ref& uri : request.uri_names())
    names.push_back(Text(uri).substr(0, 128));
  const size_t count = addresses.size();
  if (count > kMostAddresses) addresses.resize(kMostAddresses);
  return absl::StrCat(
      count == 0 ? "an unknown address" : absl::StrJoin(addresses, " or "),
      count > kMostAddresses ? " or others" : "", ", with a certificate ",
      names.empty()
          ? "without a name"
          : absl::StrCat("that claims to be of ", absl::StrJoin(names, " ")));
}

// Asks Trust about each peer. Of a server's peers it notes the refused ones.
class PeerVerifier final : public ExternalCertificateVerifier {
 public:
  PeerVerifier(std::shared_ptr<Trust> trust, bool of_server,
               RefusalLog* refusal_log,
               std::function<std::vector<std::string>()> handshaking)
      : trust_(std::move(trust)),
        of_server_(of_server),
        refusal_log_(refusal_log),
        handshaking_(std::move(handshaking)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* sync_status) override {
    const std::string certificate = Text(request->peer_cert());
    const std::string chain = Text(request->peer_cert_full_chain());
    const absl::Status believed =
        of_server_ ? trust_->CheckClient(certificate, chain)
                   : trust_->CheckServer(certificate, chain,
                                         Text(request->target_name()));
    if (!believed.ok()) {
      *sync_status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                                  std::string(believed.message()));
      if (refusal_log_ != nullptr) {
        std::vector<std::string> addresses;
        if (handshaking_) addresses = handshaking_();
        refusal_log_->Refused("certificate",
                              PresenterOf(*request, std::move(addresses)),
                              "to connect", believed.message());
      }
    }
    return true;  // done
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<Trust> trust_;
  const bool of_server_;
  RefusalLog* const refusal_log_;
  const std::function<std::vector<std::string>()> handshaking_;
};

// Changes whenever one of them is written or replaced.
std::string StateOf(const std::vector<std::string>& files) {
  std::string state;
  for (const std::string& file : files) {
    struct stat found = {};
    if (stat(file.c_str(), &found) != 0) found = {};
    absl::StrAppend(&state, found.st_ino, ":", found.st_size, ":",
                    found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec, ":",
                    found.st_ctim.tv_sec, ".", found.st_ctim.tv_nsec, " ");
  }
  return state;
}

std::string PairOf(const Credentials& credentials) {
  return absl::StrCat(credentials.certificate(), "\n", credentials.key());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PemInMemory>> PemInMemory::Create(
    const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(const int fd, InMemory(text, 1));
  return std::unique_ptr<PemInMemory>(new PemInMemory(fd));
}

PemInMemory::PemInMemory(int fd)
    : fd_(fd), path_(absl::StrCat("/proc/self/fd/", fd)) {}

PemInMemory::~PemInMemory() { close(fd_); }

absl::Status PemInMemory::Replace(const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(const int fd, InMemory(text, ++version_));
  const bool replaced = dup3(fd, fd_, O_CLOEXEC) == fd_;
  close(fd);
  return replaced
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("dup3: ", strerror(errno)));
}

Tls::Tls(Options options)
    : options_(std::move(options)),
      telemetry_(telemetry::OrSilent(options_.telemetry)) {}

absl::StatusOr<std::unique_ptr<Tls>> Tls::Create(Options options) {
  std::unique_ptr<Tls> tls(new Tls(std::move(options)));
  WEFT_RETURN_IF_ERROR(tls->Start());
  return tls;
}

absl::Status Tls::Start() {
  const Credentials& ours = options_.credentials;
  WEFT_ASSIGN_OR_RETURN(trust_, Trust::Create(ours.ca(), ours.revoked()));
  MutexLock lock(mu_);
  WEFT_ASSIGN_OR_RETURN(identity_, PemInMemory::Create(PairOf(ours)));
  WEFT_ASSIGN_OR_RETURN(authorities_, PemInMemory::Create(ours.ca()));
  const auto seconds = static_cast<unsigned>(
      std::max<int64_t>(1, absl::ToInt64Seconds(options_.check_every)));
  provider_ =
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          identity_->path(), identity_->path(), authorities_->path(), seconds);
  if (ours.files().empty()) return absl::OkStatus();
  seen_ = StateOf(ours.files());
  WEFT_ASSIGN_OR_RETURN(
      watcher_, StartThread("who watches certificates", [this] { Watch(); }));
  return absl::OkStatus();
}

Tls::~Tls() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    stopping_changed_.NotifyAll();
  }
  if (watcher_.joinable()) watcher_.join();
  provider_ = nullptr;  // before the files that it reads
}

std::shared_ptr<grpc::ServerCredentials> Tls::ForServer() const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_identity_key_cert_pairs();
  // Trust verifies, whole: gRPC gives no reason, remembers what it has
  // verified, and passes over a list that it cannot find.
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<PeerVerifier>(
          trust_, true, options_.refusal_log, options_.handshaking));
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> Tls::ForChannel() const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<PeerVerifier>(trust_, false, nullptr,
                                                        nullptr));
  return grpc::experimental::TlsCredentials(options);
}

absl::Status Tls::Renew(const Credentials& credentials) {
  const Identity& ours = *options_.credentials.identity();
  if (!credentials.secure() || !(*credentials.identity() == ours)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "they are for ",
        credentials.secure() ? credentials.identity()->Uri() : "nobody",
        ", wanted ", ours.Uri()));
  }
  // Others will look at ours as we look at theirs. (Not at whether it was taken
  // back: the others that were count all the same.)
  WEFT_ASSIGN_OR_RETURN(const auto authorities,
                        Trust::Create(credentials.ca(), ""));
  WEFT_RETURN_IF_ERROR(authorities->CheckClient(credentials.certificate(), ""));
  WEFT_RETURN_IF_ERROR(
      trust_->Replace(credentials.ca(), credentials.revoked()));
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(authorities_->Replace(credentials.ca()));
  return identity_->Replace(PairOf(credentials));
}

void Tls::Watch() {
  for (;;) {
    const auto until = std::chrono::steady_clock::now() +
                       absl::ToChronoNanoseconds(options_.check_every);
    {
      MutexLock lock(mu_);
      while (!stopping_ && stopping_changed_.WaitUntil(mu_, until)) {
      }
      if (stopping_) return;
    }
    LookAtFiles();
  }
}

void Tls::LookAtFiles() {
  const std::string state = StateOf(options_.credentials.files());
  if (state == seen_) return;
  const std::string& directory = options_.credentials.directory();
  absl::StatusOr<Credentials> found = Credentials::FromDirectory(directory);
  const absl::Status renewed = found.ok() ? Renew(*found) : found.status();
  // Written one after the other: seen in the middle of it they do not fit yet.
  if (StateOf(options_.credentials.files()) != state) return;
  if (renewed.ok()) seen_ = state;
  if (!renewed.ok() && refused_ == state) return;  // said already
  if (!renewed.ok()) refused_ = state;
  const char* metric = renewed.ok() ? "weft_net_certificate_renewals_total"
                                    : "weft_net_certificate_refusals_total";
  telemetry_.metrics().CounterFor(metric).Increment();
  if (renewed.ok()) {
    WEFT_LOG(telemetry_.logger(), Info, "uses renewed certificates")
        .With("directory", directory);
    const absl::Status own = trust_->CheckClient(found->certificate(), "");
    if (own.ok()) return;
    WEFT_LOG(telemetry_.logger(), Error,
             "the others refuse this worker's own certificate on new "
             "connections; `weft certs init --renew` makes another: ")
            .With("directory", directory)
        << own.message();
  } else {
    WEFT_LOG(telemetry_.logger(), Error,
             "renewed certificates cannot be used, the former ones stay: ")
            .With("directory", directory)
        << renewed.message();
  }
}

}  // namespace weft::net
