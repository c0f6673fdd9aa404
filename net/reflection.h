// Reflection: tells gRPC tools which services an endpoint has, by
// grpc.reflection.v1alpha.

#ifndef WEFT_NET_REFLECTION_H_
#define WEFT_NET_REFLECTION_H_

#include <functional>
#include <set>
#include <string>

#include "weft/net/endpoint.h"

namespace weft::net {

inline constexpr char kReflectionMethod[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// Open to callers on unix sockets and to role admin; others get
// kPermissionDenied. `services` is called on the Loop, for each request.
Endpoint::StreamAcceptor ReflectionAcceptor(
    std::function<std::set<std::string>()> services);

}  // namespace weft::net

#endif  // WEFT_NET_REFLECTION_H_
