#include "weft/collectives/core/group_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

// After this many operations a rank tells all others where it is: they can then
// forget the calls that they keep in order to compare them with this rank's.
constexpr int kTellAfter = 256;

// A rank that waits looks more often than this whether another one is silent.
// If it does not, it stood still itself, and has heard nobody meanwhile.
constexpr absl::Duration kLongestLook = absl::Seconds(3);

Frame OfKind(Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  return frame;
}

}  // namespace

GroupCore::GroupCore(GroupCoreOptions options)
    : options_(std::move(options)),
      peers_(options_.size,
             Peer(std::max(options_.max_unasked_bytes, kMostUnaskedBytes))),
      called_(options_.size, options_.rank) {}

void GroupCore::TakeActions(Actions& into) {
  into.todo.clear();
  into.wakes = false;
  into.broken.reset();
  into.report.clear();
  std::swap(into, actions_);
}

std::string GroupCore::NameOf(int peer) const {
  return options_.names.empty() ? absl::StrCat("rank ", peer)
                                : options_.names[peer];
}

// --- The life of a group. ----------------------------------------------------

Frame GroupCore::Hello() const {
  Frame hello = OfKind(Frame::kHello);
  hello.code = static_cast<uint32_t>(rank());
  hello.sequence = static_cast<uint64_t>(size());
  hello.text = options_.group;
  return hello;
}

void GroupCore::SendHello(int peer) {
  Post(peer, Hello());
  for (const auto& [key, why] : ended_shrinks_) {
    Post(peer, EndOfShrinkFrame(key, why, /*is_passed_on=*/true));
  }
  // A peer that comes late would wait for this rank.
  if (!broken_.ok()) Post(peer, AbortFrame(broken_));
  if (has_left_) Post(peer, OfKind(Frame::kLeave));
}

bool GroupCore::Open(int peer) {
  Peer& p = peers_[peer];
  if (!p.gone.ok()) return false;
  p.is_open = true;
  SendHello(peer);
  return true;
}

absl::Status GroupCore::Accept(int peer, const std::string& proven,
                               Instant now) {
  if (peer < 0 || peer >= rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " does not open streams to rank ", rank(),
                     " of group ", options_.group));
  }
  if (!proven.empty() && !options_.names.empty() &&
      proven != options_.names[peer]) {
    return absl::PermissionDeniedError(absl::StrCat(
        "rank ", peer, " of group ", options_.group, " should be ",
        options_.names[peer], ", and its certificate is of ", proven));
  }
  Peer& p = peers_[peer];
  if (p.has_stream) {
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", peer, " has a stream to rank ", rank(), " already"));
  }
  p.has_stream = true;
  p.is_open = true;
  p.heard = now;
  SendHello(peer);
  return absl::OkStatus();
}

void GroupCore::Join(int peer, Instant now) {
  Peer& p = peers_[peer];
  p.is_open = p.has_stream = p.has_said_hello = true;
  p.heard = now;
}

absl::StatusOr<bool> GroupCore::HaveAllCome(bool is_late) const {
  // The caller has a group that can be left for another, as the others have who
  // were quicker.
  if (!broken_.ok()) return true;
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    const Peer& p = peers_[r];
    if (r == rank()) continue;
    const bool was_here = p.has_said_hello || r < rank();
    const bool has_come = p.has_said_hello && p.has_left;  // and gone again
    if (!p.gone.ok() && !has_come && (was_here || is_late)) {
      return absl::UnavailableError(
          absl::StrCat("group ", options_.group, ": rank ", rank(),
                       " has no stream to rank ", r, " (", NameOf(r),
                       "): ", p.gone.ToString()));
    }
    if (!p.has_said_hello) missing.push_back(r);
  }
  if (missing.empty()) return true;
  if (!is_late) return false;
  return absl::DeadlineExceededError(
      absl::StrCat("group ", options_.group, ": ", RankList(missing), " of ",
                   size(), " opened no stream to rank ", rank(), " in time"));
}

