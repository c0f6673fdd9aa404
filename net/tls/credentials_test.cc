#include "weft/net/tls/credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/address.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/identity.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using Code = absl::StatusCode;

TEST(Address, RoundTripsThroughText) {
  for (const char* text : {
           "unix:/run/weft/s",
           "127.0.0.1:0",
           "host-1.example:65535",
           "[::1]:7000",
       }) {
    WEFT_ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(text));
    EXPECT_EQ(address.ToString(), text);
  }
}

TEST(Address, RecognisesLocalAddresses) {
  EXPECT_TRUE(ParseAddress("unix:/s")->IsLocal());
  EXPECT_TRUE(ParseAddress("127.1.2.3:1")->IsLocal());
  EXPECT_TRUE(ParseAddress("[::1]:1")->IsLocal());
  EXPECT_FALSE(ParseAddress("0.0.0.0:1")->IsLocal());
}

TEST(Address, HostileTextIsRefused) {
  const std::vector<std::string> hostile = {"",
                                            ":",
                                            ":1",
                                            "host",
                                            "host:",
                                            "host:65536",
                                            "host:-1",
                                            "host:+1",
                                            "host: 1",
                                            "host:1x",
                                            "unix:",
                                            "unix:s",
                                            "unix:/" + std::string(107, 'x'),
                                            std::string("unix:/a\0b", 9),
                                            "[::1:7",
                                            "[]:1",
                                            "::1",
                                            "a b:1",
                                            "a/b:1",
                                            "h\n:1",
                                            std::string(300, 'h') + ":1",
                                            "host:99999999999999999999",
                                            "[::1]]:1",
                                            "[::1]x:1"};
  for (const std::string& text : hostile) {
    EXPECT_THAT(ParseAddress(text), StatusIs(Code::kInvalidArgument,
                                             "wanted unix:/path or host:port"))
        << text;
  }
}

TEST(Identity, RoundTripsThroughText) {
  const Identity identity{"job-7", "trainer", 12};
  EXPECT_EQ(identity.Uri(), "weft://job-7/trainer/12");
  EXPECT_EQ(identity.DnsName(), "trainer12.job-7.weft");
  WEFT_ASSERT_OK_AND_ASSIGN(const Identity read, ParseIdentity(identity.Uri()));
  EXPECT_EQ(read, identity);
}

TEST(Identity, HostileTextIsRefused) {
  for (const char* text : {"",
                           "weft://",
                           "weft://j/r",
                           "weft://j/r/",
                           "weft://j/r/1/",
                           "weft://j/r/1/2",
                           "weft://j/r/01",
                           "weft://j/r/+1",
                           "weft://j/r/-1",
                           "weft://j/r/1 ",
                           "weft://J/r/1",
                           "weft:///r/1",
                           "weft://j//1",
                           "http://j/r/1",
                           "weft://j/r2/1",
                           "weft://-j/r/1",
                           "weft://j-/r/1",
                           "weft://j/r/99999999999",
                           "weft://j/r/1000001",
                           "weft://j.k/r/1"}) {
    EXPECT_THAT(ParseIdentity(text), StatusIs(Code::kInvalidArgument)) << text;
  }
}

class CertificatesTest : public ::testing::Test {
 protected:
  CertificatesOptions Options(const std::string& job = "job") {
    CertificatesOptions options;
    options.directory = dir_.Path("certs");
    options.job = job;
    options.members = {{"", "ps", 0}, {"", "trainer", 1}};
    return options;
  }
  mode_t ModeOf(const std::string& name) {
    struct stat found = {};
    EXPECT_EQ(stat(dir_.Path("certs/" + name).c_str(), &found), 0) << name;
    return found.st_mode & 0777;
  }

  testing::TempDir dir_;
};

