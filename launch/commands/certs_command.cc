// weft certs: makes the certificates of a job, and takes them back.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/net/tls/certificates.h"
#include "weft/rendezvous/world.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::launch {
namespace {

void AddMembers(const std::string& job, const std::string& role, int count,
                std::vector<net::Identity>& members) {
  for (int rank = 0; rank < count; ++rank) members.push_back({job, role, rank});
}

absl::StatusOr<int> Revoke(int argc, char** argv) {
  std::string directory = "certs";
  std::vector<std::string> members;
  worker::Flags flags(
      "weft certs revoke",
      "Takes back certificates made by `weft certs init`, and leaves the list "
      "as crl.pem in --dir and in each\nmember's folder. Copy it to the hosts: "
      "workers that run look for it every 10 s.\n");
  flags.Add("dir", &directory, "where");
  flags.AddRepeated(
      "name",
      [&](const std::string& name) {
        members.push_back(name);
        return absl::OkStatus();
      },
      "whose: trainer1, any number of times");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc - 1, argv + 1));
  if (members.empty()) {
    return worker::WithExitCode(
        absl::InvalidArgumentError("weft certs revoke: wanted --name=NAME"),
        worker::ExitCode::kUsage);
  }
  WEFT_RETURN_IF_ERROR(net::RevokeCertificates(directory, members));
  std::printf("%s/crl.pem: copy it into the folder that each worker uses\n",
              directory.c_str());
  return 0;
}

// Roles that have a flag of their own.
constexpr std::pair<absl::string_view, absl::string_view> kFlagOf[] = {
    {"ps", "servers"},
    {"trainer", "trainers"},
    {"admin", "admins"},
    {"client", "clients"},
    {worker::kCoordinatorRole, "coordinators"},
    {"etcd", "etcds"}};

// Any other role and how many: "reader" or "reader=2".
absl::Status AddRole(absl::string_view text,
                     std::vector<std::pair<std::string, int>>& roles) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const absl::string_view role = parts[0];
  int count = 1;
  if (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &count)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted NAME or NAME=COUNT, found the count '", parts[1], "'"));
  }
  if (count < 1 || count > rendezvous::kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted 1 to ", rendezvous::kMaxWorkers, " of a role, found ", count));
  }
  for (const auto& [other, flag] : kFlagOf) {
    if (role != other) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("role ", role, " has a flag of its own: --", flag));
  }
  for (const auto& [other, number] : roles) {
    if (role != other) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "role ", role, " twice; say once how many: ", role, "=COUNT"));
  }
  // The rest of a name is checked with the job's.
  roles.emplace_back(role, count);
  return absl::OkStatus();
}

constexpr int kMostDays = 36500;  // a date holds years of four digits

absl::Status CheckRange(absl::string_view flag, int found, int least,
                        int most) {
  if (found >= least && found <= most) return absl::OkStatus();
  return worker::WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                                  "weft certs init: --", flag, ": wanted ",
                                  least, " to ", most, ", found ", found)),
                              worker::ExitCode::kUsage);
}

// Leaves out the members that have a certificate; one whose files are there in
// part is an error when it is made.
void LeaveOutThoseThere(net::CertificatesOptions& options) {
  auto& members = options.members;
  const auto is_there = [&](const net::Identity& member) {
    return net::HasMember(options.directory, member);
  };
  members.erase(std::remove_if(members.begin(), members.end(), is_there),
                members.end());
}