std::vector<int> GroupCore::TakeRefused() {
  std::vector<int> refused;
  for (int r = rank() + 1; r < size(); ++r) {
    Peer& p = peers_[r];
    if (p.has_said_hello || p.gone.ok()) continue;
    p.gone = absl::OkStatus();
    refused.push_back(r);
  }
  return refused;
}

void GroupCore::Leave() {
  has_left_ = true;
  actions_.broken.reset();
  ReportIfUnheard();
  // A peer that receives the leave message first must know the cause.
  if (!broken_.ok()) PostToAll(AbortFrame(broken_));
  PostToAll(OfKind(Frame::kLeave));
  for (int r = 0; r < size(); ++r) ReleaseIfOver(r);
}

bool GroupCore::IsDelivered() const {
  return !has_left_ ||
         std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) {
           return !p.is_open || p.knows_of_leave;
         });
}

bool GroupCore::IsOver() const {
  return has_left_ && std::none_of(peers_.begin(), peers_.end(),
                                   [](const Peer& p) { return p.is_open; });
}

void GroupCore::ReleaseIfOver(int peer) {
  Peer& p = peers_[peer];
  const bool is_over =
      !p.gone.ok() || (has_left_ && p.has_left && p.knows_of_leave);
  if (!is_over || !p.is_open) return;
  p.is_open = false;
  Action release;
  release.kind = Action::kRelease;
  release.peer = peer;
  actions_.todo.push_back(std::move(release));
}

Frame GroupCore::AbortFrame(const absl::Status& why) {
  Frame abort = OfKind(Frame::kAbort);
  abort.code = static_cast<uint32_t>(why.code());
  abort.text = std::string(why.message());
  return abort;
}

void GroupCore::Break(const absl::Status& why, bool tell) {
  if (!broken_.ok()) {
    // That others have failed may have come first, and be what follows from a
    // difference in which this rank has part.
    const bool says_more = has_left_ && !is_heard_ &&
                           absl::IsFailedPrecondition(why) &&
                           !absl::IsFailedPrecondition(broken_);
    if (!says_more) return;
    broken_ = why;
    ReportIfUnheard();
    return;
  }
  broken_ = why;
  if (has_left_) {
    ReportIfUnheard();
  } else {
    actions_.broken = why;
  }
  if (tell) PostToAll(AbortFrame(broken_));
  actions_.wakes = true;
}

void GroupCore::ReportIfUnheard() {
  if (!absl::IsFailedPrecondition(broken_) || is_heard_) return;
  is_heard_ = true;
  actions_.report = absl::StrCat("group ", options_.group, ", which rank ",
                                 rank(), " has left: ", broken_.message());
}

void GroupCore::Abort(const absl::Status& why) {
  Break(why, /*tell=*/true);
  is_heard_ = true;  // the caller has an error of its own
}

bool GroupCore::KeepEndOfShrink(uint64_t key, const absl::Status& why) {
  if (!CheckShrink(key).ok()) return false;
  if (ended_shrinks_.size() == kMostShrinks) ended_shrinks_.pop_front();
  ended_shrinks_.emplace_back(key, why);
  return true;
}

void GroupCore::EndShrink(uint64_t key, const absl::Status& why) {
  if (!KeepEndOfShrink(key, why)) return;
  PostToAll(EndOfShrinkFrame(key, why, /*is_passed_on=*/false));
}

Frame GroupCore::EndOfShrinkFrame(uint64_t key, const absl::Status& why,
                                  bool is_passed_on) {
  Frame frame = AbortFrame(why);
  frame.fingerprint = key;
  frame.tag = is_passed_on;
  return frame;
}

absl::Status GroupCore::CheckShrink(uint64_t key) const {
  for (const auto& [ended, why] : ended_shrinks_) {
    if (ended == key) return why;
  }
  return absl::OkStatus();
}

