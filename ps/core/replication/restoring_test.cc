// Restores with every order in which deaths, restarts, news of the map, loads
// and refills can come: no server ever serves an entry whose rows it has not.

#include "weft/ps/core/replication/restoring.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using Kind = MapChange::Kind;
using State = PartitionMap::State;
using Step = Restoring::Step;

struct Bounds {
  int servers = 2;
  bool is_lost = true;  // all servers have just been started again
  int kills = 0;
  int restarts = 0;
  bool has_tables = true;  // unless lost; else the job begins with the restore
};

// One entry. Of the rows in it only the generation is modelled; -1: no rows.
class World {
 public:
  explicit World(const Bounds& bounds) : bounds_(bounds), client_(10) {
    std::vector<PartitionMap::Server> servers;
    for (int i = 0; i < bounds.servers; ++i) {
      servers.push_back({{static_cast<uint32_t>(i + 1), 1},
                         static_cast<uint32_t>(i),
                         State::kLive});
      servers_.emplace_back();
      servers_.back().key = servers.back().key;
    }
    map_ = *PartitionMap::Assign(1, servers, 2);
    for (Server& server : servers_) {
      if (bounds.is_lost) {
        map_.FailServer(server.key, State::kExited);
        ++server.key.epoch;
      } else {
        server.map = map_;
        if (bounds.has_tables) server.table = Table{0, 0, 0};
      }
    }
    for (Server& server : servers_) map_.AddServer(server.key, server.key.id);
  }

  const std::string& broken() const { return broken_; }
  const std::vector<std::string>& path() const { return path_; }
  bool is_done() { return client_.Next(known_).kind == Step::Kind::kDone; }

  std::vector<std::string> Moves() {
    std::vector<std::string> moves;
    if (known_.epoch() < map_.epoch()) moves.push_back("learn client");
    for (size_t i = 0; i < servers_.size(); ++i) {
      const Server& server = servers_[i];
      const auto add = [&](absl::string_view what) {
        moves.push_back(absl::StrCat(what, " ", i));
      };
      if (server.is_up && server.map.epoch() < map_.epoch()) add("learn");
      if (server.is_up && kills_ < bounds_.kills) add("kill");
      if (!server.is_up && map_.StateOf(server.key) != State::kExited) {
        add("told");
      }
      if (!server.is_up && restarts_ < bounds_.restarts) add("restart");
      if (CanFill(server)) add("fill");
      if (CanMarkEmpty(server)) add("mark empty");
    }
    PartitionMap repaired = map_;
    if (repaired.AddBackups()) moves.push_back("add a backup");
    if (known_.epoch() == 0) return moves;
    Restoring client = client_;
    const Step step = client.Next(known_);
    if (step.kind == Step::Kind::kBegin) moves.push_back("begin");
    if (step.kind == Step::Kind::kEnd) moves.push_back("end");
    for (const WorkerKey& key : step.servers) {
      const Server& server = servers_[key.id - 1];
      if (server.is_up && server.key == key &&
          server.map.epoch() == known_.epoch()) {
        moves.push_back(absl::StrCat("load ", key.id - 1));
      }
    }
    return moves;
  }

  void Do(const std::string& move) {
    path_.push_back(move);
    const auto is = [&](absl::string_view what) {
      return absl::StartsWith(move, what);
    };
    Server& server = servers_[(move.back() - '0') % servers_.size()];
    if (is("learn client")) {
      known_ = map_;
    } else if (is("learn")) {
      Learn(server);
    } else if (is("kill")) {
      ++kills_;
      server.is_up = false;
    } else if (is("told")) {
      map_.FailServer(server.key, State::kExited);
    } else if (is("restart")) {
      ++restarts_;
      const WorkerKey key = {server.key.id, server.key.epoch + 1};
      server = Server();
      server.key = key;
      map_.AddServer(key, key.id);
    } else if (is("fill")) {
      Fill(server);
    } else if (is("mark")) {
      map_.Apply({Kind::kMarkInSync, 0, server.map.entry(0).changed, 0, {}})
          .IgnoreError();
    } else if (is("add")) {
      map_.AddBackups();
    } else if (is("begin")) {
      const Step step = client_.Next(known_);
      map_.Apply({Kind::kBeginRestore, 0, 0, step.generation, {}})
          .IgnoreError();
    } else if (is("end")) {
      (void)client_.Next(known_);
      map_.Apply(client_.End()).IgnoreError();
    } else {
      Load(server);
    }
    Check();
  }

