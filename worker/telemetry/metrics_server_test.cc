#include "weft/worker/telemetry/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

constexpr char kGet[] = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";

// A connection to a port of 127.0.0.1, whose reads give up after a minute.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
    const timeval patience = {60, 0};
    EXPECT_EQ(
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
        0);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(fd_); }

  int fd() const { return fd_; }
  // Whether the system took the bytes.
  bool Send(const std::string& bytes) {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What comes until the other end closes.
  std::string Read() {
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = read(fd_, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, n);
    }
    return answer;
  }

 private:
  const int fd_;
};

std::string Ask(int port, const std::string& request) {
  Connection connection(port);
  EXPECT_TRUE(connection.Send(request));
  return connection.Read();
}

std::unique_ptr<MetricsServer> StartOn(const std::string& listen,
                                       net::Credentials credentials) {
  MetricsServer::Options options;
  options.listen = listen;
  options.credentials = std::move(credentials);
  options.page = [] { return "weft_test_events_total 3\n"; };
  auto server = MetricsServer::Start(std::move(options));
  WEFT_EXPECT_OK(server.status());
  return *std::move(server);
}
std::unique_ptr<MetricsServer> StartPlain() {
  return StartOn("127.0.0.1:0", net::Credentials::LocalOnly());
}

TEST(MetricsServer, PageIsServedOnAFreePort) {
  const auto server = StartPlain();
  ASSERT_GT(server->port(), 0);
  EXPECT_EQ(server->address(), absl::StrCat("127.0.0.1:", server->port()));
  const std::string answer = Ask(server->port(), kGet);
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("weft_test_events_total 3\n"));
}

TEST(MetricsServer, OtherPathsAndMethodsAreRefused) {
  const auto server = StartPlain();
  EXPECT_THAT(Ask(server->port(), "GET /etc/passwd HTTP/1.0\r\n\r\n"),
              HasSubstr("404"));
  EXPECT_THAT(Ask(server->port(), "DELETE /metrics HTTP/1.0\r\n\r\n"),
              HasSubstr("405"));
  EXPECT_THAT(Ask(server->port(), "nonsense\r\n\r\n"), Not(HasSubstr("200")));
}

TEST(MetricsServer, HalfSentRequestsDelayNoOther) {
  const auto server = StartPlain();
  std::vector<std::unique_ptr<Connection>> halves;
  for (int i = 0; i < 32; ++i) {
    halves.push_back(std::make_unique<Connection>(server->port()));
    EXPECT_TRUE(halves.back()->Send(i % 2 == 0 ? "GET /met"
                                               : "GET /metrics HTTP/1.1\r\n"
                                                 "Content-Length: 1000\r\n"));
  }
  EXPECT_THAT(Ask(server->port(), kGet), HasSubstr("200 OK"));
}

// More than are open at a time: the page comes once some are cut.
TEST(MetricsServer, RequestsThatAreNeverWholeAreCut) {
  const auto server = StartPlain();
  std::vector<std::unique_ptr<Connection>> slow;
  for (int i = 0; i < 80; ++i) {
    slow.push_back(std::make_unique<Connection>(server->port()));
    EXPECT_TRUE(slow.back()->Send("GET /metrics HTTP/1.1\r\nX: "));
  }
  EXPECT_THAT(Ask(server->port(), kGet), HasSubstr("200 OK"));
}