TEST_F(CertificatesTest, MembersLoadTheCertificatesOfInit) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  WEFT_ASSERT_OK_AND_ASSIGN(
      const Credentials trainer,
      Credentials::ForMember(dir_.Path("certs"), "trainer1"));
  EXPECT_TRUE(trainer.secure());
  EXPECT_EQ(*trainer.identity(), (Identity{"job", "trainer", 1}));
  EXPECT_EQ(ModeOf("ca-key.pem"), 0600u);
  EXPECT_EQ(ModeOf("trainer1/key.pem"), 0600u);
  // A member's own folder, as copied to its host.
  WEFT_EXPECT_OK(Credentials::ForMember(dir_.Path("certs/ps0"), "ps0"));
  EXPECT_THAT(
      Credentials::ForMember(dir_.Path("certs/ps0"), "ps1"),
      StatusIs(Code::kFailedPrecondition, "they are for ps0, wanted ps1"));
}

TEST_F(CertificatesTest, AMemberIsThereOnceAllOfItIs) {
  const CertificatesOptions options = Options();
  const Identity member = options.members[1];
  EXPECT_FALSE(HasMember(options.directory, member));
  WEFT_ASSERT_OK(MakeCertificates(options));
  EXPECT_TRUE(HasMember(options.directory, member));
  EXPECT_FALSE(HasMember(options.directory, {"", "trainer", 0}));
  const CertificateFiles files(MemberFolder(options.directory, member.Name()));
  ASSERT_EQ(unlink(files.ca.c_str()), 0);
  EXPECT_FALSE(HasMember(options.directory, member));
}

TEST_F(CertificatesTest, AnAuthorityIsKeptForLaterMembers) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  const std::string before =
      Credentials::ForMember(dir_.Path("certs"), "ps0")->ca();
  CertificatesOptions later = Options();
  later.members = {{"", "trainer", 2}};
  WEFT_ASSERT_OK(MakeCertificates(later));
  EXPECT_EQ(Credentials::ForMember(dir_.Path("certs"), "trainer2")->ca(),
            before);
  EXPECT_THAT(MakeCertificates(later),
              StatusIs(Code::kAlreadyExists, "trainer2"));
}

TEST_F(CertificatesTest, LaterMembersGetTheRevocationList) {
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CertificatesOptions options = Options();
  WEFT_ASSERT_OK(MakeCertificates(options));
  WEFT_ASSERT_OK(RevokeCertificates(options.directory, {"ps0"}));
  const std::string list = read(CertificateFiles(options.directory).revoked);
  EXPECT_FALSE(list.empty());
  options.members = {{"", "trainer", 2}};
  WEFT_ASSERT_OK(MakeCertificates(options));
  const std::string later = MemberFolder(options.directory, "trainer2");
  EXPECT_EQ(read(CertificateFiles(later).revoked), list);
}

TEST_F(CertificatesTest, MembersWithoutTheirAuthorityGetNoSecondOne) {
  CertificatesOptions options = Options();
  WEFT_ASSERT_OK(MakeCertificates(options));
  const CertificateFiles files(options.directory);
  ASSERT_EQ(unlink(files.ca.c_str()), 0);
  ASSERT_EQ(unlink(files.ca_key.c_str()), 0);
  options.members = {{"", "trainer", 2}};
  for (const absl::Status& status :
       {MakeCertificates(options),
        RevokeCertificates(options.directory, {"ps0"})}) {
    EXPECT_THAT(status.message(),
                HasSubstr("where `weft certs init` has made it"));
  }
  EXPECT_THAT(MakeCertificates(options),
              StatusIs(Code::kFailedPrecondition,
                       "has certificates of ps0, trainer1 and not the "
                       "authority that signed them"));
  EXPECT_NE(access(files.ca.c_str(), F_OK), 0);
  // Nor does a worker's error say to make one.
  EXPECT_THAT(Credentials::ForMember(options.directory, "trainer0"),
              StatusIs(Code::kFailedPrecondition,
                       "has a folder of ps0, trainer1 and none of trainer0; "
                       "copy the whole folder"));
  const std::string own = MemberFolder(options.directory, "ps0");
  ASSERT_EQ(unlink(CertificateFiles(own).ca.c_str()), 0);
  EXPECT_THAT(Credentials::ForMember(options.directory, "ps0"),
              StatusIs(Code::kFailedPrecondition,
                       "ps0/ca.pem: No such file or directory; copy the whole "
                       "folder"));
}

