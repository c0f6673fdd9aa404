// ServerModel: a server of the tests of replication: replicas of one table's
// partitions and rows that only tell what was applied to them.
//
// It does what replicas ask for, as a server of tables would; what leaves it
// is collected.

#ifndef WEFT_PS_CORE_REPLICATION_MODEL_H_
#define WEFT_PS_CORE_REPLICATION_MODEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/partition_clocks.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replica.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/ps/core/round_gate.h"

namespace weft::ps {

// The payloads in the order in which they were applied: equal rows, equal bits.
using ModelRows = std::vector<std::string>;

// With a staleness: "J3:0" joins as rank 3, "T3:7" ticks to 7, "L3:0" leaves.
// The worker of a rank has its number.
struct ModelClock {
  char kind = 0;
  int rank = 0;
  int64_t clock = 0;

  std::string Text() const {
    return absl::StrCat(absl::string_view(&kind, 1), rank, ":", clock);
  }
  static std::optional<ModelClock> Of(absl::string_view payload) {
    const size_t colon = payload.find(':');
    if (colon == payload.npos) return std::nullopt;
    ModelClock out;
    out.kind = payload[0];
    if (!absl::SimpleAtoi(payload.substr(1, colon - 1), &out.rank) ||
        !absl::SimpleAtoi(payload.substr(colon + 1), &out.clock)) {
      return std::nullopt;
    }
    return out;
  }
};

// A record of a server's log on disk, at D3.
struct DiskRecord {
  enum class Kind { kEntry, kCopy, kDrop };
  Kind kind = Kind::kEntry;
  int entry = 0;  // of the map
  LogEntry log_entry;
  // kCopy: all rows, up to `n`.
  uint64_t n = 0;
  Marks marks;
  ModelRows rows;
  PartitionClocks::State clocks;
};

class ServerModel {
 public:
  struct Options {
    ReplicaOptions replica;
    LeaseOptions leases;
    int shards = 0;       // of the data; 0: ASYNC
    uint32_t pieces = 1;  // of a copy
    std::optional<int64_t> staleness;
  };
  // What leaves the server.
  struct Out {
    enum Kind { kMessage, kPush, kRead, kPropose, kLearnMap, kWrite };
    Kind kind = kMessage;
    WorkerKey to;
    ReplicaMessage message;
    ModelRows rows;                 // of kFill; of kRead, what was read
    PartitionClocks::State clocks;  // of kFill
    // Of kPush: that of the rank which is the answer's token; none: negative.
    int64_t clock = -1;
    Answer answer;  // of kPush and kRead
    MapChange change;
    // kWrite: all up to `n` is to be written; then OnDurable.
    int entry = 0;
    uint64_t n = 0;
    int64_t generation = 0;
    size_t position = 0;  // so many records of the log
  };

  // `disk`: what its log holds, of an earlier incarnation; or nothing.
  ServerModel(WorkerKey server, const PartitionMap& map, Options options,
              Instant now, const std::vector<DiskRecord>& disk = {})
      : key(server), log(disk), leases(options.leases), options_(options) {
    for (int i = 0; i < map.entries(); ++i) {
      cells.push_back({Replica(server, i, options.replica),
                       {},
                       RoundGate<std::string>(options.shards, Orphans::kWait),
                       {},
                       0,
                       0,
                       {},
                       PartitionClocks(options.staleness.value_or(0)),
                       {}});
    }
    if (!disk.empty()) Recover(disk);
    OnMap(map, now);
  }

  struct Cell {
    Replica replica;
    ModelRows rows;
    RoundGate<std::string> gate;
    std::map<uint64_t, ModelRows> reads;  // by token
    uint64_t written = 0;
    int64_t generation = 0;  // of the rows, which a copy replaces
    ModelRows copy;          // for the backup
    PartitionClocks clocks;
    PartitionClocks::State copied_clocks;
  };
  WorkerKey key;
  std::vector<DiskRecord> log;  // D3
  PartitionMap map;
  Leases leases;
  std::vector<Cell> cells;
  std::vector<Out> out;
  std::set<ClientId> closed;
  std::string refused;  // what of a clock was refused for good