absl::Status GroupCore::Health() {
  is_heard_ = is_heard_ || !broken_.ok();
  return broken_;
}

// --- Frames. -----------------------------------------------------------------

void GroupCore::Post(int peer, Frame frame, bool is_answer) {
  if (!peers_[peer].is_open) return;
  Action post;
  post.peer = peer;
  post.frame = std::move(frame);
  post.is_answer = is_answer;
  actions_.todo.push_back(std::move(post));
}

void GroupCore::PostToAll(const Frame& frame, int but) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && r != but) Post(r, frame);
  }
}

Frame GroupCore::FrameOf(Frame::Kind kind, const Announcement& mine,
                         uint64_t tag) {
  Frame frame = OfKind(kind);
  frame.tag = tag;
  frame.code = mine.is_refused;
  frame.sequence = mine.sequence;
  frame.fingerprint = mine.fingerprint;
  frame.text = mine.text;
  return frame;
}

void GroupCore::Receive(int peer, absl::StatusOr<Frame> frame, Instant now) {
  Peer& p = peers_[peer];
  if (!p.gone.ok()) return;  // its stream ends
  p.heard = now;
  const absl::Status taken =
      frame.ok() ? Take(peer, *std::move(frame)) : frame.status();
  if (!taken.ok()) OnGone(peer, taken);
  actions_.wakes = true;
}

void GroupCore::Close(int peer, const absl::Status& why) {
  OnGone(peer, why);
  actions_.wakes = true;
}

void GroupCore::CloseAll(const absl::Status& why) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    if (peers_[r].gone.ok()) peers_[r].gone = why;
    ReleaseIfOver(r);
  }
  actions_.wakes = true;
}

void GroupCore::OnGone(int peer, const absl::Status& why) {
  Peer& p = peers_[peer];
  if (p.gone.ok()) p.gone = why;
  // A stream that was refused is opened again.
  if (p.has_said_hello || p.has_stream) called_.End(peer);
  ReleaseIfOver(peer);
}

absl::Status GroupCore::Take(int peer, Frame frame) {
  Peer& p = peers_[peer];
  switch (frame.kind) {
    case Frame::kHello:
      return TakeHello(peer, frame);
    case Frame::kAnnounce:
    case Frame::kStatus:
      return TakeAnnouncement(peer, std::move(frame));
    case Frame::kPart: {
      if (!frame.text.empty()) {
        WEFT_RETURN_IF_ERROR(Record(peer, {frame.sequence, frame.fingerprint,
                                           false, std::move(frame.text)}));
      }
      const Announcement* const newest = called_.Last(rank());
      const absl::Status added =
          p.inbox.AddPart(frame, newest == nullptr ? 0 : newest->sequence);
      AckParts(peer);
      return added;
    }
    case Frame::kPartAck:
      return TakeAck(frame.total, p.parts_under_way);
    case Frame::kTransfer:
      return p.inbox.AddTransfer(frame);
    case Frame::kTransferAck:
      return TakeAck(frame.total, p.transfers_under_way);
    case Frame::kAbort: {
      const bool is_code = frame.code > 0 && frame.code <= 16;
      const absl::Status why(is_code ? static_cast<absl::StatusCode>(frame.code)
                                     : absl::StatusCode::kInternal,
                             frame.text);
      if (frame.fingerprint == 0) {
        Break(why, /*tell=*/false);
        return absl::OkStatus();
      }
      // Once: of more ends than a rank keeps, those that it has forgotten would
      // go round for ever.
      if (KeepEndOfShrink(frame.fingerprint, why) && frame.tag == 0) {
        PostToAll(EndOfShrinkFrame(frame.fingerprint, why,
                                   /*is_passed_on=*/true),
                  peer);
      }
      return absl::OkStatus();
    }
    case Frame::kLeave:
      return TakeLeave(peer);
    case Frame::kLeaveAck:
      if (!has_left_) {
        return absl::InvalidArgumentError(
            "it has heard that this rank leaves, which has not left");
      }
      p.knows_of_leave = true;
      ReleaseIfOver(peer);
      return absl::OkStatus();
  }
  return absl::InternalError("no kind of a frame");
}

