#include "weft/ps/client.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/ps/pinned_servers.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/replicated/table_client.h"
#include "weft/ps/servers_by_map.h"
#include "weft/ps/shard/table_snapshot.h"
#include "weft/ps/table_client.h"
#include "weft/ps/waits/server_waits.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {
namespace {

using internal::TableClient;

// Shards of a checkpoint are numbered; each server has a range of its own.
constexpr int kShardsOfServer = kMostFilesOfServer;

constexpr absl::Duration kServingPause = absl::Milliseconds(20);

// Whether a server takes and sends values as `spec` has them.
absl::Status CheckWire(const v1::TableSpec& spec,
                       const v1::TableStats& server) {
  const v1::WireValues& wanted = spec.wire();
  const v1::WireValues& found = server.wire();
  if (wanted.push() == found.push() && wanted.pull() == found.pull()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", spec.name(), "': wanted pushes in ", WireName(wanted.push()),
      " and pulls in ", WireName(wanted.pull()), ", found a server that has ",
      WireName(found.push()), " and ", WireName(found.pull()),
      " of it, as one of an older build does; start servers of this build, or "
      "leave TableSpec.wire out"));
}

}  // namespace

Client::~Client() = default;

Client::Client(ClientOptions options) : options_(std::move(options)) {
  WEFT_CHECK(options_.agent != nullptr);
  WEFT_CHECK(!options_.servers.empty());
  WEFT_CHECK(options_.replicas == 1 || options_.replicas == 2);
  if (options_.replicas == 2) {
    by_map_ = std::make_unique<ServersByMap>(
        ServersByMap::Options{options_.agent, options_.servers,
                              options_.timeout, options_.is_asked_to_stop});
  }
}

namespace {

// Whether `late` may be of the worker that `other` is of: it is, or it names
// none.
bool MayBeOfOneServer(const absl::Status& late, const absl::Status& other) {
  const std::vector<rpc::Failure> of_late = rpc::FailuresOf(late);
  const std::vector<rpc::Failure> of_other = rpc::FailuresOf(other);
  return of_late.empty() || of_other.empty() ||
         of_late.front().worker == of_other.front().worker;
}

}  // namespace

std::shared_ptr<PinnedServers> Client::Pin() const {
  std::vector<rpc::Target> servers;
  for (const std::string& server : options_.servers) {
    servers.push_back(options_.agent->To(server, options_.timeout));
  }
  return std::make_shared<PinnedServers>(servers);
}

template <typename T>
Result<T> Client::OnEach(
    std::shared_ptr<PinnedServers>& servers,
    absl::FunctionRef<Future<T>(const std::vector<rpc::Target>&)> call) {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  absl::Status not_serving;
  for (;;) {
    const absl::Duration left =
        std::max(give_up - SteadyClock().Now(), absl::ZeroDuration());
    const auto pinned = servers != nullptr ? servers : Pin();
    WEFT_RETURN_IF_ERROR(pinned->status());
    Result<T> result =
        call(pinned->WithTimeout(left)).Wait(left + absl::Seconds(1));
    const absl::Status status = weft::internal::StatusOf(result);
    if (status.ok()) {
      servers = pinned;
      return result;
    }
    // If a server did not serve yet, that is the reason to return. It also
    // replaces a deadline that passed in a later try of that server, or in a
    // try that had hardly any time left, whichever server that one names.
    if (absl::IsDeadlineExceeded(status) && !not_serving.ok() &&
        (left < options_.timeout / 10 ||
         MayBeOfOneServer(status, not_serving))) {
      return not_serving;
    }
    if (IsNotServing(status)) not_serving = status;
    // A worker that is faster than a server that has just joined waits here.
    if (!IsNotServing(status) ||
        SteadyClock().Now() + kServingPause >= give_up) {
      return pinned->Note(status);
    }
    const BlockingScope blocking;
    absl::SleepFor(kServingPause);
  }
}

absl::StatusOr<std::unique_ptr<TableClient>> Client::OpenReplicated(
    std::unique_ptr<TableLayout> layout, uint64_t identity) {
  // Compared with other openings of this incarnation of the worker only, which
  // is one process. The wall clock may be set back between two of them.
  const auto opened_at =
      static_cast<uint64_t>(SteadyClock().Now().nanoseconds());
  WEFT_ASSIGN_OR_RETURN(const std::vector<v1::TableStats> stats,
                        by_map_->Open(layout->spec(), identity, opened_at));
  int64_t version = 0;
  for (const v1::TableStats& s : stats) {
    WEFT_RETURN_IF_ERROR(CheckWire(layout->spec(), s));
    version = std::max(version, s.version());
  }
  ReplicatedTableClient::Options opened;
  opened.spec = layout->spec();
  opened.opening = identity;
  opened.opened_at = opened_at;
  opened.generation = stats.empty() ? 0 : stats[0].generation();
  opened.rank = options_.rank;
  opened.timeout = options_.timeout;
  const bool joins = layout->spec().has_staleness() && options_.rank >= 0;
  auto table = std::make_unique<TableClient>(
      options_, by_map_->open_session(), std::move(opened), std::move(layout),
      identity, version);
  if (joins) WEFT_RETURN_IF_ERROR(table->JoinClocks());
  return table;
}

