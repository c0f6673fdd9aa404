#include "weft/autograd/sum_order.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/graph_task.h"
#include "weft/autograd/node.h"

namespace weft {
namespace {

uint64_t Pack(uint32_t high, uint32_t low) {
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace

SumOrder::SumOrder(const GraphTask& task) {
  uint32_t results = 0, edges = 0;
  for (const GraphTask::Place& place : task.places_) {
    first_result_.push_back(results);
    first_edge_.push_back(edges);
    results += static_cast<uint32_t>(place.node->num_outputs());
    edges += static_cast<uint32_t>(place.node->edges().size());
  }
  results_.resize(results);
  numbers_.resize(edges);
  Number(task);
  for (const Edge& entry : task.entries_) {
    ++results_[first_result_[task.PlaceOf(*entry.node)] + entry.output].unfed;
  }
  for (const auto& [place, output] : task.fed_) {
    --results_[first_result_[place] + output].unfed;
  }
}

// Runs the schedule of GraphTask::RunReady as if all had been fed.
void SumOrder::Number(const GraphTask& task) {
  std::vector<uint32_t> awaited(first_edge_.size());
  for (const GraphTask::Place& place : task.places_) {
    for (const Edge& edge : place.node->edges()) {
      if (edge.node) ++awaited[task.PlaceOf(*edge.node)];
    }
  }
  std::vector<uint64_t> ready;
  const auto push = [&](uint32_t place) {
    ready.push_back(Pack(GraphTask::RankOf(*task.places_[place].node), ~place));
    std::push_heap(ready.begin(), ready.end());
  };
  for (uint32_t place = 0; place < awaited.size(); ++place) {
    if (awaited[place] == 0) push(place);
  }
  std::vector<uint32_t> numbered(results_.size());
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end());
    const uint32_t source = ~static_cast<uint32_t>(ready.back());
    ready.pop_back();
    uint32_t* number = numbers_.data() + first_edge_[source];
    for (const Edge& edge : task.places_[source].node->edges()) {
      if (edge.node) {
        const uint32_t place = task.PlaceOf(*edge.node);
        *number = numbered[first_result_[place] + edge.output]++;
        if (--awaited[place] == 0) push(place);
      }
      ++number;
    }
  }
}

void SumOrder::AddFed(uint32_t place, uint32_t output, Gradient gradient,
                      Gradient& sum) {
  const uint32_t at = first_result_[place] + output;
  sum.Add(std::move(gradient));
  --results_[at].unfed;
  AddWaiting(at, sum);
}

void SumOrder::AddFrom(uint32_t source, size_t input, uint32_t place,
                       uint32_t output, Gradient gradient, Gradient& sum) {
  const uint32_t at = first_result_[place] + output;
  const uint32_t number = numbers_[first_edge_[source] + input];
  Result& result = results_[at];
  if (result.unfed == 0 && number == result.next) {
    sum.Add(std::move(gradient));
    ++result.next;
  } else {
    early_[Pack(at, number)] = std::move(gradient);
    ++result.waiting;
  }
  AddWaiting(at, sum);
}

void SumOrder::AddWaiting(uint32_t at, Gradient& sum) {
  Result& result = results_[at];
  while (result.unfed == 0 && result.waiting > 0) {
    const auto it = early_.find(Pack(at, result.next));
    if (it == early_.end()) return;
    sum.Add(std::move(it->second));
    early_.erase(it);
    ++result.next;
    --result.waiting;
  }
}

bool SumOrder::IsWaiting(uint32_t place, uint32_t output) const {
  return results_[first_result_[place] + output].waiting > 0;
}

}  // namespace weft