  void OnMap(const PartitionMap& newer, Instant at) {
    if (newer.epoch() <= map.epoch()) return;
    map = newer;
    std::vector<WorkerKey> peers = map.PartnersOf(key);
    peers.push_back(Leases::kCoordinator);
    leases.Watch(peers, at);
    for (Cell& cell : cells) {
      cell.replica.OnMap(map, NowAt(at));
      Do(cell, {});
    }
  }

  void OnMessage(WorkerKey from, const ReplicaMessage& message,
                 const ModelRows& rows, Instant at,
                 const PartitionClocks::State& clocks = {}) {
    Cell& cell = cells[message.entry];
    cell.replica.OnMessage(from, message, NowAt(at));
    Do(cell, rows, clocks);
  }

  // A client is closed, heard of here.
  void Close(ClientId client) {
    closed.insert(client);
    for (Cell& cell : cells) DropClosed(cell);
  }

  // SYNC: `shard` of the data gives its part.
  void OnPush(const PushRequest& request, int shard, const Bytes& payload,
              Instant at) {
    Cell& cell = cells[request.entry];
    if (options_.staleness.has_value()) {
      PushAtClock(cell, request, payload, NowAt(at));
    } else if (options_.shards == 0 || request.mark.sequence == 0) {
      cell.replica.OnPush(request, payload, NowAt(at));
    } else if (cell.replica.OnPart(request, NowAt(at))) {
      const int64_t round = static_cast<int64_t>(request.mark.sequence) - 1;
      const auto given =
          cell.gate.Give(shard, shard, round, std::string(payload.view()));
      if (given != RoundGate<std::string>::Answer::kTooFar) {
        cell.replica.AnswerPart(request, NowAt(at));
      }
      while (cell.replica.HasRoom()) {
        const std::vector<std::string> parts = cell.gate.Close();
        if (parts.empty()) break;
        cell.replica.AppendRound(Bytes::Copy(absl::StrJoin(parts, "+")),
                                 /*is_repeatable=*/true, NowAt(at));
      }
    }
    Do(cell, {});
  }

  // `clock`: of the client's rank, at which it reads.
  void OnRead(const ReadRequest& request, Instant at,
              std::optional<ModelClock> clock = std::nullopt) {
    Cell& cell = cells[request.entry];
    bool is_behind = false;
    if (clock.has_value() && Accepts(cell, request, NowAt(at))) {
      Check(request.client, "pull", clock->Text(),
            cell.clocks.CheckPull(clock->rank, request.client, clock->clock));
      is_behind = !cell.clocks.MayRead(clock->clock);
    }
    cell.replica.OnRead(request, NowAt(at), is_behind);
    Do(cell, {});
  }

  void OnDurable(int entry, uint64_t n, int64_t generation, Instant at) {
    if (cells[entry].generation != generation) return;
    cells[entry].replica.OnDurable(n, NowAt(at));
    Do(cells[entry], {});
  }

  void OnTick(Instant at) {
    for (Cell& cell : cells) {
      cell.replica.OnTick(NowAt(at));
      Do(cell, {});
    }
  }

  // fills_when_told.
  bool waits_to_fill() const {
    return std::any_of(cells.begin(), cells.end(), [](const Cell& cell) {
      return cell.replica.waits_to_fill();
    });
  }
  // The first that waits.
  void BeginFill(Instant at) {
    for (Cell& cell : cells) {
      if (!cell.replica.waits_to_fill()) continue;
      cell.replica.BeginFill(NowAt(at));
      return Do(cell, {});
    }
  }

  Now NowAt(Instant at) const { return {at, leases}; }