TEST(MetricsServer, RequestThatGrowsByteByByteIsCut) {
  const auto server = StartPlain();
  Connection slow(server->port());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  ASSERT_TRUE(slow.Send("GET /metrics HTTP/1.1\r\nX: "));
  // It is cut: the system refuses what is sent into a connection that was
  // reset.
  while (slow.Send("x") && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_LT(absl::Now(), deadline) << "it was not cut";
}

TEST(MetricsServer, PortInUseIsNamed) {
  const auto first = StartPlain();
  MetricsServer::Options options;
  options.listen = first->address();
  options.page = [] { return ""; };
  EXPECT_THAT(MetricsServer::Start(std::move(options)).status(),
              StatusIs(absl::StatusCode::kUnavailable, first->address()));
}

TEST(MetricsServer, AddressThatOthersReachWantsCertificates) {
  MetricsServer::Options options;
  options.listen = "0.0.0.0:0";
  EXPECT_THAT(MetricsServer::Start(options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "make them with `weft certs init"));
  options.listen = "unix:/tmp/x";
  EXPECT_THAT(MetricsServer::Start(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "host:port"));
}

TEST(MetricsServer, InsecureJobServesItPlainly) {
  const auto server = StartOn("0.0.0.0:0", net::Credentials::Insecure());
  EXPECT_THAT(Ask(server->port(), kGet), HasSubstr("200 OK"));
}

// --- With TLS. ---------------------------------------------------------------

class MetricsServerTlsTest : public ::testing::Test {
 protected:
  MetricsServerTlsTest()
      : authority_(MakeAuthority()),
        of_server_(MemberOf(authority_, "ps")),
        server_(StartOn("0.0.0.0:0",
                        *net::Credentials::FromPem(authority_.certificate,
                                                   of_server_.certificate,
                                                   of_server_.key))) {}

  static net::Validity Today() {
    return {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24)};
  }
  static net::Authority MakeAuthority() {
    return *net::MakeAuthority("job", Today());
  }
  static net::MemberCertificate MemberOf(const net::Authority& authority,
                                         const std::string& role) {
    return *net::MakeMemberCertificate(authority, {"job", role, 0}, {},
                                       Today());
  }

  // What the page answers to a client with `member`'s certificate, if any; ""
  // if there is no answer over TLS. Checks the server's certificate.
  std::string AskAs(const net::MemberCertificate* member) {
    SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
    AddTrust(context);
    if (member != nullptr) UseCertificate(context, *member);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    Connection connection(server_->port());
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, connection.fd());
    std::string answer;
    if (SSL_connect(ssl) == 1 && SSL_write(ssl, kGet, sizeof kGet - 1) > 0) {
      char buffer[4096];
      for (int n; (n = SSL_read(ssl, buffer, sizeof buffer)) > 0;) {
        answer.append(buffer, n);
      }
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    return answer;
  }

  static X509* ReadPem(const std::string& pem) {
    BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
    X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    BIO_free(bio);
    EXPECT_NE(certificate, nullptr);
    return certificate;
  }
  void AddTrust(SSL_CTX* context) const {
    X509* const ca = ReadPem(authority_.certificate);
    EXPECT_EQ(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca), 1);
    X509_free(ca);
  }
  static void UseCertificate(SSL_CTX* context,
                             const net::MemberCertificate& member) {
    X509* const certificate = ReadPem(member.certificate);
    EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
    X509_free(certificate);
    BIO* const bio =
        BIO_new_mem_buf(member.key.data(), static_cast<int>(member.key.size()));
    EVP_PKEY* const key =
        PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
    EVP_PKEY_free(key);
    BIO_free(bio);
  }

  const net::Authority authority_;
  const net::MemberCertificate of_server_;
  const std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTlsTest, ClientOfTheJobReadsThePage) {
  const auto client = MemberOf(authority_, "client");
  const std::string answer = AskAs(&client);
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("weft_test_events_total 3\n"));
}

TEST_F(MetricsServerTlsTest, ClientWithoutCertificateIsRefused) {
  const std::string answer = AskAs(nullptr);
  EXPECT_THAT(answer, HasSubstr("403"));
  EXPECT_THAT(answer, HasSubstr("no certificate was shown"));
  EXPECT_THAT(answer, Not(HasSubstr("weft_test_events_total")));
}

TEST_F(MetricsServerTlsTest, CertificateOfAnotherAuthorityIsRefused) {
  const auto client = MemberOf(MakeAuthority(), "client");
  EXPECT_THAT(AskAs(&client), Not(HasSubstr("weft_test_events_total")));
}

TEST_F(MetricsServerTlsTest, PlainRequestIsNotAnswered) {
  EXPECT_THAT(Ask(server_->port(), kGet), Not(HasSubstr("weft_test_events")));
}

TEST_F(MetricsServerTlsTest, HandshakesThatAreNeverDoneDelayNoOther) {
  std::vector<std::unique_ptr<Connection>> halves;
  for (int i = 0; i < 80; ++i) {
    halves.push_back(std::make_unique<Connection>(server_->port()));
    EXPECT_TRUE(halves.back()->Send("\x16\x03\x01"));
  }
  const auto client = MemberOf(authority_, "client");
  EXPECT_THAT(AskAs(&client), HasSubstr("200 OK"));
}

}  // namespace
}  // namespace weft
