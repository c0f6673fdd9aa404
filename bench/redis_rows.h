// RedisRows: a redis-server of this run as a rival of a sparse table: rows by
// 8-byte keys, written by MSET and read by MGET over a unix socket.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_BENCH_REDIS_ROWS_H_
#define WEFT_BENCH_REDIS_ROWS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::bench {

class RedisRows {
 public:
  // Starts a server pinned to `core`, without persistence, whose socket is in
  // `directory`. Null if there is none: one line on standard error then says
  // how to get it.
  static std::unique_ptr<RedisRows> Start(const std::string& directory,
                                          int core);
  ~RedisRows();

  std::string version() const { return version_; }

  // Rows of `dim` floats, in commands of at most 10,000 keys. False if the
  // server failed.
  bool Push(const std::vector<int64_t>& keys, const std::vector<float>& rows,
            int64_t dim);
  bool Pull(const std::vector<int64_t>& keys, int64_t dim,
            std::vector<float>& rows);

 private:
  bool PushSome(const int64_t* keys, size_t n, const float* rows, int64_t dim);
  bool PullSome(const int64_t* keys, size_t n, float* rows, int64_t dim);
  RedisRows(pid_t server, int socket) : server_(server), socket_(socket) {}
  bool Send();
  // The next line, without its end; or so many bytes.
  bool ReadLine(std::string& line);
  bool ReadBytes(size_t n, char* to);
  bool Fill();

  const pid_t server_;
  const int socket_;
  std::string version_;
  std::string request_;
  std::vector<char> buffer_ = std::vector<char>(1 << 20);
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace weft::bench

#endif  // WEFT_BENCH_REDIS_ROWS_H_