absl::Status GroupCore::TakeHello(int peer, const Frame& hello) {
  Peer& p = peers_[peer];
  if (p.has_said_hello) {
    return absl::InvalidArgumentError("it says who it is a second time");
  }
  if (hello.code != static_cast<uint32_t>(peer) ||
      hello.text != options_.group ||
      hello.sequence != static_cast<uint64_t>(size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted rank ", peer, " of the ", size(), " of group ",
                     options_.group, ", found rank ", hello.code, " of the ",
                     hello.sequence, " of group ", hello.text));
  }
  p.has_said_hello = true;
  return absl::OkStatus();
}

absl::Status GroupCore::TakeAnnouncement(int peer, Frame frame) {
  // Compared before the answer: if it differs, the asker hears that first.
  if (!frame.text.empty()) {
    WEFT_RETURN_IF_ERROR(
        Record(peer, {frame.sequence, frame.fingerprint, frame.code != 0,
                      std::move(frame.text)}));
  }
  if (frame.kind == Frame::kStatus) {
    Peer& p = peers_[peer];
    p.answered = std::max(p.answered, std::min(frame.tag, p.asked));
    return absl::OkStatus();
  }
  const Announcement* const newest = called_.Last(rank());
  Post(peer,
       FrameOf(Frame::kStatus, newest == nullptr ? Announcement() : *newest,
               frame.tag),
       /*is_answer=*/true);
  return absl::OkStatus();
}

absl::Status GroupCore::TakeLeave(int peer) {
  Peer& p = peers_[peer];
  if (p.has_left) {
    return absl::InvalidArgumentError("it leaves a second time");
  }
  p.has_left = true;
  called_.End(peer);
  Post(peer, OfKind(Frame::kLeaveAck));
  ReleaseIfOver(peer);
  return absl::OkStatus();
}

absl::Status GroupCore::TakeAck(uint64_t bytes, int64_t& under_way) {
  if (bytes > static_cast<uint64_t>(under_way)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an ack is of ", bytes, " bytes, of ", under_way, " that were sent"));
  }
  under_way -= static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

void GroupCore::AckParts(int peer) {
  const int64_t bytes = peers_[peer].inbox.TakeDueAck();
  if (bytes == 0) return;
  Frame ack = OfKind(Frame::kPartAck);
  ack.total = static_cast<uint64_t>(bytes);
  Post(peer, std::move(ack));
}

// --- What is called. ---------------------------------------------------------

absl::Status GroupCore::Record(int peer, Announcement announcement) {
  const absl::Status added = called_.Add(peer, std::move(announcement));
  if (absl::IsResourceExhausted(added)) return added;
  if (!added.ok()) Break(added, /*tell=*/true);
  return absl::OkStatus();
}

const Announcement* GroupCore::FindOwn(uint64_t sequence) const {
  const Announcement* const own = called_.Last(rank());
  return own != nullptr && own->sequence == sequence ? own : nullptr;
}

absl::Status GroupCore::Begin(Announcement mine) {
  WEFT_RETURN_IF_ERROR(Health());
  const absl::Status compared = called_.Add(rank(), std::move(mine));
  if (!compared.ok()) Break(compared, /*tell=*/true);
  if (++untold_ >= std::max(kTellAfter, size())) {
    untold_ = 0;
    PostToAll(FrameOf(Frame::kStatus, *called_.Last(rank())));
  }
  return Health();
}

void GroupCore::Refuse(Announcement mine) {
  called_.Add(rank(), std::move(mine)).IgnoreError();
  PostToAll(FrameOf(Frame::kStatus, *called_.Last(rank())));
}

void GroupCore::Ask(uint64_t sequence) {
  const Announcement* const mine = FindOwn(sequence);
  if (mine != nullptr) PostToAll(FrameOf(Frame::kAnnounce, *mine));
}

void GroupCore::AskPeer(int peer) {
  const Announcement* const newest = called_.Last(rank());
  const Frame question =
      FrameOf(Frame::kAnnounce, newest == nullptr ? Announcement() : *newest);
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && (peer < 0 || peer == r)) Post(r, question);
  }
}