  // Goes on without deaths: then the restore ends.
  void Settle() {
    for (int i = 0; i < 40 && broken_.empty(); ++i) {
      bool has_moved = false;
      for (const std::string& move : Moves()) {
        if (absl::StartsWith(move, "kill")) continue;
        const std::vector<std::string> now = Moves();
        if (std::find(now.begin(), now.end(), move) == now.end()) continue;
        Do(move);
        has_moved = true;
      }
      if (!has_moved) break;
    }
    bool any = false;
    for (const Server& server : servers_) any |= server.is_up;
    if (broken_.empty() && any && !is_done()) broken_ = "it does not end";
  }

  std::string Key() const {
    std::string key = absl::StrCat(map_.Encode(), "/", known_.epoch(), "/",
                                   kills_, restarts_, "/");
    for (const auto& [server, epoch] : client_.End().loaded) {
      absl::StrAppend(&key, server.id, "=", epoch, ",");
    }
    absl::StrAppend(&key, client_.End().generation, "/");
    for (const Server& server : servers_) {
      absl::StrAppend(&key, server.is_up, server.key.epoch, ",",
                      server.map.epoch());
      if (server.table) {
        absl::StrAppend(&key, "t", server.table->generation, ",",
                        server.table->rows, ",", server.table->loaded_by);
      }
      absl::StrAppend(&key, "/");
    }
    return key;
  }

 private:
  struct Table {
    uint64_t generation = 0;
    int64_t rows = -1;
    uint64_t loaded_by = 0;
  };
  struct Server {
    WorkerKey key;
    bool is_up = true;
    PartitionMap map;  // that it knows
    std::optional<Table> table;
  };

  static bool HasRole(const Server& server) {
    const PartitionMap::Entry& entry = server.map.entry(0);
    return entry.primary == server.key || entry.backup == server.key;
  }
  static bool IsPrimary(const Server& server) {
    return server.is_up && server.map.epoch() > 0 &&
           server.map.entry(0).primary == server.key;
  }

  void Learn(Server& server) {
    server.map = map_;
    if (!server.table) return;
    if (server.table->generation < map_.generation()) {
      server.table.reset();
    } else if (!HasRole(server)) {
      server.table->rows = -1;
    }
  }

  // `server` is a primary that fills its backup.
  bool CanFill(const Server& server) const {
    if (!IsPrimary(server) || !server.table) return false;
    const PartitionMap::Entry& entry = server.map.entry(0);
    if (IsNone(entry.backup) || entry.in_sync) return false;
    const Server& backup = servers_[entry.backup.id - 1];
    return backup.is_up && backup.key == entry.backup &&
           backup.map.epoch() >= server.map.epoch() &&
           backup.map.entry(0).changed == entry.changed &&
           (!backup.table ||
            backup.table->generation == server.table->generation);
  }
  void Fill(const Server& server) {
    const PartitionMap::Entry entry = server.map.entry(0);
    Server& backup = servers_[entry.backup.id - 1];
    if (!backup.table) backup.table = Table{server.table->generation, -1, 0};
    backup.table->rows = server.table->rows;
    map_.Apply({Kind::kMarkInSync, 0, entry.changed, 0, {}}).IgnoreError();
  }
  // A server without tables says that its backup has as much.
  static bool CanMarkEmpty(const Server& server) {
    return IsPrimary(server) && !server.table && !server.map.is_restoring() &&
           !IsNone(server.map.entry(0).backup) && !server.map.entry(0).in_sync;
  }

  void Load(Server& server) {
    const uint64_t generation = client_.Next(known_).generation;
    if (!server.table || server.table->generation < generation) {
      server.table = Table{
          generation,
          HasRole(server) ? static_cast<int64_t>(generation) : int64_t{-1},
          server.map.epoch()};
    }
    if (server.table->generation == generation) {
      client_.Loaded(server.key, generation, server.table->loaded_by);
    }
  }

