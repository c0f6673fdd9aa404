// The numbers, types and limits of the fields that wire.h's messages have:
// what their writer and their reader agree upon.

#ifndef WEFT_RPC_CONNECTION_WIRE_FORMAT_H_
#define WEFT_RPC_CONNECTION_WIRE_FORMAT_H_

#include <cstddef>
#include <cstdint>

namespace weft::rpc::internal {

// Protobuf's wire types.
inline constexpr uint64_t kVarint = 0;
inline constexpr uint64_t kFixed64 = 1;
inline constexpr uint64_t kBytes = 2;
inline constexpr uint64_t kFixed32 = 5;

inline constexpr int kBody = 15;
inline constexpr int kMemory = 14;
inline constexpr uint64_t kMaxId = uint64_t{1} << 62;
inline constexpr size_t kMaxText = 64 << 10;
inline constexpr size_t kMaxDetails = 16;  // payloads of a status

// The tag before a field.
constexpr uint64_t Tag(int number, uint64_t type) {
  return static_cast<uint64_t>(number) << 3 | type;
}

// The kind of Memory; by kinds from 1 on earlier versions shared memory.
inline constexpr uint8_t kConsumed = 5;

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_CONNECTION_WIRE_FORMAT_H_
