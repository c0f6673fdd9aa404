// Little-endian words in bytes.

#ifndef WEFT_CHECKPOINT_LITTLE_ENDIAN_H_
#define WEFT_CHECKPOINT_LITTLE_ENDIAN_H_

#include <cstdint>
#include <string>

namespace weft::checkpoint {

inline uint64_t LoadLittleEndian64(const char* bytes) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) {
    word = word << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return word;
}

inline std::string LittleEndian64(uint64_t word) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(word >> 8 * i));
  return bytes;
}

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_LITTLE_ENDIAN_H_
