#include "weft/collectives/backends/local/local_world.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/mesh_backend.h"
#include "weft/collectives/subgroup_name.h"
#include "weft/transport/transport.h"

namespace weft::collectives {
namespace {

// One group. It does not change once it is made.
struct Group {
  std::string name;
  std::vector<int> members;  // ranks of the world
  std::vector<std::shared_ptr<Mesh>> meshes;

  // `rank` of it has ended, as all others find.
  void End(int rank) const {
    meshes[rank]->Abort(
        absl::CancelledError(absl::StrCat("rank ", rank, " was killed")));
    for (const auto& mesh : meshes) {
      if (mesh->rank() == rank) continue;
      mesh->OnClosed(rank, absl::UnavailableError("it was killed"));
    }
  }
};

}  // namespace

// What all groups of one world share: who is dead or held, and how long
// messages take.
class LocalWorld::State : public std::enable_shared_from_this<State> {
 public:
  State(int size, Options world_options)
      : options(std::move(world_options)),
        killed(size),
        left_to_send(size, -1),
        held(size),
        waiting(size),
        sends_until(size),
        takes_until(size) {}

  // The group with this name, of `members`, ranks of the world.
  std::shared_ptr<const Group> Find(const std::vector<int>& members,
                                    absl::string_view name)
      ABSL_LOCKS_EXCLUDED(groups_mu, mu);
  void Kill(int rank) ABSL_LOCKS_EXCLUDED(groups_mu, mu);
  // When a message with so many bytes of elements, sent now, is there.
  Instant ArrivalOf(int from, int to, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;

  // Comes before `mu` and the locks of meshes.
  Mutex groups_mu;
  // Kept to the end: a rank may come to one after others have left it.
  std::map<std::string, std::shared_ptr<const Group>> groups
      ABSL_GUARDED_BY(groups_mu);

  Mutex mu;
  std::vector<bool> killed ABSL_GUARDED_BY(mu);
  // By rank: how many messages it still sends before it is killed; -1: it is
  // not killed.
  std::vector<int64_t> left_to_send ABSL_GUARDED_BY(mu);
  std::vector<bool> held ABSL_GUARDED_BY(mu);
  // By rank: the functions that deliver its held messages.
  std::vector<std::vector<std::function<void()>>> waiting ABSL_GUARDED_BY(mu);
  // By rank, under a link model.
  std::vector<Instant> sends_until ABSL_GUARDED_BY(mu);
  std::vector<Instant> takes_until ABSL_GUARDED_BY(mu);

 private:
  std::shared_ptr<const Group> Make(const std::vector<int>& members,
                                    absl::string_view name);
};

namespace {

// The bytes of elements in a message, whose first slice is what it has besides.
int64_t ContentBytes(const Slices& message) {
  int64_t bytes = 0;
  for (size_t i = 1; i < message.size(); ++i) {
    bytes += static_cast<int64_t>(message[i].size());
  }
  return bytes;
}

// One rank's end of its stream to another, which hears what is written on the
// thread that writes it.
class Wire final : public transport::Connection,
                   public std::enable_shared_from_this<Wire> {
 public:
  // `from` and `to`: ranks of `group`.
  Wire(std::weak_ptr<LocalWorld::State> world, const Group& group, int from,
       int to)
      : world_(std::move(world)),
        from_mesh_(group.meshes[from]),
        to_mesh_(group.meshes[to]),
        from_(from),
        to_(to),
        world_from_(group.members[from]),
        world_to_(group.members[to]) {}
  ~Wire() override { Close(absl::CancelledError("the stream was destroyed")); }

  Written Write(Slices message) override;
  void Close(absl::Status status) override {
    const auto mesh = to_mesh_.lock();
    if (mesh != nullptr) mesh->OnClosed(from_, status);
  }

 private:
  void Deliver(const Slices& message) const {
    const auto mesh = to_mesh_.lock();
    if (mesh != nullptr) mesh->OnMessage(from_, message);
  }
  void DeliverHeld(const Slices& message) const {
    Deliver(message);
    const auto mesh = from_mesh_.lock();
    if (mesh != nullptr) mesh->OnWritten(to_);
  }

  const std::weak_ptr<LocalWorld::State> world_;
  const std::weak_ptr<Mesh> from_mesh_, to_mesh_;
  const int from_, to_;              // of the group
  const int world_from_, world_to_;  // the same ranks, of the world
  Instant last_arrival_;             // guarded by the world's `mu`
};

transport::Connection::Written Wire::Write(Slices message) {
  const auto world = world_.lock();
  if (world == nullptr) return Written::kRefused;
  Instant arrival;
  bool is_last = false;
  {
    MutexLock lock(world->mu);
    is_last = world->left_to_send[world_from_] == 0;
    if (world->left_to_send[world_from_] > 0) {
      --world->left_to_send[world_from_];
    }
  }
  if (is_last) {
    world->Kill(world_from_);
    return Written::kRefused;
  }
  {
    MutexLock lock(world->mu);
    if (world->killed[world_from_] || world->killed[world_to_]) {
      return Written::kRefused;
    }
    if (world->held[world_from_]) {
      world->waiting[world_from_].push_back(
          [self = shared_from_this(), message] { self->DeliverHeld(message); });
      return Written::kUnderWay;
    }
    if (world->options.link.has_value()) {
      // Each later than the one before it, for events of one time have no
      // order.
      arrival = std::max(
          world->ArrivalOf(world_from_, world_to_, ContentBytes(message)),
          last_arrival_ + absl::Nanoseconds(1));
      last_arrival_ = arrival;
    }
  }
  if (world->options.link.has_value()) {
    world->options.link->run_at(arrival, [self = shared_from_this(), message] {
      self->Deliver(message);
    });
  } else {
    Deliver(message);
  }
  return Written::kDone;
}

class LocalBackend final : public MeshBackend {
 public:
  LocalBackend(std::shared_ptr<LocalWorld::State> world,
               const std::shared_ptr<const Group>& group, int rank)
      : MeshBackend(group->meshes[rank]),
        world_(std::move(world)),
        group_(group) {}
  ~LocalBackend() override { mesh().Leave(); }