 private:
  template <typename Request>
  static bool Accepts(const Cell& cell, const Request& request,
                      const Now& now) {
    return cell.replica.Accepts(request.entry, request.to, request.epoch, now);
  }
  void Check(ClientId client, absl::string_view what, absl::string_view clock,
             PartitionClocks::Answer answer) {
    if (answer == PartitionClocks::Answer::kOk || closed.count(client) != 0) {
      return;
    }
    refused = absl::StrCat(what, " ", clock,
                           " was refused: ", static_cast<int>(answer));
  }
  void DropClosed(Cell& cell) {
    cell.clocks.CloseIf(
        [this](ClientId client) { return closed.count(client) != 0; });
  }
  static PartitionClocks::Holder HolderOf(int rank, ClientId client) {
    return {{static_cast<uint32_t>(rank), 1}, client, ""};
  }

  void PushAtClock(Cell& cell, PushRequest request, Bytes payload,
                   const Now& now) {
    std::optional<ModelClock> clock = ModelClock::Of(payload.view());
    const ClientId client = request.mark.client;
    if (clock.has_value() && request.mark.sequence != 0) {
      request.until_stable = clock->kind == 'J';
      if (Accepts(cell, request, now) &&
          cell.replica.AppliedThrough(client) < request.mark.sequence) {
        auto answer = PartitionClocks::Answer::kOk;
        if (clock->kind == 'J') {
          answer = cell.clocks.CheckJoin(
              clock->rank, HolderOf(clock->rank, client), 0, clock->clock);
          payload = Bytes::Copy(clock->Text());
        } else if (clock->kind == 'T') {
          answer = cell.clocks.CheckTick(clock->rank, client, clock->clock);
        }
        Check(client, "push", clock->Text(), answer);
        if (answer != PartitionClocks::Answer::kOk) return;
      }
    }
    cell.replica.OnPush(request, payload, now);
  }

  // Whether the entry is of a clock.
  bool ApplyClock(Cell& cell, const LogEntry& entry) {
    if (!options_.staleness.has_value()) return false;
    const ClientId client = entry.mark.client;
    const auto clock = ModelClock::Of(entry.payload.view());
    if (clock.has_value() && clock->kind == 'T') {
      cell.clocks.Tick(clock->rank, client, clock->clock, entry.mark.sequence);
    } else if (clock.has_value() && clock->kind == 'L') {
      cell.clocks.Leave(clock->rank, client, entry.mark.sequence);
    } else if (clock.has_value() && closed.count(client) == 0) {
      cell.clocks.Join(clock->rank, HolderOf(clock->rank, client),
                       clock->clock);
    }
    cell.clocks.Applied(client, cell.replica.AppliedThrough(client));
    return clock.has_value();
  }

  int64_t ClockOf(const Cell& cell, uint64_t rank) const {
    const ClockGate::Clock* const clock =
        cell.clocks.gate().Find(static_cast<int>(rank));
    return clock == nullptr ? -1 : clock->at;
  }

  void Recover(const std::vector<DiskRecord>& disk) {
    std::vector<DiskRecord> copies(cells.size());
    std::vector<std::vector<LogEntry>> entries(cells.size());
    std::vector<bool> is_void(cells.size());
    for (const DiskRecord& record : disk) {
      const size_t i = static_cast<size_t>(record.entry);
      if (record.kind == DiskRecord::Kind::kEntry) {
        entries[i].push_back(record.log_entry);
        continue;
      }
      is_void[i] = record.kind == DiskRecord::Kind::kDrop;
      copies[i] = record;
      entries[i].clear();
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      if (is_void[i]) continue;
      cells[i].rows = copies[i].rows;
      cells[i].clocks.Load(copies[i].clocks);
      cells[i].replica.Recover(copies[i].n, copies[i].marks, entries[i]);
      for (const Replica::Action& action : cells[i].replica.TakeActions()) {
        if (ApplyClock(cells[i], action.log_entry)) continue;
        cells[i].rows.emplace_back(action.log_entry.payload.view());
      }
      cells[i].written = cells[i].replica.end();
    }
  }

  void Write(const Cell& cell, DiskRecord record) {
    if (options_.replica.level != Durability::kD3) return;
    record.entry = static_cast<int>(&cell - cells.data());
    log.push_back(std::move(record));
  }

