#include "weft/train/state/first_copy.h"

#include <utility>

#include "weft/base/clock.h"
#include "weft/tensor/dtype.h"
#include "weft/train/state/receive_parts.h"

namespace weft::train {
namespace {

// The first tag of its messages.
constexpr uint64_t kFirstCopyTag = 0x57656674'436f7079;
constexpr int64_t kMostParts = int64_t{1} << 20;
constexpr int64_t kNumbers = 6;  // of Told

std::vector<int64_t> NumbersOf(const FirstCopy::Told& told) {
  return {told.kind,  told.share,       told.shares,
          told.steps, told.fingerprint, told.parts};
}

FirstCopy::Told ToldBy(const int64_t* numbers) {
  return {numbers[0], numbers[1], numbers[2],
          numbers[3], numbers[4], numbers[5]};
}

bool IsGiver(const FirstCopy::Told& told) {
  return told.kind == FirstCopy::Told::kGives && told.share >= 0 &&
         told.share < told.shares && told.parts >= 0 &&
         told.parts <= kMostParts;
}

}  // namespace

FirstCopy FirstCopy::OfGiver(std::shared_ptr<GivenShare> given, int64_t steps,
                             uint64_t fingerprint) {
  FirstCopy copy;
  copy.own_ = {Told::kGives,
               given->share(),
               given->shares(),
               steps,
               static_cast<int64_t>(fingerprint),
               given->parts()};
  copy.share_ = std::move(given);
  return copy;
}

FirstCopy FirstCopy::OfTaker(const StateParts& parts, uint64_t fingerprint) {
  FirstCopy copy;
  copy.own_.kind = Told::kTakes;
  copy.own_.fingerprint = static_cast<int64_t>(fingerprint);
  copy.own_.parts = parts.size();
  copy.taken_ = &parts;
  return copy;
}

std::vector<FirstCopy::Transfer> FirstCopy::Plan(
    const std::vector<Told>& told) {
  const int ranks = static_cast<int>(told.size());
  int first = 0;
  while (first < ranks && !IsGiver(told[first])) ++first;
  if (first == ranks) return {};
  const Told& state = told[first];
  std::map<int64_t, int> giver_of;  // by share
  for (int rank = first; rank < ranks; ++rank) {
    const Told& one = told[rank];
    const bool gives_it = IsGiver(one) && one.shares == state.shares &&
                          one.steps == state.steps &&
                          one.fingerprint == state.fingerprint &&
                          one.parts == state.parts;
    if (gives_it) giver_of.emplace(one.share, rank);
  }
  std::vector<Transfer> transfers;
  for (int to = 0; to < ranks; ++to) {
    const bool takes_it = told[to].kind == Told::kTakes &&
                          told[to].fingerprint == state.fingerprint &&
                          told[to].parts == state.parts;
    if (!takes_it) continue;
    for (const auto& [share, from] : giver_of) {
      for (int64_t part = share; part < state.parts; part += state.shares) {
        transfers.push_back({from, to, static_cast<int>(part)});
      }
    }
  }
  return transfers;
}

void FirstCopy::Run(collectives::ProcessGroup& group,
                    absl::FunctionRef<void()> before_taking,
                    absl::FunctionRef<void()> after_taking) {
  if (share_ != nullptr) {
    auto given = share_->Take(SteadyClock().Now() + group.timeout());
    if (!given.has_value()) own_ = Told();
    given_ = std::move(given).value_or(std::map<int, Tensor>());
  }
  const Tensor all = Tensor::Empty({group.size() * kNumbers}, DType::kI64);
  const Tensor own = Tensor::FromVector<int64_t>(NumbersOf(own_));
  if (!group.AllGather(own, all).ok()) return;
  std::vector<Told> told;
  for (int rank = 0; rank < group.size(); ++rank) {
    told.push_back(ToldBy(all.data<int64_t>() + rank * kNumbers));
  }
  const std::vector<Transfer> transfers = Plan(told);
  if (transfers.empty()) return;  // on all ranks
  Move(group, transfers, before_taking, after_taking);
  group.Barrier().IgnoreError();
}

void FirstCopy::Move(collectives::ProcessGroup& group,
                     const std::vector<Transfer>& transfers,
                     absl::FunctionRef<void()> before_taking,
                     absl::FunctionRef<void()> after_taking) {
  std::vector<collectives::PointToPoint> sends;
  std::vector<IncomingPart> incoming;
  for (const Transfer& one : transfers) {
    const uint64_t tag = kFirstCopyTag + static_cast<uint64_t>(one.part);
    if (one.from == group.rank()) {
      sends.push_back(
          {collectives::PointToPoint::kSend, given_.at(one.part), one.to, tag});
    } else if (one.to == group.rank()) {
      if (incoming.empty()) before_taking();
      incoming.push_back({one.part, one.from, tag, taken_->Incoming(one.part)});
    }
  }
  if (!sends.empty()) group.Exchange(sends).IgnoreError();
  if (incoming.empty()) return;
  const auto place = [&](const std::vector<IncomingPart>& some) {
    for (const IncomingPart& one : some) taken_->Place(one.part, one.tensor);
  };
  ReceiveParts(group, incoming, place).IgnoreError();
  after_taking();
}

}  // namespace weft::train