std::string GroupCore::DescribePeer(int peer, absl::string_view lacks,
                                    Instant since) const {
  const std::string name =
      RankText(peer, options_.names.empty() ? "" : options_.names[peer]);
  return absl::StrCat(
      name, " ", lacks, " and ", called_.Describe(peer),
      peers_[peer].heard > since
          ? ""
          : absl::StrCat("; ", name, " has not answered meanwhile"));
}

void GroupCore::AskCompared() {
  ++asked_;
  for (int r = 0; r < size(); ++r) {
    Peer& p = peers_[r];
    if (!p.has_uncompared || !p.is_open) continue;
    p.has_uncompared = false;
    p.asked = asked_;
    Post(r, FrameOf(Frame::kAnnounce, *called_.Last(rank()), asked_));
  }
}

int GroupCore::AwaitedAnswer() const {
  for (int r = 0; r < size(); ++r) {
    if (peers_[r].answered < peers_[r].asked) return r;
  }
  return -1;
}

absl::Status GroupCore::CheckPeer(uint64_t sequence, int peer) {
  WEFT_RETURN_IF_ERROR(Health());
  WEFT_RETURN_IF_ERROR(called_.CheckRefusals(sequence));
  const Peer& p = peers_[peer];
  if (p.has_left) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", peer, " has left the group; it ", called_.Describe(peer)));
  }
  if (!p.gone.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", peer, " has ended (its stream: ", p.gone.message(), "); it ",
        called_.Describe(peer)));
  }
  return absl::OkStatus();
}

bool GroupCore::IsSilent(int peer, Instant since, Instant now) {
  if (now - looked_ > std::max(options_.dead_after / 2, kLongestLook)) {
    awake_since_ = now;
  }
  looked_ = now;
  if (now - std::max({peers_[peer].heard, since, awake_since_}) <
      options_.dead_after) {
    return false;
  }
  OnGone(peer, absl::UnavailableError(absl::StrCat(
                   "silent for ", absl::FormatDuration(options_.dead_after))));
  return true;
}

std::string GroupCore::DescribeWait(uint64_t sequence, int peer,
                                    Instant since) const {
  std::string text = DescribeRanksBefore(sequence);
  const std::string name =
      RankText(peer, options_.names.empty() ? "" : options_.names[peer]);
  if (text.empty()) {
    text = absl::StrCat(name, " has sent nothing and ", called_.Describe(peer));
  }
  if (peers_[peer].heard <= since) {
    absl::StrAppend(&text, "; ", name, " has not answered meanwhile");
  }
  return text;
}

// --- Messages of operations. -------------------------------------------------

bool GroupCore::TakePartRoom(int to, int64_t bytes, bool is_first) {
  Peer& p = peers_[to];
  const int64_t kept = bytes + (is_first ? Inbox::kMessageBytes : 0);
  if (!p.is_open || p.parts_under_way + kept > Inbox::kPartWindow) return false;
  p.parts_under_way += kept;
  return true;
}

void GroupCore::SendPart(int to, uint64_t index, Frame part, bool is_compared) {
  part.kind = Frame::kPart;
  part.tag = index;
  if (const Announcement* mine = FindOwn(part.sequence); mine != nullptr) {
    part.fingerprint = mine->fingerprint;
    const bool is_first = index == 0 && part.offset == 0;
    if (is_first) part.text = mine->text;
  }
  if (!is_compared) peers_[to].has_uncompared = true;
  Post(to, std::move(part));
}