absl::StatusOr<std::unique_ptr<TableClient>> Client::Open(v1::TableSpec spec) {
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(std::move(spec)));
  // Numbers of pushes begin anew with each opening, and so does the identity.
  const uint64_t identity = Mix64(options_.client ^ Mix64(++opened_));
  if (by_map_ != nullptr) {
    return OpenReplicated(std::move(layout), identity);
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<v1::TableStats> stats,
      OnEach<std::vector<v1::TableStats>>(servers_, [&](const auto& servers) {
        std::vector<Future<v1::TableStats>> calls;
        for (const rpc::Target& server : servers) {
          calls.push_back(
              rpc::CallAsync(server, &ps::OpenTable, layout->spec(), identity));
        }
        return ServerWaits::Watch(ServerWaits::Of(*options_.agent),
                                  {layout->spec().name(), "Open", nullptr},
                                  WhenAllOk(std::move(calls)));
      }));
  int64_t version = 0;
  for (const v1::TableStats& s : stats) {
    WEFT_RETURN_IF_ERROR(CheckWire(layout->spec(), s));
    version = std::max(version, s.version());
  }
  std::optional<int64_t> clock;
  if (layout->spec().has_staleness() && options_.rank >= 0) {
    WEFT_ASSIGN_OR_RETURN(clock, JoinClocks(*layout, identity));
  }
  auto table = std::make_unique<TableClient>(
      options_, servers_, std::move(layout), identity, version);
  if (clock.has_value()) table->BeginClock(*clock);
  return table;
}

absl::StatusOr<int64_t> Client::JoinClocks(const TableLayout& layout,
                                           uint64_t identity) {
  v1::ClockRequest request;
  request.set_table(layout.spec().name());
  request.set_client(identity);
  request.set_rank(options_.rank);
  const std::vector<int> servers = internal::ServersWithRows(
      layout, Placement(layout.spec().name(), layout.spec().partitions(),
                        static_cast<int>(options_.servers.size())));
  // The lowest clocks of servers may differ by what is under way. From the
  // first answers on none of them passes this one, so the second are equal.
  for (int i = 0; i < 2; ++i) {
    WEFT_ASSIGN_OR_RETURN(
        const std::vector<v1::ClockReply> replies,
        OnEach<std::vector<v1::ClockReply>>(servers_, [&](const auto& all) {
          std::vector<Future<v1::ClockReply>> calls;
          for (const int server : servers) {
            calls.push_back(
                rpc::CallAsync(all[server], &ps::JoinClocks, request));
          }
          return WhenAllOk(std::move(calls));
        }));
    for (const v1::ClockReply& reply : replies) {
      request.set_at(std::max(request.at(), reply.clock()));
    }
  }
  return request.at();
}

void Client::GiveUpOnGoneServers() {
  if (by_map_ == nullptr || by_map_->open_session() == nullptr) return;
  by_map_->open_session()->session()->GiveUpOnGoneServers();
}

absl::StatusOr<std::unique_ptr<DenseTable>> Client::Dense(v1::TableSpec spec) {
  if (spec.kind() != v1::TableSpec::DENSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': Client::Dense wanted a DENSE spec"));
  }
  WEFT_ASSIGN_OR_RETURN(auto table, Open(std::move(spec)));
  return std::unique_ptr<DenseTable>(new DenseTable(std::move(table)));
}

absl::StatusOr<std::unique_ptr<SparseTable>> Client::Sparse(
    v1::TableSpec spec) {
  if (spec.kind() != v1::TableSpec::SPARSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': Client::Sparse wanted a SPARSE spec"));
  }
  WEFT_ASSIGN_OR_RETURN(auto table, Open(std::move(spec)));
  return std::unique_ptr<SparseTable>(new SparseTable(std::move(table)));
}