  void Do(Cell& cell, const ModelRows& came_with,
          const PartitionClocks::State& clocks = {}) {
    using Kind = Replica::Action::Kind;
    std::deque<Replica::Action> actions;
    const auto take = [&] {
      for (Replica::Action& action : cell.replica.TakeActions()) {
        actions.push_back(std::move(action));
      }
    };
    for (take(); !actions.empty(); actions.pop_front()) {
      const Replica::Action& action = actions.front();
      switch (action.kind) {
        case Kind::kServe:
          cell.gate = RoundGate<std::string>(options_.shards, Orphans::kWait,
                                             cell.replica.NextRound());
          DropClosed(cell);
          break;
        case Kind::kApply:
          Write(cell,
                {DiskRecord::Kind::kEntry, 0, action.log_entry, 0, {}, {}, {}});
          if (ApplyClock(cell, action.log_entry)) break;
          cell.rows.emplace_back(action.log_entry.payload.view());
          break;
        case Kind::kLoad:
          if (action.message.piece == 0) {
            cell.rows.clear();
            cell.clocks.Load(clocks);
            DropClosed(cell);
          }
          cell.rows.insert(cell.rows.end(), came_with.begin(), came_with.end());
          if (action.message.piece == 0) {
            Write(cell, {DiskRecord::Kind::kDrop, 0, {}, 0, {}, {}, {}});
          }
          if (action.message.piece + 1 == action.message.pieces) {
            Write(cell, {DiskRecord::Kind::kCopy,
                         0,
                         {},
                         action.message.n,
                         action.message.marks,
                         cell.rows,
                         cell.clocks.Save()});
          }
          ++cell.generation;
          cell.written = ~uint64_t{0};
          break;
        case Kind::kCopy:
          cell.copy = cell.rows;
          cell.copied_clocks = cell.clocks.Save();
          cell.replica.OnCopied(options_.pieces);
          take();
          break;
        case Kind::kDrop:
          cell.rows.clear();
          cell.reads.clear();
          cell.clocks = PartitionClocks(options_.staleness.value_or(0));
          Write(cell, {DiskRecord::Kind::kDrop, 0, {}, 0, {}, {}, {}});
          ++cell.generation;
          break;
        case Kind::kSend: {
          Out& sent = Add(Out::kMessage);
          sent.to = action.to;
          sent.message = action.message;
          if (action.message.kind == ReplicaMessage::Kind::kFill) {
            sent.rows =
                PieceOf(cell.copy, action.message.piece, action.message.pieces);
            if (action.message.piece == 0) sent.clocks = cell.copied_clocks;
          }
          break;
        }
        case Kind::kAnswerPush:
          Add(Out::kPush).answer = action.answer;
          out.back().clock = ClockOf(cell, action.answer.token);
          break;
        case Kind::kRead:
          cell.reads[action.answer.token] = cell.rows;
          break;
        case Kind::kAnswerRead: {
          Out& read = Add(Out::kRead);
          read.answer = action.answer;
          read.rows = cell.reads[action.answer.token];
          break;
        }
        case Kind::kPropose:
          Add(Out::kPropose).change = action.change;
          break;
        case Kind::kLearnMap:
          Add(Out::kLearnMap);
          break;
      }
    }
    if (options_.replica.level == Durability::kD3 &&
        cell.replica.end() != cell.written) {
      cell.written = cell.replica.end();
      Out write;
      write.kind = Out::kWrite;
      write.entry = static_cast<int>(&cell - cells.data());
      write.n = cell.written;
      write.generation = cell.generation;
      write.position = log.size();
      out.push_back(std::move(write));
    }
  }

  static ModelRows PieceOf(const ModelRows& rows, size_t piece, size_t of) {
    const auto at = [&](size_t i) {
      return rows.begin() + static_cast<ptrdiff_t>(i * rows.size() / of);
    };
    return {at(piece), at(piece + 1)};
  }

  Out& Add(Out::Kind kind) {
    out.emplace_back();
    out.back().kind = kind;
    return out.back();
  }

  Options options_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REPLICATION_MODEL_H_