  absl::string_view name() const override { return "local"; }
  absl::Status Run(const Operation& operation) override {
    return RunWith(operation, [&](Link& link) {
      return RunOverLink(link, operation, world_->options.cost);
    });
  }
  // Waits for nobody.
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override {
    std::vector<int> world_ranks;
    for (const int member : spec.members) {
      world_ranks.push_back(group_->members[member]);
    }
    return std::make_unique<LocalBackend>(
        world_,
        world_->Find(world_ranks, SubgroupName(group_->name, spec.name)),
        spec.PlaceOf(rank()));
  }

 private:
  const std::shared_ptr<LocalWorld::State> world_;
  const std::shared_ptr<const Group> group_;
};

}  // namespace

std::shared_ptr<const Group> LocalWorld::State::Find(
    const std::vector<int>& members, absl::string_view name) {
  // Held while the group is made, so that nobody has a part of it.
  MutexLock lock(groups_mu);
  std::shared_ptr<const Group>& group = groups[std::string(name)];
  if (group == nullptr) group = Make(members, name);
  return group;
}

std::shared_ptr<const Group> LocalWorld::State::Make(
    const std::vector<int>& members, absl::string_view name) {
  const auto group = std::make_shared<Group>();
  group->name = std::string(name);
  group->members = members;
  MeshOptions mesh;
  mesh.group = std::string(name.substr(0, Frame::kMaxTextBytes));
  mesh.size = static_cast<int>(members.size());
  mesh.max_unasked_bytes = options.max_unasked_bytes;
  mesh.dead_after = absl::InfiniteDuration();  // who is held is not dead
  mesh.diagnosis = options.diagnosis;
  for (mesh.rank = 0; mesh.rank < mesh.size; ++mesh.rank) {
    group->meshes.push_back(std::make_shared<Mesh>(mesh, *options.driver));
  }
  const auto wire = [&](int from, int to) {
    return std::make_shared<Wire>(weak_from_this(), *group, from, to);
  };
  for (int from = 0; from < mesh.size; ++from) {
    for (int to = 0; to < mesh.size; ++to) {
      if (to != from) group->meshes[from]->Join(to, wire(from, to));
    }
  }
  std::vector<bool> dead;
  {
    MutexLock lock(mu);
    dead = killed;
  }
  for (int r = 0; r < mesh.size; ++r) {
    if (dead[members[r]]) group->End(r);
  }
  return group;
}

void LocalWorld::State::Kill(int rank) {
  std::vector<std::function<void()>> lost;
  {
    MutexLock lock(mu);
    killed[rank] = true;
    left_to_send[rank] = -1;
    lost.swap(waiting[rank]);
  }
  std::vector<std::shared_ptr<const Group>> all;
  {
    MutexLock lock(groups_mu);
    for (const auto& [name, group] : groups) all.push_back(group);
  }
  for (const auto& group : all) {
    for (size_t r = 0; r < group->members.size(); ++r) {
      if (group->members[r] == rank) group->End(static_cast<int>(r));
    }
  }
}

Instant LocalWorld::State::ArrivalOf(int from, int to, int64_t bytes) {
  const Instant now = options.driver->clock().Now();
  if (bytes == 0) return now + options.link->latency;
  const absl::Duration time = absl::Seconds(static_cast<double>(bytes) /
                                            options.link->bytes_per_second);
  sends_until[from] = std::max(now, sends_until[from]) + time;
  // Its last byte comes no earlier than it was sent, and than those before.
  takes_until[to] = std::max(takes_until[to] + time,
                             sends_until[from] + options.link->latency);
  return takes_until[to];
}

LocalWorld::LocalWorld(int size) : LocalWorld(size, Options()) {}

LocalWorld::LocalWorld(int size, Options options)
    : state_(std::make_shared<State>(size, std::move(options))) {
  WEFT_CHECK(size > 0);
}

LocalWorld::~LocalWorld() = default;

std::unique_ptr<Backend> LocalWorld::Connect(int rank) {
  std::vector<int> all;
  {
    MutexLock lock(state_->mu);
    all.resize(state_->killed.size());
  }
  WEFT_CHECK(rank >= 0 && rank < static_cast<int>(all.size()));
  for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  return std::make_unique<LocalBackend>(state_, state_->Find(all, ""), rank);
}

void LocalWorld::Kill(int rank) { state_->Kill(rank); }

void LocalWorld::KillAfter(int rank, int64_t messages) {
  MutexLock lock(state_->mu);
  state_->left_to_send[rank] = messages;
}

bool LocalWorld::IsKilled(int rank) const {
  MutexLock lock(state_->mu);
  return state_->killed[rank];
}

void LocalWorld::Hold(int rank) {
  MutexLock lock(state_->mu);
  state_->held[rank] = true;
}

void LocalWorld::Release(int rank) {
  std::vector<std::function<void()>> held;
  {
    MutexLock lock(state_->mu);
    state_->held[rank] = false;
    held.swap(state_->waiting[rank]);
  }
  for (const auto& deliver : held) deliver();
}

}  // namespace weft::collectives
