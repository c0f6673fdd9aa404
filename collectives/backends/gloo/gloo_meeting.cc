#include "weft/collectives/backends/gloo/gloo_meeting.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/await_key.h"
#include "weft/collectives/backends/gloo/sigpipe_scope.h"
#include "weft/rendezvous/boot_id.h"
#include "weft/rendezvous/meeting_keys.h"

namespace weft::collectives {
namespace {

// The time to remove keys, also where the deadline has passed.
constexpr absl::Duration kToLeave = absl::Seconds(2);

std::string KeyOf(const GlooOptions& options, absl::string_view key) {
  return absl::StrCat("gloo/", options.name, "/", key);
}

// Equal for two processes where a loopback address leads from one to the other:
// the boot of the machine, and the network namespace.
std::string HostOfThisProcess() {
  char space[64] = {};
  const ssize_t length =
      readlink("/proc/self/ns/net", space, sizeof(space) - 1);
  return absl::StrCat(rendezvous::BootId(), " ",
                      length > 0 ? space : "unknown");
}

// Weft's store as gloo wants it.
class StoreAdapter final : public ::gloo::rendezvous::Store {
 public:
  // `check` as in AwaitKey.
  StoreAdapter(rendezvous::Store& store, std::string prefix, Instant deadline,
               std::function<absl::Status()> check)
      : store_(store),
        prefix_(std::move(prefix)),
        deadline_(deadline),
        check_(std::move(check)) {}

  // All that were set and read, and the one of each rank that gloo sets and
  // some ranks alone read.
  std::vector<std::string> KeysOf(int ranks) const {
    std::set<std::string> keys = keys_;
    for (int r = 0; r < ranks; ++r) {
      keys.insert(absl::StrCat(prefix_, "rank_", r));
    }
    return {keys.begin(), keys.end()};
  }

  void set(const std::string& key, const std::vector<char>& data) override {
    keys_.insert(prefix_ + key);
    ThrowIfError(store_
                     .Set(prefix_ + key,
                          absl::string_view(data.data(), data.size()), Left())
                     .status());
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = AwaitKey(store_, prefix_ + key, deadline_, check_);
    ThrowIfError(value.status());
    keys_.insert(prefix_ + key);
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  absl::Duration Left() const {
    return std::max(deadline_ - SteadyClock().Now(), absl::Milliseconds(1));
  }
  static void ThrowIfError(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }

  rendezvous::Store& store_;
  const std::string prefix_;
  const Instant deadline_;
  const std::function<absl::Status()> check_;
  std::set<std::string> keys_;
};

}  // namespace

bool IsLoopback(absl::string_view address) {
  const std::string text(address);
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status MeetForGloo(const GlooOptions& options, Instant deadline) {
  const std::string host = HostOfThisProcess();
  const auto left = [&] {
    return std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
  };
  const auto key_of = [&](int rank) {
    return KeyOf(options, absl::StrCat("place/", rank));
  };
  WEFT_ASSIGN_OR_RETURN(const rendezvous::Store::Swap swap,
                        options.store->CompareSet(
                            key_of(options.rank), 0,
                            absl::StrCat(host, "\n", options.address), left()));
  if (!swap.applied) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank, " of group ", options.name,
        " was given already: each rank and each name is used once until all "
        "ranks have met"));
  }
  std::vector<int> missing;
  std::vector<std::string> places(options.size);
  for (int r = 0; r < options.size; ++r) {
    auto place =
        AwaitKey(*options.store, key_of(r), deadline, options.check_wait);
    if (place.ok()) {
      places[r] = *std::move(place);
    } else if (absl::IsDeadlineExceeded(place.status())) {
      missing.push_back(r);
    } else {
      options.store->Delete(key_of(options.rank), kToLeave).IgnoreError();
      return place.status();
    }
  }
  if (!missing.empty()) {
    options.store->Delete(key_of(options.rank), kToLeave).IgnoreError();
    return absl::DeadlineExceededError(absl::StrCat(
        "group ", options.name, ": ", RankList(missing), " of ", options.size,
        " did not come in ", absl::FormatDuration(options.connect_timeout)));
  }
  std::vector<std::string> keys;
  for (int r = 0; r < options.size; ++r) keys.push_back(key_of(r));
  rendezvous::LeaveMeeting(*options.store, KeyOf(options, "place"),
                           options.size, keys, kToLeave)
      .IgnoreError();
  const auto host_of = [&](int r) {
    return places[r].substr(0, places[r].find('\n'));
  };
  for (int r = 0; r < options.size; ++r) {
    const std::string address = places[r].substr(places[r].find('\n') + 1);
    for (int other = 0; other < options.size; ++other) {
      if (host_of(r) == host_of(other) || !IsLoopback(address)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", other, " cannot reach rank ", r, " at ", address,
          ", which is on another host; set GlooOptions::address to an address ",
          "of each rank's host, with insecure = true since gloo has no TLS, "
          "or ",
          "take the host backend, which has"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> MakeGlooDevice(
    const GlooOptions& options) {
  SigpipeScope sigpipe;  // for the thread that gloo starts, too
  try {
    struct ::gloo::transport::tcp::attr attr;
    attr.hostname = options.address;
    return ::gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "gloo cannot use the address ", options.address, ": ", error.what()));
  }
}

absl::StatusOr<std::shared_ptr<BreakableContext>> ConnectGlooContext(
    const GlooOptions& options, absl::string_view purpose,
    std::shared_ptr<::gloo::transport::Device> device, Instant deadline) {
  // gloo waits for a connection five times as long as its timeout says.
  const absl::Duration left = deadline - SteadyClock().Now();
  const absl::Duration timeout = std::min(left / 5, absl::Hours(1));
  SigpipeScope sigpipe;
  try {
    StoreAdapter store(*options.store,
                       KeyOf(options, absl::StrCat(purpose, "/")), deadline,
                       options.check_wait);
    auto context =
        std::make_shared<BreakableContext>(options.rank, options.size);
    context->setTimeout(std::chrono::milliseconds(
        std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout))));
    context->Connect(store, std::move(device));
    rendezvous::LeaveMeeting(*options.store, KeyOf(options, purpose),
                             options.size, store.KeysOf(options.size), kToLeave)
        .IgnoreError();
    return context;
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("group ", options.name, ": gloo cannot connect rank ",
                     options.rank, ": ", error.what()));
  }
}

}  // namespace weft::collectives
