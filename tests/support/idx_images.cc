#include "weft/tests/support/idx_images.h"

#include <fstream>

#include "weft/base/check.h"

namespace weft::testing {
namespace {

constexpr int kClasses = 10;

std::string BigEndian(int64_t word) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(word >> shift & 0xff));
  }
  return bytes;
}

// The next of a sequence that is the same on every machine.
uint32_t Draw(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.flush();
  WEFT_CHECK(file.good()) << path;
}

}  // namespace

void WriteIdxImages(const std::string& stem, int64_t images, int side) {
  std::string pixels = std::string("\0\0\x08\x03", 4) + BigEndian(images) +
                       BigEndian(side) + BigEndian(side);
  std::string labels = std::string("\0\0\x08\x01", 4) + BigEndian(images);
  uint32_t noise = static_cast<uint32_t>(images);
  for (int64_t i = 0; i < images; ++i) {
    const int label = static_cast<int>(i % kClasses);
    uint32_t pattern = 77u * (label + 1);
    for (int p = 0; p < side * side; ++p) {
      const bool is_bright = Draw(pattern) % 2 == 0;
      pixels.push_back(
          static_cast<char>((is_bright ? 150 : 30) + Draw(noise) % 70));
    }
    labels.push_back(static_cast<char>(label));
  }
  WriteFile(stem + "-images-idx3-ubyte", pixels);
  WriteFile(stem + "-labels-idx1-ubyte", labels);
}

}  // namespace weft::testing
