// idx_fuzz: no bytes harm the IDX parser, gzipped or not.

#include "weft/input/idx.h"
#include "weft/input/read_file.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  using std::string_literals::operator""s;
  return {
      "\0\0\x08\x01\0\0\0\x03"s + "abc",
      "\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02"s + "abcd",
      "\0\0\x0b\x01\0\0\0\x02"s + "abcd", "\0\0\x0c\x01\0\0\0\x01"s + "abcd",
      "\0\0\x0d\x02\0\0\0\x01\0\0\0\x01"s + "abcd", "\0\0\x0e\0"s + "abcdefgh",
      // gzip of an IDX file of three bytes
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60"
      "\x64\x60\x60\x60\x4e\x4c\x4a\x06\x00\x54\x24\x25\xc4\x0b"
      "\x00\x00\x00"s};
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\x7f\xff\xff\xff"s, "\xff\xff\xff\xff"s, "\x80\0\0\0"s, "\0\0\0\0"s,
          "\0\0\0\x01"s};
}

void Run(absl::string_view bytes) {
  absl::StatusOr<std::string> unpacked;
  if (input::IsGzip(bytes)) {
    unpacked = input::GunzipIdx(bytes, 1 << 20, "fuzz");
    if (!unpacked.ok()) return;
    bytes = *unpacked;
  }
  const auto tensor = input::ParseIdx(bytes, "fuzz");
  // What is accepted was all there: no element takes less than a byte.
  Hold(!tensor.ok() || tensor->numel() <= static_cast<int64_t>(bytes.size()));
}

WEFT_FUZZ_TARGET(idx, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