  // Whoever serves has the rows that the map says: what a client opens where no
  // table is would be an empty one.
  void Check() {
    for (const Server& server : servers_) {
      if (!IsPrimary(server) || server.map.is_restoring() ||
          server.map.epoch() != map_.epoch()) {
        continue;
      }
      // The server has loaded a generation that the map does not have yet.
      if (server.table && server.table->generation > map_.generation()) {
        continue;
      }
      const int64_t wanted = static_cast<int64_t>(map_.generation());
      const bool has_restored = wanted > 0;
      if (server.table ? server.table->rows == -1 : has_restored) {
        broken_ = absl::StrCat("server ", server.key.ToString(),
                               " serves nothing for rows of ", wanted);
      }
    }
  }

  Bounds bounds_;
  PartitionMap map_;
  PartitionMap known_;  // to the client
  std::vector<Server> servers_;
  Restoring client_;
  int kills_ = 0;
  int restarts_ = 0;
  std::string broken_;
  std::vector<std::string> path_;
};

int64_t Explore(const Bounds& bounds) {
  absl::flat_hash_set<std::string> seen;
  std::vector<World> open = {World(bounds)};
  while (!open.empty()) {
    World world = std::move(open.back());
    open.pop_back();
    World settled = world;
    if (world.broken().empty()) settled.Settle();
    if (!settled.broken().empty()) {
      ADD_FAILURE() << settled.broken() << ", after:\n  "
                    << absl::StrJoin(settled.path(), "\n  ");
      return 0;
    }
    for (const std::string& move : world.Moves()) {
      World next = world;
      next.Do(move);
      if (seen.insert(next.Key()).second) open.push_back(std::move(next));
    }
  }
  std::cout << seen.size() << " states\n";
  return static_cast<int64_t>(seen.size());
}

TEST(Restoring, OfAJobThatHasLostAllCopiesServesNothingThatIsNotLoaded) {
  EXPECT_GT(Explore({2, true, 0, 0}), 20);
}

TEST(Restoring, AfterALossWithDeathsAndRestartsMeanwhileInEveryOrder) {
  EXPECT_GT(Explore({2, true, 1, 1}), 1000);
  EXPECT_GT(Explore({2, true, 2, 1}), 5000);
}

TEST(Restoring, WithoutALossWithDeathsAndRestartsMeanwhileInEveryOrder) {
  EXPECT_GT(Explore({2, false, 1, 1}), 1000);
  EXPECT_GT(Explore({2, false, 2, 1}), 5000);
}

TEST(Restoring, OfThreeServersWithTwoDeathsInEveryOrder) {
  EXPECT_GT(Explore({3, false, 2, 0}), 1000);
  EXPECT_GT(Explore({3, false, 2, 0, false}), 1000);
}

TEST(Restoring, RestoreOlderThanTheMapsFailsAndANewerOneBegins) {
  PartitionMap map =
      *PartitionMap::Assign(1, {{{1, 1}, 0, {}}, {{2, 1}, 1, {}}}, 2);
  ASSERT_TRUE(map.Apply({Kind::kBeginRestore, 0, 0, 7, {}}).ok());
  Restoring late(5);
  EXPECT_EQ(late.Next(map).kind, Step::Kind::kFailed);
  Restoring later(8);
  EXPECT_EQ(later.Next(map).kind, Step::Kind::kBegin);
}

// A server that is silent, and may be promoted, has not loaded it.
TEST(Restoring, WaitsForASilentServer) {
  PartitionMap map =
      *PartitionMap::Assign(1, {{{1, 1}, 0, {}}, {{2, 1}, 1, {}}}, 2);
  ASSERT_TRUE(map.FailServer(map.entry(0).backup, State::kSilent));
  Restoring client(5);
  EXPECT_EQ(client.Next(map).kind, Step::Kind::kLoad);
  client.Loaded(map.entry(0).primary, 5, map.epoch());
  const Step step = client.Next(map);
  EXPECT_EQ(step.kind, Step::Kind::kWait);
  EXPECT_FALSE(step.status.ok());
}

}  // namespace
}  // namespace weft::ps
