// StreamReader: for fuzz targets, the end of a stream whose peer reads all at
// once.

#ifndef WEFT_TESTS_FUZZ_STREAM_READER_H_
#define WEFT_TESTS_FUZZ_STREAM_READER_H_

#include <memory>
#include <string>
#include <utility>

#include "weft/net/endpoint.h"
#include "weft/net/stream.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {

// Each answer must be an Answer.
template <typename Answer>
class StreamReader final : public net::Stream {
 public:
  StreamReader() { peer_.is_local = true; }
  bool Write(Slices message) override {
    Answer answer;
    const Bytes bytes = Flatten(message);
    Hold(answer.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
    return true;
  }
  void Close(absl::Status) override {}
  const net::Peer& peer() const override { return peer_; }
  const std::string& method() const override { return method_; }
  const net::Metadata& metadata() const override { return metadata_; }

 private:
  net::Peer peer_;
  const std::string method_;
  const net::Metadata metadata_;
};

// Two messages: all of the input, and its first half.
template <typename Answer>
void TellStream(net::Endpoint::StreamAcceptor& acceptor,
                absl::string_view input) {
  const auto observer = acceptor(std::make_unique<StreamReader<Answer>>());
  Hold(observer.ok());
  (*observer)->OnMessage({Bytes::Copy(input)});
  (*observer)->OnWritten();
  (*observer)->OnMessage({Bytes::Copy(input.substr(0, input.size() / 2))});
  (*observer)->OnWritten();
  (*observer)->OnClosed(absl::OkStatus());
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_FUZZ_STREAM_READER_H_
