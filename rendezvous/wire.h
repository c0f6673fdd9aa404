// Wire: members, views and worlds to and from their messages.

#ifndef WEFT_RENDEZVOUS_WIRE_H_
#define WEFT_RENDEZVOUS_WIRE_H_

#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {

v1::WorkerKey ToWire(WorkerKey key);
v1::Member ToWire(const Member& member);
v1::World ToWire(const World& world);
v1::Phase ToWire(Phase phase);

WorkerKey FromWire(const v1::WorkerKey& key);
Member FromWire(const v1::Member& member);
Departed FromWire(const v1::Departed& departed);
World FromWire(const v1::World& world);
View FromWire(const v1::View& view);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_WIRE_H_
