#include "weft/bench/goals.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "nlohmann/json.hpp"
#include "weft/bench/measure.h"

namespace weft::bench {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs both on a core of its own and waits for them.
void OnTwoCores(const std::function<void()>& a,
                const std::function<void()>& b) {
  std::thread first([&] {
    Pin(0);
    a();
  });
  std::thread second([&] {
    Pin(1);
    b();
  });
  first.join();
  second.join();
}

double MemcpyTwoCores() {
  constexpr size_t kBytes = size_t{16} << 20;
  constexpr int kCopies = 12;
  std::atomic<int> ready{0};
  double seconds[2] = {0, 0};
  const auto copy = [&](int which) {
    std::vector<char> from(kBytes, 1), to(kBytes, 2);
    ++ready;
    while (ready < 2) sched_yield();
    const double begin = Now();
    for (int i = 0; i < kCopies; ++i) {
      std::memcpy(to.data(), from.data(), kBytes);
      from[i] = to[i + 1];
    }
    seconds[which] = Now() - begin;
  };
  OnTwoCores([&] { copy(0); }, [&] { copy(1); });
  return 2.0 * kCopies * kBytes / std::max(seconds[0], seconds[1]) / 1e9;
}

double SpinRoundTrip() {
  constexpr int kTrips = 100000;
  alignas(64) std::atomic<int> turn{0};
  double seconds = 0;
  const double give_up = Now() + 5;
  const auto wait_for = [&](int value) {
    int spins = 0;
    while (turn.load(std::memory_order_acquire) != value) {
      if (++spins % 4096 == 0 && Now() > give_up) return;
    }
  };
  OnTwoCores(
      [&] {
        const double begin = Now();
        for (int i = 0; i < kTrips; ++i) {
          turn.store(2 * i + 1, std::memory_order_release);
          wait_for(2 * i + 2);
        }
        seconds = Now() - begin;
      },
      [&] {
        for (int i = 0; i < kTrips; ++i) {
          wait_for(2 * i + 1);
          turn.store(2 * i + 2, std::memory_order_release);
        }
      });
  return seconds / kTrips * 1e6;
}

// Both ends of a loopback connection, not blocking; -1 if there is none.
std::pair<int, int> TcpPair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  std::pair<int, int> ends{-1, -1};
  if (bind(listener, any, size) == 0 && listen(listener, 1) == 0 &&
      getsockname(listener, any, &size) == 0) {
    ends.first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(ends.first, any, size) == 0) {
      ends.second = accept(listener, nullptr, nullptr);
    }
  }
  close(listener);
  for (int end : {ends.first, ends.second}) {
    const int on = 1;
    if (end < 0) continue;
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
  return ends;
}

double TcpRoundTrip() {
  constexpr int kTrips = 20000;
  const auto [a, b] = TcpPair();
  if (b < 0) return 0;
  const double give_up = Now() + 5;
  const auto receive = [give_up](int end) {
    char message[64];
    while (Now() < give_up && recv(end, message, sizeof message, 0) <= 0) {
    }
  };
  const auto transmit = [](int end) {
    const char message[64] = {};
    return send(end, message, sizeof message, MSG_NOSIGNAL) > 0;
  };
  double seconds = 0;
  OnTwoCores(
      [&, a = a] {
        const double begin = Now();
        for (int i = 0; i < kTrips && transmit(a); ++i) receive(a);
        seconds = Now() - begin;
      },
      [&, b = b] {
        for (int i = 0; i < kTrips; ++i) {
          receive(b);
          transmit(b);
        }
      });
  close(a);
  close(b);
  return seconds / kTrips * 1e6;
}

bool Near(double before, double after) {
  return after > 0.75 * before && after < 1.25 * before;
}

nlohmann::ordered_json AsJson(const Control& control) {
  return {{"memcpy_two_cores_gb_s", control.memcpy_two_cores_gb_s},
          {"spin_round_trip_us", control.spin_round_trip_us},
          {"tcp_round_trip_us", control.tcp_round_trip_us}};
}

}  // namespace

bool Agree(const Control& before, const Control& after) {
  return Near(before.memcpy_two_cores_gb_s, after.memcpy_two_cores_gb_s) &&
         Near(before.spin_round_trip_us, after.spin_round_trip_us) &&
         Near(before.tcp_round_trip_us, after.tcp_round_trip_us);
}

Control MeasureControl() {
  std::vector<double> memcpy_rates, spins, trips;
  for (int i = 0; i < 3; ++i) {
    memcpy_rates.push_back(MemcpyTwoCores());
    spins.push_back(SpinRoundTrip());
    trips.push_back(TcpRoundTrip());
  }
  return {Median(memcpy_rates), Median(spins), Median(trips)};
}

GoalReport::GoalReport(std::vector<std::string> wanted)
    : wanted_([&] {
        wanted.erase(std::remove(wanted.begin(), wanted.end(), ""),
                     wanted.end());
        return wanted;
      }()) {}

bool GoalReport::Wants(const std::string& goal) const {
  return wanted_.empty() ||
         std::find(wanted_.begin(), wanted_.end(), goal) != wanted_.end();
}

void GoalReport::Begin() { before_ = MeasureControl(); }

void GoalReport::Add(const GoalCase& c) {
  if (Wants(c.goal)) rows_.push_back(c);
}

void GoalReport::End() {
  const Control after = MeasureControl();
  for (const GoalCase& c : std::exchange(rows_, {})) Print(c, after);
}

void GoalReport::Print(const GoalCase& c, const Control& after) {
  const bool control_ok = Agree(before_, after);
  nlohmann::ordered_json row = {{"goal", c.goal},
                                {"case", c.name},
                                {"higher_is_better", c.higher_is_better},
                                {"weft", c.weft},
                                {"peer", nullptr},
                                {"peer_name", c.peer_name},
                                {"peer_version", c.peer_version},
                                {"ratio", nullptr},
                                {"must", c.must},
                                {"aim", c.aim},
                                {"met", false},
                                {"aim_met", false},
                                {"control_ok", control_ok},
                                {"control_before", AsJson(before_)},
                                {"control_after", AsJson(after)}};
  bool met = false;
  bool aim_met = false;
  if (c.peer.has_value() && *c.peer > 0 && c.weft > 0) {
    const double ratio =
        c.higher_is_better ? c.weft / *c.peer : *c.peer / c.weft;
    met = ratio >= c.must;
    aim_met = ratio >= c.aim;
    row["peer"] = *c.peer;
    row["ratio"] = ratio;
    row["met"] = met;
    row["aim_met"] = aim_met;
  }
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);

  auto summary =
      std::find_if(summaries_.begin(), summaries_.end(),
                   [&](const Summary& s) { return s.goal == c.goal; });
  if (summary == summaries_.end()) {
    summary = summaries_.insert(summaries_.end(), Summary{c.goal});
  }
  summary->met = summary->met && met;
  summary->aim_met = summary->aim_met && aim_met;
  summary->control_ok = summary->control_ok && control_ok;
}

void GoalReport::Finish() {
  for (const Summary& s : summaries_) {
    const nlohmann::ordered_json row = {{"goal", s.goal},
                                        {"case", "all"},
                                        {"met", s.met},
                                        {"aim_met", s.aim_met},
                                        {"control_ok", s.control_ok}};
    std::printf("%s\n", row.dump().c_str());
  }
}

}  // namespace weft::bench
