// actor_learner: reinforcement learning with one learner and many actors, which
// balance a pole on a cart, simulated here. One program for all roles:
//
//   weft run --role ps=1:actor_learner --role trainer=4:actor_learner
//
// ps0 learns by REINFORCE; in each round every trainer is called with the
// policy, plays, and returns what it saw. Solved, as Gym says it of
// CartPole-v0, once 100 episodes last 195 of 200 steps in the mean.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;

constexpr absl::Duration kTimeout = absl::Minutes(5);
constexpr int64_t kHidden = 32, kMaxSteps = 200, kEpisodesPerCall = 4;

// [n, 4] -> [n, 2], of weights [4, h], [h], [h, 2].
Variable Logits(const std::vector<Variable>& w, const Variable& states) {
  return weft::MatMul(weft::Tanh(weft::MatMul(states, w[0]) + w[1]), w[2]);
}

// As in Barto, Sutton and Anderson (1983).
struct CartPole {
  float x = 0, v = 0, angle = 0, spin = 0;
  // Pushes it for 20 ms; whether the pole still stands.
  bool Push(bool right) {
    const float force = right ? 10.0f : -10.0f;
    const float sine = std::sin(angle), cosine = std::cos(angle);
    const float push = (force + 0.05f * spin * spin * sine) / 1.1f;
    const float turn = (9.8f * sine - cosine * push) /
                       (0.5f * (4.0f / 3 - 0.1f * cosine * cosine / 1.1f));
    x += 0.02f * v;
    v += 0.02f * (push - 0.05f * turn * cosine / 1.1f);
    angle += 0.02f * spin;
    spin += 0.02f * turn;
    return std::abs(x) < 2.4f && std::abs(angle) < 0.2095f;
  }
};

// Served by actors. For each step of some episodes: the state [n, 4], the
// action as one of two ones [n, 2], its return, discounted [n, 1]; and their
// lengths.
std::vector<Tensor> Play(const std::vector<Tensor>& weights, uint64_t seed) {
  const weft::NoGradScope no_grad;
  const std::vector<Variable> policy(weights.begin(), weights.end());
  weft::Generator random(seed);
  std::vector<float> states, actions, returns;
  std::vector<int64_t> lengths;
  for (int i = 0; i < kEpisodesPerCall; ++i) {
    const auto at = weft::Uniform({4}, -0.05, 0.05, random).ToVector<float>();
    CartPole cart{at[0], at[1], at[2], at[3]};
    int64_t steps = 0;
    for (bool stands = true; stands && steps < kMaxSteps; ++steps) {
      const std::vector<float> seen = {cart.x, cart.v, cart.angle, cart.spin};
      const Variable state(Tensor::FromVector(seen).Reshape({1, 4}));
      const auto z = Logits(policy, state).value().ToVector<float>();
      const bool right = weft::Uniform({1}, 0, 1, random).item<float>() <
                         1 / (1 + std::exp(z[0] - z[1]));
      states.insert(states.end(), seen.begin(), seen.end());
      actions.insert(actions.end(), {right ? 0.0f : 1.0f, right ? 1.0f : 0.0f});
      stands = cart.Push(right);
    }
    for (int64_t left = steps; left > 0; --left)
      returns.push_back(1 - std::pow(0.99f, left));
    lengths.push_back(steps);
  }
  return {Tensor::FromVector(states).Reshape({-1, 4}),
          Tensor::FromVector(actions).Reshape({-1, 2}),
          Tensor::FromVector(returns).Reshape({-1, 1}),
          Tensor::FromVector(lengths)};
}
WEFT_RPC(Play);

absl::Status Learn(const std::vector<Variable>& policy,
                   weft::optimizer::Optimizer& optimizer,
                   const std::vector<std::vector<Tensor>>& played) {
  const auto all = [&](size_t part) {
    std::vector<Tensor> parts;
    for (const auto& one : played) parts.push_back(one[part]);
    return Variable(weft::Concat(parts, 0));
  };
  const Variable returns = all(2);
  const Variable scores = weft::LogSoftmax(Logits(policy, all(0)), 1) * all(1);
  const Variable gain = weft::Sum(scores * (returns - weft::Mean(returns)));
  optimizer.ZeroGrad();
  (gain * (-4.0 / returns.numel())).Backward();
  return optimizer.Step();
}

absl::Status Solve(weft::worker::Worker& worker) {
  weft::Generator random(1);
  const std::vector<Variable> policy = {
      Variable(weft::Normal({4, kHidden}, 0, 0.3, random), true),
      Variable(Tensor::Zeros({kHidden}), true),
      Variable(weft::Normal({kHidden, 2}, 0, 0.1, random), true)};
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::Optimizer::Create(
          {{weft::optimizer::AdamOptions{0.02},
            {{"in", policy[0]}, {"bias", policy[1]}, {"out", policy[2]}}}}));
  std::vector<int64_t> lengths;  // of all episodes
  while (lengths.size() < 8000) {
    const std::vector<Tensor> weights = {policy[0].value(), policy[1].value(),
                                         policy[2].value()};
    std::vector<weft::Future<std::vector<Tensor>>> playing;
    for (int actor = 0; actor < worker.options().trainers; ++actor) {
      playing.push_back(weft::rpc::CallAsync(
          worker.agent().To(absl::StrCat("trainer", actor), kTimeout), Play,
          weights, lengths.size() * 100 + actor));
    }
    std::vector<std::vector<Tensor>> played;
    for (const auto& each : playing) {
      WEFT_ASSIGN_OR_RETURN(played.emplace_back(), each.Wait(kTimeout));
      const auto more = played.back()[3].ToVector<int64_t>();
      lengths.insert(lengths.end(), more.begin(), more.end());
    }
    const auto last = lengths.end() - std::min<size_t>(100, lengths.size());
    const double mean = std::accumulate(last, lengths.end(), 0.0) / 100;
    if (mean >= 195) {
      std::printf("{\"episodes\":%zu,\"mean_return\":%.1f}\n", lengths.size(),
                  mean);
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(Learn(policy, *optimizer, played));
  }
  return absl::InternalError("the pole still falls");
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker);
  weft::ExitIfError((*worker)->AwaitAll("ready", kTimeout));
  if ((*worker)->self().name == "ps0") weft::ExitIfError(Solve(**worker));
  weft::ExitIfError((*worker)->AwaitAll("solved", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