absl::StatusOr<Message*> GroupCore::NextPart(uint64_t sequence, int from,
                                             int64_t bytes) {
  WEFT_RETURN_IF_ERROR(Health());
  Message* const next = peers_[from].inbox.NextPart(sequence);
  AckParts(from);
  if (next == nullptr) return nullptr;
  const Announcement* const mine = FindOwn(sequence);
  if (mine != nullptr && next->fingerprint != mine->fingerprint) {
    return Mismatch(
        from, absl::StrCat("another one (it ", called_.Describe(from), ")"),
        rank(), mine->text);
  }
  if (next->total != static_cast<uint64_t>(bytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks called different operations: rank ", from,
                     " sent ", next->total, " bytes, rank ", rank(), " wants ",
                     bytes, "; rank ", from, " ", called_.Describe(from)));
  }
  if (next->content.empty() && next->total > 0) return nullptr;
  return next;
}

bool GroupCore::TookOfPart(int from, uint64_t bytes) {
  const bool is_whole = peers_[from].inbox.TookOfPart(bytes);
  AckParts(from);
  return is_whole;
}

// --- Messages of Sends. ------------------------------------------------------

bool GroupCore::TakeTransferRoom(int to, int64_t bytes) {
  Peer& p = peers_[to];
  if (p.transfers_under_way >= options_.max_unasked_bytes) return false;
  p.transfers_under_way += KeptBytes(static_cast<uint64_t>(bytes));
  ++p.transfers_sent;
  return true;
}

void GroupCore::SendTransfer(int to, Frame frame) {
  frame.kind = Frame::kTransfer;
  frame.sequence = peers_[to].transfers_sent;
  Post(to, std::move(frame));
}

absl::StatusOr<std::optional<Message>> GroupCore::TakeTransfer(
    int from, uint64_t tag, bool is_only_source) {
  Inbox& inbox = peers_[from].inbox;
  std::optional<Message> message = inbox.TakeTransfer(tag);
  if (!message.has_value()) {
    const bool is_full = inbox.kept_bytes() >= options_.max_unasked_bytes;
    if (is_full && is_only_source && inbox.LacksTransfer(tag)) {
      return TooMuchUnasked(from, inbox.kept_bytes(), inbox.oldest_tag());
    }
    return message;
  }
  Frame ack = OfKind(Frame::kTransferAck);
  ack.total = static_cast<uint64_t>(KeptBytes(message->total));
  Post(from, std::move(ack));
  return message;
}

absl::Status GroupCore::CheckTransferPeer(int peer) const {
  int gone = 0;
  absl::Status why;
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || (peer >= 0 && r != peer)) continue;
    const Peer& p = peers_[r];
    if (!p.has_left && p.gone.ok()) continue;
    ++gone;
    why = absl::UnavailableError(absl::StrCat(
        "rank ", r, p.has_left ? " has left the group" : " has ended", "; it ",
        called_.Describe(r)));
  }
  return gone < (peer < 0 ? size() - 1 : 1) ? absl::OkStatus() : why;
}

std::string GroupCore::Snapshot() const {
  std::string text = absl::StrCat(called_.Snapshot(), " ", untold_, " ", asked_,
                                  " ", has_left_, " ", broken_.raw_code(), " ",
                                  is_heard_, " ", ended_shrinks_.size());
  for (const Peer& p : peers_) {
    absl::StrAppend(&text, " {", p.is_open, p.has_stream, p.has_said_hello,
                    p.has_left, p.knows_of_leave, p.has_uncompared, " ",
                    p.gone.raw_code(), " ", p.asked);
    absl::StrAppend(&text, " ", p.answered, " ", p.parts_under_way, " ",
                    p.transfers_sent, " ", p.transfers_under_way, " ",
                    p.inbox.Snapshot(), "}");
  }
  return text;
}

}  // namespace weft::collectives