TEST_F(CertificatesTest, AnotherJobThanTheirsIsNamedBesideTheirs) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  WEFT_ASSERT_OK_AND_ASSIGN(const Credentials ours,
                            Credentials::ForMember(dir_.Path("certs"), "ps0"));
  WEFT_EXPECT_OK(ours.CheckJob("job"));
  WEFT_EXPECT_OK(Credentials::Insecure().CheckJob("other"));
  const absl::Status status = ours.CheckJob("other");
  EXPECT_THAT(status,
              StatusIs(Code::kFailedPrecondition,
                       "is for ps0 of job \"job\", wanted job \"other\"; give "
                       "--job=job, or --certs of job other"));
  EXPECT_TRUE(IsOfCertificates(status));
  EXPECT_FALSE(IsOfCertificates(absl::FailedPreconditionError("no")));
}

TEST_F(CertificatesTest, AnAuthorityWithoutItsKeySaysWhereToRun) {
  CertificatesOptions options = Options();
  WEFT_ASSERT_OK(MakeCertificates(options));
  ASSERT_EQ(unlink(CertificateFiles(options.directory).ca_key.c_str()), 0);
  options.members = {{"", "trainer", 2}};
  EXPECT_THAT(MakeCertificates(options),
              StatusIs(Code::kNotFound, "run this in the directory where"));
}

TEST_F(CertificatesTest, AuthorityIsValidLongerThanItsCertificates) {
  constexpr absl::Duration kDay = absl::Hours(24);
  CertificatesOptions options = Options();
  WEFT_ASSERT_OK(MakeCertificates(options));
  options.validity = 20000 * kDay;
  EXPECT_THAT(
      MakeCertificates(options),
      StatusIs(Code::kInvalidArgument,
               "wanted certificates of at most 3649 days, found 20000"));
  options.directory = dir_.Path("long");
  WEFT_ASSERT_OK(MakeCertificates(options));
  // The same command once more, for a later member.
  options.members = {{"", "trainer", 2}};
  WEFT_EXPECT_OK(MakeCertificates(options));
}

TEST_F(CertificatesTest, RevokeRefusesAnUnknownMember) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  EXPECT_THAT(RevokeCertificates(dir_.Path("certs"), {"nobody"}),
              StatusIs(Code::kNotFound,
                       "there is no certificate of nobody in " +
                           dir_.Path("certs") + "; there are: ps0, trainer1"));
}

TEST_F(CertificatesTest, AnotherJobsAuthorityIsNotUsed) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  EXPECT_THAT(MakeCertificates(Options("other")),
              StatusIs(Code::kFailedPrecondition,
                       "is of \"weft job job\", wanted job other"));
}

TEST_F(CertificatesTest, ExtraHostsAreNamesOrNumbersOnly) {
  CertificatesOptions options = Options();
  options.extra_hosts = {"10.0.0.7", "::1", "node-3.cluster"};
  WEFT_EXPECT_OK(MakeCertificates(options));
  options.directory = dir_.Path("other");
  options.extra_hosts = {"a,URI:weft://job/admin/0"};
  EXPECT_THAT(
      MakeCertificates(options),
      StatusIs(Code::kInvalidArgument, "wanted an IP number or a DNS name"));
  EXPECT_NE(access(options.directory.c_str(), F_OK), 0);  // nothing was made
}