namespace {

v1::SaveRequest SaveRequestOf(const std::string& path,
                              const std::string& attempt, int64_t version,
                              const SaveAs& as, int server) {
  v1::SaveRequest request;
  request.set_may_be_base(as.may_be_parent || as.parent.has_value());
  if (as.parent.has_value()) request.set_base(as.parent->attempt);
  request.set_directory(path);
  request.set_attempt(attempt);
  request.set_first_shard(server * kShardsOfServer);
  request.set_version(version);
  return request;
}

std::vector<checkpoint::FileRecord> RecordsOf(
    const std::vector<v1::SaveReply>& replies) {
  std::vector<checkpoint::FileRecord> records;
  for (const v1::SaveReply& reply : replies) {
    for (const v1::SavedFile& file : reply.files()) {
      checkpoint::FileRecord record;
      record.name = file.name();
      record.writer = file.writer();
      record.digest.bytes = file.bytes();
      record.digest.sha256 = file.sha256();
      record.digest.xxh3 = file.xxh3();
      record.is_delta = file.is_delta();
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace

absl::StatusOr<std::vector<checkpoint::FileRecord>> Client::Save(
    const std::string& path, const std::string& attempt, int64_t version,
    const SaveAs& as) {
  const auto save = [&](int server) {
    return SaveRequestOf(path, attempt, version, as, server);
  };
  std::vector<v1::SaveReply> replies;
  if (by_map_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(replies, by_map_->Save(save));
  } else {
    // A restarted server has lost its tables: a checkpoint of them would be
    // incomplete. So the calls go to the pinned incarnations.
    const auto servers = servers_ != nullptr ? servers_ : Pin();
    WEFT_RETURN_IF_ERROR(servers->status());
    std::vector<Future<v1::SaveReply>> calls;
    for (size_t i = 0; i < options_.servers.size(); ++i) {
      const int server = static_cast<int>(i);
      calls.push_back(
          rpc::CallAsync((*servers)[server], &ps::Save, save(server)));
    }
    WEFT_ASSIGN_OR_RETURN(
        replies, PinnedServers::Watch(servers, WhenAllOk(std::move(calls)))
                     .Wait(options_.timeout + absl::Seconds(1)));
  }
  return RecordsOf(replies);
}

absl::StatusOr<Future<std::vector<checkpoint::FileRecord>>> Client::Snapshot(
    const std::string& path, const std::string& attempt, int64_t version,
    absl::Duration write_timeout, const SaveAs& as) {
  const auto save = [&](int server) {
    return SaveRequestOf(path, attempt, version, as, server);
  };
  if (by_map_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(Future<std::vector<v1::SaveReply>> replies,
                          by_map_->Snapshot(save, write_timeout));
    return std::move(replies).Then(RecordsOf);
  }
  const auto servers = servers_ != nullptr ? servers_ : Pin();
  WEFT_RETURN_IF_ERROR(servers->status());
  const auto count = static_cast<int>(options_.servers.size());
  std::vector<Future<void>> frozen;
  for (int i = 0; i < count; ++i) {
    frozen.push_back(rpc::CallAsync((*servers)[i], &ps::Freeze, save(i)));
  }
  WEFT_RETURN_IF_ERROR(
      PinnedServers::Watch(servers, WhenAllOk(std::move(frozen)))
          .Wait(options_.timeout + absl::Seconds(1)));
  const std::vector<rpc::Target> writers = servers->WithTimeout(write_timeout);
  std::vector<Future<v1::SaveReply>> calls;
  for (int i = 0; i < count; ++i) {
    calls.push_back(rpc::CallAsync(writers[i], &ps::Save, save(i)));
  }
  return PinnedServers::Watch(servers, WhenAllOk(std::move(calls)))
      .Then(RecordsOf);
}

absl::Status Client::CheckCheckpointDirectory(const std::string& path) {
  if (by_map_ != nullptr) return by_map_->CheckCheckpointDirectory(path);
  std::shared_ptr<PinnedServers> asked = servers_;
  return OnEach<void>(asked, [&](const auto& servers) {
    std::vector<Future<void>> calls;
    for (const rpc::Target& server : servers) {
      calls.push_back(
          rpc::CallAsync(server, &ps::CheckCheckpointDirectory, path));
    }
    return WhenAllOk(std::move(calls));
  });
}

absl::Status Client::Restore(const std::string& path, const std::string& name) {
  if (by_map_ != nullptr) return by_map_->Restore(path, name);
  // Restores on the servers that run now, and pins them: the tables are opened
  // there, and a server that ends before that has lost what was restored.
  std::shared_ptr<PinnedServers> restored;
  WEFT_RETURN_IF_ERROR(OnEach<void>(restored, [&](const auto& servers) {
    std::vector<Future<void>> calls;
    for (const rpc::Target& server : servers) {
      calls.push_back(rpc::CallAsync(server, &ps::Restore, path, name));
    }
    // All, also after an error: a server that went on would replace its tables
    // when this has ended.
    return WhenAll(std::move(calls))
        .Then([](const std::vector<absl::Status>& all) -> absl::Status {
          for (const absl::Status& one : all) WEFT_RETURN_IF_ERROR(one);
          return absl::OkStatus();
        });
  }));
  servers_ = std::move(restored);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ServerStats>> Client::Describe() {
  if (by_map_ != nullptr) return by_map_->Describe();
  std::shared_ptr<PinnedServers> described = servers_;
  return OnEach<std::vector<v1::ServerStats>>(
      described, [&](const auto& servers) {
        std::vector<Future<v1::ServerStats>> calls;
        for (const rpc::Target& server : servers) {
          calls.push_back(rpc::CallAsync(server, &ps::Describe));
        }
        return WhenAllOk(std::move(calls));
      });
}

}  // namespace weft::ps