absl::StatusOr<int> Init(int argc, char** argv) {
  net::CertificatesOptions options;
  options.directory = "certs";
  options.job = "weft";
  int servers = 1;
  int trainers = 1;
  int admins = 1;
  int clients = 0;
  int etcds = 0;
  int coordinators = 1;
  int days = 30;
  std::vector<std::pair<std::string, int>> roles;
  worker::Flags flags(
      "weft certs init",
      "Makes the authority of a job and a certificate for each worker below "
      "--dir. Members that are there stay.\nCopy each member's folder to its "
      "host; keep ca-key.pem off the workers.\n");
  flags.Add("dir", &options.directory, "where");
  flags.Add("job", &options.job, "the job's name", {"WEFT_JOB"});
  flags.Add("servers", &servers, "for ps0, ps1, ...", {"WEFT_SERVERS"});
  flags.Add("trainers", &trainers, "for trainer0, trainer1, ...",
            {"WEFT_TRAINERS"});
  flags.Add("admins", &admins, "for admin0, ...: `weft status` and the like");
  flags.Add("clients", &clients,
            "for client0, ...: programs that are no workers");
  flags.Add("coordinators", &coordinators,
            "for coordinator0: the process that `weft run` starts, or `weft "
            "coordinator`");
  flags.Add("etcds", &etcds, "for etcd0: the server that --init=etcd:// names");
  flags.AddRepeated(
      "role", [&](const std::string& text) { return AddRole(text, roles); },
      "of your own, such as one that --table-access of the servers names: "
      "reader for reader0, reader=2 for reader0 and reader1; any number of "
      "times");
  flags.Add("renew", &options.renew,
            "new ones in place of those that are there; workers that run use "
            "them within seconds");
  flags.Add("days", &days, "for how long they are good");
  flags.AddRepeated(
      "host",
      [&](const std::string& host) {
        options.extra_hosts.push_back(host);
        return absl::OkStatus();
      },
      "a name or number of a host that serves, any number of times");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc - 1, argv + 1));
  WEFT_RETURN_IF_ERROR(CheckRange("days", days, 1, kMostDays));
  for (const auto& [flag, count] :
       {std::pair("servers", servers), std::pair("trainers", trainers),
        std::pair("admins", admins), std::pair("clients", clients),
        std::pair("coordinators", coordinators), std::pair("etcds", etcds)}) {
    WEFT_RETURN_IF_ERROR(CheckRange(flag, count, 0, rendezvous::kMaxWorkers));
  }
  AddMembers(options.job, "ps", servers, options.members);
  AddMembers(options.job, "trainer", trainers, options.members);
  AddMembers(options.job, "admin", admins, options.members);
  AddMembers(options.job, "client", clients, options.members);
  AddMembers(options.job, worker::kCoordinatorRole, coordinators,
             options.members);
  AddMembers(options.job, "etcd", etcds, options.members);
  for (const auto& [role, count] : roles) {
    AddMembers(options.job, role, count, options.members);
  }
  const size_t all = options.members.size();
  if (!options.renew) LeaveOutThoseThere(options);
  options.validity = absl::Hours(24) * days;
  if (const absl::Status made = net::MakeCertificates(options); !made.ok()) {
    // A name of a job or a host that cannot be, or too many days.
    return absl::IsInvalidArgument(made)
               ? worker::WithExitCode(made, worker::ExitCode::kUsage)
               : made;
  }
  const size_t made = options.members.size();
  std::string what = absl::StrCat("certificates of job ", options.job, " for ",
                                  made, " members, good for ", days, " days");
  if (made == 0) {
    what = absl::StrCat("all ", all, " members of job ", options.job,
                        " were there and stay as they are; --renew makes them "
                        "new certificates");
  } else if (made < all) {
    absl::StrAppend(&what, "; ", all - made, " were there");
  }
  std::printf("%s: %s\nuse them with --certs=%s --job=%s\n",
              options.directory.c_str(), what.c_str(),
              options.directory.c_str(), options.job.c_str());
  return 0;
}

}  // namespace

absl::StatusOr<int> CertsCommand(int argc, char** argv) {
  const std::string verb = argc < 2 ? "" : argv[1];
  if (verb == "revoke") return Revoke(argc, argv);
  if (verb == "init") return Init(argc, argv);
  if (verb == "--help" || verb == "-h") {
    std::puts(
        "weft certs init ... makes the certificates of a job, weft certs "
        "revoke ... takes one back; each has --help");
    return 0;
  }
  return worker::WithExitCode(
      absl::InvalidArgumentError(
          "weft certs: wanted `weft certs init` or `weft certs revoke`"),
      worker::ExitCode::kUsage);
}

}  // namespace weft::launch
