// PipeEnd: one of the two ends of a connection within the process.

#ifndef WEFT_TRANSPORT_PIPE_END_H_
#define WEFT_TRANSPORT_PIPE_END_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// `Pipe` has bool Write(int side, Slices message), false if one is under way or
// the pipe is closed, void Close(absl::Status), and void Drop(int side), for
// when the end of that side is destroyed.
//
// Thread-safety: as that of `Pipe`.
template <typename Pipe>
class PipeEnd final : public Connection {
 public:
  PipeEnd(std::shared_ptr<Pipe> pipe, int side)
      : pipe_(std::move(pipe)), side_(side) {}
  ~PipeEnd() override { pipe_->Drop(side_); }
  Written Write(Slices message) override {
    return pipe_->Write(side_, std::move(message)) ? Written::kUnderWay
                                                   : Written::kRefused;
  }
  void Close(absl::Status status) override { pipe_->Close(status); }

 private:
  const std::shared_ptr<Pipe> pipe_;
  const int side_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_PIPE_END_H_
