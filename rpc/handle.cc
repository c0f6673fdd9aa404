#include "weft/rpc/handle.h"

#include <limits>
#include <tuple>

#include "weft/base/catch_to_status.h"
#include "weft/rpc/agent_parts.h"
#include "weft/rpc/session/retry_policy.h"

namespace weft::rpc::internal {
namespace {

absl::Status ReadId(ServedCall& call, ObjectId& id) {
  std::tuple<ObjectId> arguments;
  WEFT_RETURN_IF_ERROR(TakeArguments(call, arguments));
  id = std::get<0>(arguments);
  return absl::OkStatus();
}

bool RegisterBuiltin(const char* name, const char* signature,
                     Function::Serve serve) {
  Function f;
  // The second release of an object is kNotFound.
  f.is_idempotent = true;
  f.name = name;
  f.signature = signature;
  f.digest = DigestOf(f.signature);
  f.runs_on = RunsOn::kExecutor;
  f.address = reinterpret_cast<Function::Address>(serve);
  f.is_of_maker = true;
  f.serve = serve;
  return Register(std::move(f));
}

const bool registered_fetch =
    RegisterBuiltin("weft::rpc::Fetch", "any(object)", &ServeFetch);
const bool registered_release =
    RegisterBuiltin("weft::rpc::Release", "void(object)", &ServeRelease);

}  // namespace

ObjectTable& ObjectsOf(const Agent& agent) { return PartsOf(agent).objects; }

const std::shared_ptr<OpenHandles>& HandlesOf(const Target& target) {
  return PartsOf(target).handles;
}

ObjectId MadeBy(const Target& target, uint64_t call) {
  return {WorkerOf(target).key, PartsOf(target).key, call};
}

void ForgetHandle(const Target& target, uint64_t id) {
  if (target.status().ok()) HandlesOf(target)->Remove(WorkerOf(target).key, id);
}

void ServeFetch(ServedCall& call) {
  ObjectId id;
  if (absl::Status read = ReadId(call, id); !read.ok()) {
    return call.Finish(std::move(read));
  }
  const absl::StatusOr<ObjectTable::Object> object =
      ObjectsOf(call.agent()).Find(id, call.peer().key, nullptr);
  if (!object.ok()) return call.Finish(object.status());
  if (object->encode == nullptr) {
    return call.Finish(
        absl::UnimplementedError("the object's type has no Codec"));
  }
  FinishEncoded(call, [&](Encoder& encoder) {
    return object->encode(object->value.get(), encoder);
  });
}

void ServeRelease(ServedCall& call) {
  ObjectId id;
  absl::Status status = ReadId(call, id);
  if (status.ok()) {
    // Its destructor is user code, and runs here.
    status = CatchToStatus(
        [&] { return ObjectsOf(call.agent()).Release(id, call.peer().key); });
  }
  if (!status.ok()) return call.Finish(std::move(status));
  call.Finish(Slices());
}

void ReleaseUnlessKnown(const Target& target, uint64_t call,
                        const absl::Status& end) {
  if (!OutcomeUnknown(end)) return;
  // On its own, for what the making was part of has perhaps ended; nobody waits
  // for it. Again, until it is answered or the worker is gone: a partition may
  // outlast one attempt.
  const ObjectId object = MadeBy(target, call);
  ReleaseAsync(Handle<void>(Alone(target), object))
      .OnReady([alone = Alone(target), object](const absl::Status& released) {
        if (!absl::IsUnavailable(released)) return;
        RetryPolicy policy;
        policy.max_attempts = std::numeric_limits<int>::max();
        (void)ReleaseAsync(Handle<void>(
            alone.WithTimeout(absl::InfiniteDuration()).WithRetry(policy),
            object));
      });
}

}  // namespace weft::rpc::internal