TEST_F(CertificatesTest, AKeyThatOthersMayReadIsRefused) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  chmod(dir_.Path("certs/ps0/key.pem").c_str(), 0644);
  EXPECT_THAT(Credentials::ForMember(dir_.Path("certs"), "ps0"),
              StatusIs(Code::kFailedPrecondition, "chmod 600"));
}

TEST_F(CertificatesTest, ExpiredOnesNameTheCommand) {
  CertificatesOptions options = Options();
  options.validity = -absl::Seconds(5);
  WEFT_ASSERT_OK(MakeCertificates(options));
  EXPECT_THAT(Credentials::ForMember(dir_.Path("certs"), "ps0"),
              StatusIs(Code::kFailedPrecondition, "expired on"));
  EXPECT_THAT(Credentials::FromDirectory(dir_.Path("nowhere")),
              StatusIs(Code::kFailedPrecondition, "weft certs init --dir="));
}

TEST_F(CertificatesTest, AKeyOfAnotherCertificateIsRefused) {
  WEFT_ASSERT_OK(MakeCertificates(Options()));
  ASSERT_EQ(rename(dir_.Path("certs/trainer1/key.pem").c_str(),
                   dir_.Path("certs/ps0/key.pem").c_str()),
            0);
  EXPECT_THAT(
      Credentials::ForMember(dir_.Path("certs"), "ps0"),
      StatusIs(Code::kFailedPrecondition, "the key is of another certificate"));
}

TEST_F(CertificatesTest, CutAndBrokenPemIsRefused) {
  const absl::Time now = absl::Now();
  const Authority authority =
      *MakeAuthority("job", {now, now + absl::Hours(1)});
  const std::string pem = MakeMemberCertificate(authority, {"job", "ps", 0}, {},
                                                {now, now + absl::Hours(1)})
                              ->certificate;
  ASSERT_EQ(ReadCertificate(pem)->identity.Name(), "ps0");
  for (size_t cut = 0; cut + 2 < pem.size(); cut += 13)
    EXPECT_FALSE(ReadCertificate(pem.substr(0, cut)).ok()) << cut;
  EXPECT_THAT(ReadCertificate(authority.certificate),
              StatusIs(Code::kInvalidArgument, "names no weft://"));
}

TEST(SocketDirectory, IsOursAlone) {
  testing::TempDir dir;
  setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1);
  WEFT_ASSERT_OK_AND_ASSIGN(const std::string made,
                            DefaultSocketDirectory("my-job"));
  EXPECT_EQ(made, dir.Path("weft/my-job"));
  WEFT_EXPECT_OK(DefaultSocketDirectory("my-job"));
  chmod(made.c_str(), 0755);
  EXPECT_THAT(DefaultSocketDirectory("my-job"),
              StatusIs(Code::kFailedPrecondition, "Try: one of your own"));
  EXPECT_THAT(CheckSocketDirectory("/tmp"),
              StatusIs(Code::kFailedPrecondition, "Try: one of your own"));
  EXPECT_THAT(
      CheckSocketDirectory(dir.Path("none")),
      StatusIs(Code::kNotFound, "Try: mkdir -m 700 " + dir.Path("none")));
  // The same names as certificates have.
  for (const char* job : {"", "..", ".hidden", "a/b", "x y", "My_Job", "a-"}) {
    EXPECT_THAT(DefaultSocketDirectory(job),
                StatusIs(Code::kInvalidArgument, "wanted 1 to 63 of [a-z0-9-]"))
        << job;
    EXPECT_EQ(ValidateIdentity({job, "ps", 0}),
              DefaultSocketDirectory(job).status());
  }
  WEFT_EXPECT_OK(DefaultSocketDirectory(std::string(63, 'j')));
  EXPECT_EQ(symlink("/tmp", dir.Path("weft/link").c_str()), 0);
  EXPECT_THAT(DefaultSocketDirectory("link"),
              StatusIs(Code::kFailedPrecondition, "not a directory"));
}

}  // namespace
}  // namespace weft::net
