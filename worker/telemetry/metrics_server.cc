#include "weft/worker/telemetry/metrics_server.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/net/address.h"
#include "weft/net/tls/trust.h"

namespace weft {
namespace {

constexpr int kMostConnections = 64;
// A connection has so long until its answer is sent: the library knows only how
// long nothing came, so that a byte now and then would hold it for ever.
constexpr absl::Duration kPatience = absl::Seconds(2);
// How often old connections, and the end, are looked for.
constexpr int kLookEveryMs = 250;
constexpr absl::Duration kCertificateCheck = absl::Seconds(10);

constexpr char kTlsPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status CannotListen(const net::Address& address, const char* why) {
  return absl::UnavailableError(
      absl::StrCat("metrics: cannot listen on ", address.ToString(), ": ", why,
                   "; choose another --metrics-listen (or --metrics-port), or "
                   "none"));
}

// Listens; sets address.port to the real one.
absl::StatusOr<int> Listen(net::Address& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found,
                                                                freeaddrinfo);
  Descriptor fd(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (fd.get() < 0 ||
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(fd.get(), kMostConnections) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return CannotListen(address, strerror(errno));
  }
  address.port = ntohs(bound.ss_family == AF_INET6
                           ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return fd.Release();
}

// PEM of a certificate that a client has sent; "" of none.
std::string PemOf(const gnutls_datum_t* der) {
  if (der == nullptr) return "";
  gnutls_datum_t pem = {};
  if (gnutls_pem_base64_encode2("CERTIFICATE", der, &pem) != 0) return "";
  std::string text(reinterpret_cast<const char*>(pem.data), pem.size);
  gnutls_free(pem.data);
  return text;
}

}  // namespace

class MetricsServer::Daemon {
 public:
  Daemon(Options options, net::Address address, int listener)
      : options_(std::move(options)),
        address_text_(address.ToString()),
        port_(address.port),
        has_tls_(!address.IsLocal() && options_.credentials.secure()),
        listener_(listener) {}

  ~Daemon() {
    ends_.store(true);
    if (thread_.joinable()) thread_.join();
    Stop();
  }

  const std::string& address() const { return address_text_; }
  int port() const { return port_; }
  bool has_tls() const { return has_tls_; }

  absl::Status Start() {
    if (has_tls_) {
      WEFT_ASSIGN_OR_RETURN(trust_,
                            net::Trust::Create(options_.credentials.ca(),
                                               options_.credentials.revoked()));
    }
    WEFT_RETURN_IF_ERROR(Open());
    WEFT_ASSIGN_OR_RETURN(thread_,
                          StartThread("the metrics page", [this] { Run(); }));
    return absl::OkStatus();
  }

 private:
  // Serves with what options_.credentials are now.
  absl::Status Open() {
    Stop();
    const int listener = dup(listener_.get());  // its end closes it
    constexpr unsigned kFlags = MHD_USE_EPOLL;
    if (has_tls_) {
      daemon_ = MHD_start_daemon(
          kFlags | MHD_USE_TLS, 0, nullptr, nullptr, &Answer, this,
          MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
          kMostConnections, MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this,
          MHD_OPTION_HTTPS_PRIORITIES, kTlsPriorities, MHD_OPTION_HTTPS_MEM_KEY,
          options_.credentials.key().c_str(), MHD_OPTION_HTTPS_MEM_CERT,
          options_.credentials.certificate().c_str(),
          MHD_OPTION_HTTPS_MEM_TRUST, options_.credentials.ca().c_str(),
          MHD_OPTION_END);
    } else {
      daemon_ = MHD_start_daemon(
          kFlags, 0, nullptr, nullptr, &Answer, this, MHD_OPTION_LISTEN_SOCKET,
          listener, MHD_OPTION_CONNECTION_LIMIT, kMostConnections,
          MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this, MHD_OPTION_END);
    }
    if (daemon_ != nullptr) return absl::OkStatus();
    close(listener);
    return absl::UnavailableError(absl::StrCat(
        "metrics: the HTTP server of ", address_text_, " cannot be started"));
  }

  void Stop() {
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
    daemon_ = nullptr;
  }

  void Run() {
    Instant check_at = SteadyClock().Now() + kCertificateCheck;
    while (!ends_.load()) {
      MHD_run_wait(daemon_, kLookEveryMs);
      const Instant now = SteadyClock().Now();
      for (auto& [fd, cut_at] : cut_at_) {
        if (now < cut_at) continue;
        shutdown(fd, SHUT_RDWR);
        cut_at = Instant::Infinite();
      }
      if (has_tls_ && now >= check_at) {
        check_at = now + kCertificateCheck;
        Renew();
      }
    }
  }

