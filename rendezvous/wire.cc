// Wire: see the header.

#include "weft/rendezvous/wire.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weft::rendezvous {

v1::WorkerKey ToWire(WorkerKey key) {
  v1::WorkerKey wire;
  wire.set_id(key.id);
  wire.set_epoch(key.epoch);
  return wire;
}

WorkerKey FromWire(const v1::WorkerKey& key) { return {key.id(), key.epoch()}; }

v1::Member ToWire(const Member& member) {
  v1::Member wire;
  wire.set_name(member.name);
  *wire.mutable_key() = ToWire(member.key);
  wire.set_role(member.role);
  wire.set_rank(member.rank);
  wire.set_address(member.address);
  wire.set_incarnation(member.incarnation);
  wire.mutable_labels()->insert(member.labels.begin(), member.labels.end());
  wire.set_suspect(member.suspect);
  wire.set_phase(ToWire(member.phase));
  return wire;
}

v1::Phase ToWire(Phase phase) {
  return static_cast<v1::Phase>(static_cast<int>(phase));
}

Member FromWire(const v1::Member& member) {
  Member m;
  m.name = member.name();
  m.key = FromWire(member.key());
  m.role = member.role();
  m.rank = member.rank();
  m.address = member.address();
  m.incarnation = member.incarnation();
  m.labels.insert(member.labels().begin(), member.labels().end());
  m.suspect = member.suspect();
  // A phase that this build does not know is beyond those that it does.
  m.phase = static_cast<Phase>(
      std::min<int>(member.phase(), static_cast<int>(Phase::kDrained)));
  return m;
}

Departed FromWire(const v1::Departed& departed) {
  return {departed.name(), FromWire(departed.key()), departed.reason(),
          departed.left()};
}

v1::World ToWire(const World& world) {
  v1::World wire;
  wire.mutable_roles()->insert(world.roles.begin(), world.roles.end());
  wire.set_min(world.min);
  wire.set_max(world.max);
  return wire;
}

World FromWire(const v1::World& world) {
  World w;
  w.roles.insert(world.roles().begin(), world.roles().end());
  w.min = world.min();
  w.max = world.max();
  return w;
}

View FromWire(const v1::View& view) {
  std::vector<Member> members;
  for (const v1::Member& member : view.members()) {
    members.push_back(FromWire(member));
  }
  std::vector<Departed> departed;
  for (const v1::Departed& gone : view.departed()) {
    departed.push_back(FromWire(gone));
  }
  return View(view.version(), FromWire(view.world()), std::move(members),
              std::move(departed));
}

}  // namespace weft::rendezvous
