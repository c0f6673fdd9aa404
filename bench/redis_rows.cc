#include "weft/bench/redis_rows.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weft/bench/measure.h"

namespace weft::bench {
namespace {

constexpr char kProgram[] = "/usr/bin/redis-server";
constexpr double kStartSeconds = 5;
// Redis takes about a million words in a command.
constexpr size_t kMostKeys = 10000;

std::string Version() {
  FILE* pipe = popen("/usr/bin/redis-server --version 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  char line[256] = "";
  (void)!fgets(line, sizeof line, pipe);
  pclose(pipe);
  const char* version = std::strstr(line, "v=");
  return version == nullptr
             ? ""
             : std::string(version + 2, std::strcspn(version + 2, " "));
}

pid_t StartServer(const std::string& path, int core) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(core);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, 1);
  dup2(null, 2);
  execl(kProgram, kProgram, "--port", "0", "--unixsocket", path.c_str(),
        "--save", "", "--appendonly", "no", nullptr);
  _exit(127);
}

int Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return -1;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  for (const double end = Now() + kStartSeconds; Now() < end;) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) ==
        0) {
      return fd;
    }
    close(fd);
    usleep(10000);
  }
  return -1;
}

void AppendBulk(std::string& to, const void* bytes, size_t n) {
  to += '$';
  to += std::to_string(n);
  to += "\r\n";
  to.append(static_cast<const char*>(bytes), n);
  to += "\r\n";
}

}  // namespace

std::unique_ptr<RedisRows> RedisRows::Start(const std::string& directory,
                                            int core) {
  if (access(kProgram, X_OK) != 0) {
    std::fprintf(stderr,
                 "redis-server is absent: apt-get install redis-server\n");
    return nullptr;
  }
  const std::string path = directory + "/redis";
  const pid_t server = StartServer(path, core);
  const int socket = Connect(path);
  if (socket < 0) {
    std::fprintf(stderr, "redis-server did not start\n");
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
    return nullptr;
  }
  std::unique_ptr<RedisRows> rows(new RedisRows(server, socket));
  rows->version_ = Version();
  return rows;
}

RedisRows::~RedisRows() {
  close(socket_);
  kill(server_, SIGKILL);
  waitpid(server_, nullptr, 0);
}

bool RedisRows::Send() {
  for (size_t at = 0; at < request_.size();) {
    const ssize_t sent =
        send(socket_, request_.data() + at, request_.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

bool RedisRows::Fill() {
  begin_ = 0;
  const ssize_t got = recv(socket_, buffer_.data(), buffer_.size(), 0);
  end_ = got > 0 ? static_cast<size_t>(got) : 0;
  return got > 0;
}

bool RedisRows::ReadLine(std::string& line) {
  line.clear();
  for (;;) {
    if (begin_ == end_ && !Fill()) return false;
    const char c = buffer_[begin_++];
    if (c == '\n') return true;
    if (c != '\r') line += c;
  }
}

bool RedisRows::ReadBytes(size_t n, char* to) {
  while (n > 0) {
    if (begin_ == end_ && !Fill()) return false;
    const size_t part = std::min(n, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, part);
    begin_ += part;
    to += part;
    n -= part;
  }
  return true;
}

bool RedisRows::Push(const std::vector<int64_t>& keys,
                     const std::vector<float>& rows, int64_t dim) {
  for (size_t at = 0; at < keys.size(); at += kMostKeys) {
    const size_t n = std::min(kMostKeys, keys.size() - at);
    if (!PushSome(&keys[at], n, &rows[at * dim], dim)) return false;
  }
  return true;
}

bool RedisRows::PushSome(const int64_t* keys, size_t n, const float* rows,
                         int64_t dim) {
  request_ = "*" + std::to_string(1 + 2 * n) + "\r\n";
  AppendBulk(request_, "MSET", 4);
  for (size_t i = 0; i < n; ++i) {
    AppendBulk(request_, &keys[i], sizeof keys[i]);
    AppendBulk(request_, rows + i * dim, dim * sizeof(float));
  }
  std::string line;
  return Send() && ReadLine(line) && line == "+OK";
}

bool RedisRows::Pull(const std::vector<int64_t>& keys, int64_t dim,
                     std::vector<float>& rows) {
  rows.resize(keys.size() * dim);
  for (size_t at = 0; at < keys.size(); at += kMostKeys) {
    const size_t n = std::min(kMostKeys, keys.size() - at);
    if (!PullSome(&keys[at], n, &rows[at * dim], dim)) return false;
  }
  return true;
}

bool RedisRows::PullSome(const int64_t* keys, size_t n, float* rows,
                         int64_t dim) {
  request_ = "*" + std::to_string(1 + n) + "\r\n";
  AppendBulk(request_, "MGET", 4);
  for (size_t i = 0; i < n; ++i) AppendBulk(request_, &keys[i], sizeof keys[i]);
  const std::string row = "$" + std::to_string(dim * sizeof(float));
  std::string line;
  if (!Send() || !ReadLine(line) || line != "*" + std::to_string(n)) {
    return false;
  }
  char end[2];
  for (size_t i = 0; i < n; ++i) {
    if (!ReadLine(line) || line != row ||
        !ReadBytes(dim * sizeof(float),
                   reinterpret_cast<char*>(rows + i * dim)) ||
        !ReadBytes(sizeof end, end)) {
      return false;
    }
  }
  return true;
}

}  // namespace weft::bench
