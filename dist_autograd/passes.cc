#include "weft/dist_autograd/passes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {

namespace {

// For all parts together. One that runs a node answers once that has run.
constexpr absl::Duration kLongestLook = absl::Milliseconds(250);

// Where the gradients of a pass come in, or why it cannot begin.
absl::StatusOr<std::vector<Participation::Root>> RootsOf(
    absl::Span<const Variable> roots, const PassOptions& options) {
  if (roots.empty()) {
    return absl::InvalidArgumentError("Backward: no roots were given");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Backward: PassOptions::timeout is ",
        absl::FormatDuration(options.timeout), "; wanted a positive duration"));
  }
  if (!options.seeds.empty() && options.seeds.size() != roots.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Backward: ", options.seeds.size(), " seeds for ",
                     roots.size(), " roots; give one for each, or none"));
  }
  std::vector<Participation::Root> edges;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].requires_grad()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Backward: root ", i,
                       " requires no gradient: nothing was recorded for it"));
    }
    if (options.seeds.empty() && roots[i].numel() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Backward: root ", i, " has ", roots[i].numel(),
          " elements; without seeds each root has one (reduce it, or give its "
          "gradient in PassOptions::seeds)"));
    }
    edges.push_back(
        {roots[i].edge(),
         options.seeds.empty()
             ? Gradient(Tensor::Ones(roots[i].shape(), roots[i].dtype(),
                                     roots[i].value().device()))
             : options.seeds[i]});
  }
  return edges;
}

}  // namespace

Passes::Passes(std::shared_ptr<WeakAgent> agent,
               std::shared_ptr<const ContextTable> contexts,
               std::shared_ptr<Executor> executor)
    : agent_(std::move(agent)),
      contexts_(std::move(contexts)),
      executor_(std::move(executor)) {}

absl::StatusOr<std::shared_ptr<Participation>> Passes::Join(ContextId context,
                                                            PassId pass) {
  // A context or a worker that ends is looked for under the lock: who ends it
  // takes the lock afterwards, and finds the new part.
  MutexLock lock(mu_);
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> found,
                        contexts_->Find(context));
  std::shared_ptr<Participation>& part = parts_[{context, pass}];
  if (part == nullptr) {
    if (contexts_->IsGone(pass.root)) {
      parts_.erase({context, pass});
      return absl::UnavailableError(
          absl::StrCat("worker ", pass.root.ToString(), ", which began ",
                       pass.ToString(), ", is gone"));
    }
    part = std::make_shared<Participation>(agent_, executor_, found, pass);
  }
  return part;
}

absl::StatusOr<std::shared_ptr<RootPass>> Passes::FindRoot(ContextId context,
                                                           PassId pass) const {
  MutexLock lock(mu_);
  const auto it = roots_.find({context, pass});
  if (it != roots_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat(pass.ToString(), " is not open at worker ", agent_->name()));
}

void Passes::ContextEnded(ContextId id) {
  std::vector<std::shared_ptr<Participation>> parts;
  std::vector<std::shared_ptr<RootPass>> roots;
  {
    MutexLock lock(mu_);
    for (auto part = parts_.begin(); part != parts_.end();) {
      const bool ends = part->first.first == id;
      if (ends) parts.push_back(part->second);
      part = ends ? parts_.erase(part) : std::next(part);
    }
    for (const auto& [pass, root] : roots_) {
      if (pass.first == id) roots.push_back(root);
    }
  }
  const absl::Status why = absl::FailedPreconditionError(
      absl::StrCat(id.ToString(), " was released in the middle of a pass"));
  for (const auto& root : roots) {
    root->Post([why](RootPass& pass) { pass.Abandon(why); });
  }
  for (const auto& part : parts) {
    part->Post([why](Participation& p) { p.Abandon(why); });
  }
}