  // What cannot be read now may be half written: the former stays.
  void Renew() {
    const std::string& directory = options_.credentials.directory();
    if (directory.empty()) return;
    auto found = net::Credentials::FromDirectory(directory);
    if (!found.ok()) return;
    const net::Credentials& now = options_.credentials;
    const bool is_same = found->certificate() == now.certificate() &&
                         found->key() == now.key() && found->ca() == now.ca();
    if (is_same && found->revoked() == now.revoked()) return;
    if (!trust_->Replace(found->ca(), found->revoked()).ok()) return;
    net::Credentials former =
        std::exchange(options_.credentials, *std::move(found));
    if (is_same || Open().ok()) return;
    options_.credentials = std::move(former);
    Open().IgnoreError();
  }

  static void OnConnection(void* self, MHD_Connection* connection, void**,
                           MHD_ConnectionNotificationCode code) {
    auto& cut_at = static_cast<Daemon*>(self)->cut_at_;
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      cut_at[info->connect_fd] = SteadyClock().Now() + kPatience;
    } else {
      cut_at.erase(info->connect_fd);
    }
  }

  // Why the client may not see the page, or OK.
  absl::Status CheckClient(MHD_Connection* connection) const {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned count = 0;
    const gnutls_datum_t* sent =
        info == nullptr
            ? nullptr
            : gnutls_certificate_get_peers(
                  static_cast<gnutls_session_t>(info->tls_session), &count);
    if (sent == nullptr || count == 0) {
      return absl::UnauthenticatedError("no certificate was shown");
    }
    std::string chain;
    for (unsigned i = 1; i < count; ++i) chain += PemOf(&sent[i]);
    return trust_->CheckClient(PemOf(&sent[0]), chain);
  }

  static MHD_Result Answer(void* self, MHD_Connection* connection,
                           const char* url, const char* method, const char*,
                           const char*, size_t*, void**) {
    const Daemon& daemon = *static_cast<const Daemon*>(self);
    const absl::Status allowed =
        daemon.has_tls_ ? daemon.CheckClient(connection) : absl::OkStatus();
    if (!allowed.ok()) {
      return Reply(connection, MHD_HTTP_FORBIDDEN,
                   absl::StrCat("wanted a certificate of this job's authority "
                                "(`weft certs init --clients=1`): ",
                                allowed.message(), "\n"));
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
        strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
      return Reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "wanted GET\n");
    }
    if (strcmp(url, "/metrics") != 0) {
      return Reply(connection, MHD_HTTP_NOT_FOUND, "wanted /metrics\n");
    }
    return Reply(connection, MHD_HTTP_OK, daemon.options_.page());
  }

  static MHD_Result Reply(MHD_Connection* connection, unsigned code,
                          const std::string& text) {
    MHD_Response* response = MHD_create_response_from_buffer(
        text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/plain; version=0.0.4; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    const MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
  }

  // The thread's, once it runs.
  Options options_;
  const std::string address_text_;
  const int port_;
  const bool has_tls_;
  const Descriptor listener_;
  std::shared_ptr<net::Trust> trust_;  // with TLS
  MHD_Daemon* daemon_ = nullptr;
  std::map<int, Instant> cut_at_;  // of each connection

  std::atomic<bool> ends_{false};
  std::thread thread_;
};

MetricsServer::MetricsServer(std::unique_ptr<Daemon> daemon)
    : daemon_(std::move(daemon)) {}
MetricsServer::~MetricsServer() = default;

const std::string& MetricsServer::address() const { return daemon_->address(); }
std::string MetricsServer::url() const {
  return absl::StrCat(daemon_->has_tls() ? "https://" : "http://", address(),
                      "/metrics");
}
int MetricsServer::port() const { return daemon_->port(); }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    Options options) {
  WEFT_ASSIGN_OR_RETURN(net::Address address,
                        net::ParseAddress(options.listen));
  if (address.kind != net::Address::Kind::kTcp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metrics: wanted host:port to listen on, found ", options.listen));
  }
  if (!address.IsLocal() && !options.credentials.secure() &&
      !options.credentials.insecure()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "metrics: others can reach ", options.listen,
        ", so that the page is served there with certificates alone: ",
        net::kHowToGetCertificates, "; or listen on 127.0.0.1:", address.port));
  }
  WEFT_ASSIGN_OR_RETURN(const int listener, Listen(address));
  auto daemon = std::make_unique<Daemon>(std::move(options), std::move(address),
                                         listener);
  WEFT_RETURN_IF_ERROR(daemon->Start());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(daemon)));
}

}  // namespace weft
