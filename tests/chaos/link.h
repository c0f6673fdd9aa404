// Link: a way over TCP to a port of this host that a test can cut, as a network
// is cut: nobody is told, connections stay, and what was sent arrives once the
// link is whole again.

#ifndef WEFT_TESTS_CHAOS_LINK_H_
#define WEFT_TESTS_CHAOS_LINK_H_

#include <atomic>
#include <list>
#include <string>
#include <thread>

namespace weft::testing {

class Link {
 public:
  // Listens on a port of 127.0.0.1 of its own, and passes each connection on to
  // `to_port`. REQUIRES: this host has a port left.
  explicit Link(int to_port);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int port() const { return port_; }
  // While it is cut nothing passes, and nobody connects.
  void Cut(bool is_cut);

 private:
  // What was read from one end, and the other has not taken yet.
  struct Way {
    int from = -1;
    int to = -1;
    std::string bytes;
  };
  struct Connection {
    Way ways[2];
    bool is_open = true;
  };

  void Run();
  void Accept();
  static void Pass(short events_from, short events_to, Way& way,
                   Connection& connection);

  const int to_port_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd: is_cut_ or ends_ has changed
  int port_ = 0;
  std::atomic<bool> is_cut_{false};
  std::atomic<bool> ends_{false};
  std::list<Connection> connections_;  // of thread_
  std::thread thread_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_CHAOS_LINK_H_
