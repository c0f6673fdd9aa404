// Gzip: packs bytes as a gzip stream, for tests of what reads such streams.

#ifndef WEFT_INPUT_GZIP_FIXTURE_H_
#define WEFT_INPUT_GZIP_FIXTURE_H_

#include <zlib.h>

#include <string>

#include "gtest/gtest.h"

namespace weft::input {

inline std::string Gzip(const std::string& bytes) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8,
                         Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = bytes.size();
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = packed.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace weft::input

#endif  // WEFT_INPUT_GZIP_FIXTURE_H_