void Passes::PeerGone(WorkerKey last) {
  std::vector<std::shared_ptr<Participation>> parts;
  std::vector<std::shared_ptr<RootPass>> roots;
  {
    MutexLock lock(mu_);
    for (const auto& [pass, part] : parts_) parts.push_back(part);
    for (const auto& [pass, root] : roots_) roots.push_back(root);
  }
  for (const auto& root : roots) {
    root->Post([last](RootPass& pass) { pass.OnPeerGone(last); });
  }
  for (const auto& part : parts) {
    part->Post([last](Participation& p) { p.OnPeerGone(last); });
  }
}

Future<PassReport> Passes::Begin(const std::shared_ptr<Context>& context,
                                 absl::Span<const Variable> roots,
                                 const PassOptions& options) {
  absl::StatusOr<std::vector<Participation::Root>> edges =
      RootsOf(roots, options);
  if (!edges.ok()) return MakeReady<PassReport>(edges.status());
  std::vector<Edge> starts;
  for (const Participation::Root& root : *edges) starts.push_back(root.edge);
  absl::StatusOr<MessageSet> live = context->LineageOf(starts);
  if (!live.ok()) return MakeReady<PassReport>(live.status());
  std::vector<WorkerKey> shortened;
  if (options.mode == PassMode::kFast) {
    live->Shorten(0);
    live->AddAll(agent_->key());
  } else {
    shortened = live->producers_of_all();
  }
  std::set<WorkerKey> participants = {agent_->key()};
  for (const auto& [producer, intervals] : live->producers()) {
    participants.insert(producer);
  }
  for (const WorkerKey worker : participants) {
    if (!contexts_->IsGone(worker)) continue;
    return MakeReady<PassReport>(GraphLost(context->id(), worker));
  }
  context->AddReached(participants);
  const PassId pass{agent_->key(), ++last_pass_};
  absl::StatusOr<std::shared_ptr<Participation>> own =
      Join(context->id(), pass);
  if (!own.ok()) return MakeReady<PassReport>(own.status());
  auto root = std::make_shared<RootPass>(
      agent_, executor_, context, pass, *std::move(live), options,
      std::vector<WorkerKey>(participants.begin(), participants.end()),
      std::move(shortened));
  const Key key{context->id(), pass};
  {
    MutexLock lock(mu_);
    roots_[key] = root;
  }
  root->end().OnReady([weak = weak_from_this(), key](const absl::Status&) {
    const std::shared_ptr<Passes> all = weak.lock();
    if (all == nullptr) return;
    MutexLock lock(all->mu_);
    all->roots_.erase(key);
  });
  return root->Start(*std::move(own), *std::move(edges));
}

int64_t Passes::open() const {
  MutexLock lock(mu_);
  auto open = static_cast<int64_t>(roots_.size());
  for (const auto& [pass, part] : parts_) open += !part->is_over();
  return open;
}

std::vector<std::string> Passes::Explain() const {
  std::vector<std::pair<Key, std::shared_ptr<Participation>>> parts;
  {
    MutexLock lock(mu_);
    for (const auto& [key, part] : parts_) {
      if (!part->is_over()) parts.emplace_back(key, part);
    }
  }
  struct Asked {
    std::string name;
    Future<std::string> line;
  };
  std::vector<Asked> asked;
  for (const auto& [key, part] : parts) {
    const auto promise = std::make_shared<Promise<std::string>>();
    part->Post([promise](Participation& p) { promise->Set(p.Describe()); });
    asked.push_back(
        {absl::StrCat(key.second.ToString(), " in ", key.first.ToString()),
         promise->future()});
  }
  const Instant deadline = SteadyClock().Now() + kLongestLook;
  std::vector<std::string> lines;
  for (const Asked& one : asked) {
    const auto line = one.line.Wait(
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
    lines.push_back(absl::StrCat(
        one.name, line.ok() ? *line : ": is running a node of its graph"));
  }
  return lines;
}

}  // namespace weft::dist_autograd
