// Checks the collectives that callers issue on a channel: sizes, types, addresses and members.
#include <algorithm>

#include "runtime/backend/channels/Connect.h"
#include "runtime/backend/null/NullStream.h"
#include "runtime/backend/null/Options.h"
#include "runtime/base/Hmac.h"

namespace shardc::null {
namespace {

std::string textOf(const Nonce &nonce) {
  std::string text;
  for (uint8_t byte : nonce)
    text += fmt::format("{:02x}", byte);
  return text;
}

std::string cardOf(int rank) { return fmt::format("rank {};", rank); }

/// A library of communicators that transfers nothing; it stands in for NCCL. Calls that members
/// make together wait for all members, as NCCL's do. It checks that all calls are for the same
/// channel and members, and that members registered alike.
class Library final : public channels::Communicators {
public:
  /// Creates the communicators of the channel's members in this process. Description and options
  /// must outlive it.
  Library(const hal::ChannelDesc &desc, const std::vector<int> &here, const Options &options)
      : desc_(desc), here_(here), options_(options) {}

  Result<std::string> makeId() override {
    note("makeId");
    return textOf(randomBytes32());
  }

  Status init(const std::string &id) override {
    if (id.size() != 2 * sizeof(Nonce))
      return makeStatus(StatusCode::Internal,
                        "null backend: channel '{}' has an id of {} bytes instead of {}",
                        desc_.name, id.size(), 2 * sizeof(Nonce));
    id_ = id;
    return together("init", fmt::format("{} members", desc_.members.size()));
  }

  Status split() override {
    return together("split", fmt::format("{} members", desc_.members.size()));
  }

  bool canRegister() const override {
    return std::ranges::all_of(here_, [this](int rank) {
      return std::ranges::any_of(desc_.shared, [rank](const hal::SharedMemory &shared) {
        return shared.rank == rank && shared.bytes > 0;
      });
    });
  }

  bool registerWindows() override {
    bool good =
        canRegister() && together("registerWindows", fmt::format("{} bytes", sharedBytes())).isOk();
    if (good)
      registered_ = hal::Registration::Windows;
    return good;
  }

  bool registerLocally() override {
    note("registerLocally");
    if (!canRegister())
      return false;
    registered_ = hal::Registration::Local;
    return true;
  }

  void dropLocal() override {
    note("dropLocal");
    registered_ = hal::Registration::Nothing;
  }

  Result<std::string> describePeers() override {
    note("describePeers");
    std::string cards;
    for (int rank : here_)
      cards += cardOf(rank);
    return cards;
  }

  Status openPeers(const std::vector<std::string> &described) override {
    note("openPeers");
    for (size_t i = 0; i < desc_.members.size(); ++i)
      if (i >= described.size() || described[i].find(cardOf(desc_.members[i])) == std::string::npos)
        return makeStatus(StatusCode::Unavailable, "rank {} says nothing of its memory",
                          desc_.members[i]);
    return Status::ok();
  }

  Status decidePeers(bool keeps) override {
    note(keeps ? "keepPeers" : "dropPeers");
    hasPeers_ = keeps;
    return Status::ok();
  }

  /// Like NCCL's first collectives, it would hang if members had registered different buffers, so
  /// it checks for that.
  Status warmUp() override {
    return together("warmUp",
                    fmt::format("registration {}, peers {}", static_cast<int>(registered_),
                                hasPeers_ ? "reached" : "not reached"));
  }

private:
  /// Waits until all members make the same call with the same text, for the communicator with the
  /// same id.
  Status together(std::string_view call, const std::string &mine) {
    note(call);
    if (here_.size() == desc_.members.size() || !options_.rendezvous)
      return Status::ok();
    ASSIGN_OR_RETURN(
        std::vector<std::string> all,
        options_.rendezvous->gather(fmt::format("{} of '{}', id {}", call, desc_.name, id_),
                                    desc_.members, mine));
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] != mine)
        return makeStatus(StatusCode::Internal,
                          "null backend: channel '{}': in {}, rank {} has '{}' and rank {} '{}'",
                          desc_.name, call, here_.front(), mine, desc_.members[i], all[i]);
    return Status::ok();
  }

  int64_t sharedBytes() const { return desc_.shared.empty() ? 0 : desc_.shared.front().bytes; }

  void note(std::string_view call) const {
    if (options_.onCall)
      options_.onCall(call, desc_);
  }

  const hal::ChannelDesc &desc_;
  const std::vector<int> &here_;
  const Options &options_;
  std::string id_;
  hal::Registration registered_ = hal::Registration::Nothing;
  bool hasPeers_ = false;
};

using hal::Collective;
using hal::CollectiveKind;

struct Extent {
  const uint8_t *begin;
  int64_t bytes;
  const uint8_t *end() const { return begin + bytes; }
};

Extent operandOf(const Collective &desc, int members) {
  if (desc.kind == CollectiveKind::Recv)
    return {nullptr, 0};
  int64_t parts = traitsOf(desc.kind).isWholeIn ? members : 1;
  return {static_cast<const uint8_t *>(desc.in), desc.count * parts * dtypeBytes(desc.inType)};
}

Extent resultOf(const Collective &desc, int members) {
  if (desc.kind == CollectiveKind::Send)
    return {nullptr, 0};
  int64_t parts = traitsOf(desc.kind).isWholeOut ? members : 1;
  return {static_cast<const uint8_t *>(desc.out), desc.count * parts * dtypeBytes(desc.outType)};
}

/// Whether operand and result do not overlap, or overlap in the way that the kind allows.
bool areApart(const Collective &desc, const Extent &in, const Extent &out, int64_t index) {
  if (in.begin >= out.end() || out.begin >= in.end())
    return true;
  switch (desc.kind) {
  case CollectiveKind::AllGather: // the operand may be the member's own slot of the result
    return in.begin == out.begin + index * in.bytes;
  case CollectiveKind::AllReduce:
  case CollectiveKind::AllReduceMax:
    return in.begin == out.begin && in.bytes == out.bytes;
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift:
    return false;
  }
  return false;
}

} // namespace

Issued issuedOf(const Collective &desc) {
  uint64_t digest = 0xcbf29ce484222325;
  // Both ends of a transfer get the same digest.
  bool isTransfer = isPointToPoint(desc.kind);
  CollectiveKind kind = isTransfer ? CollectiveKind::Send : desc.kind;
  for (auto part : {static_cast<uint64_t>(kind), static_cast<uint64_t>(desc.count),
                    static_cast<uint64_t>(desc.inType), static_cast<uint64_t>(desc.outType),
                    static_cast<uint64_t>(desc.average), static_cast<uint64_t>(desc.anyOrder),
                    static_cast<uint64_t>(desc.by), static_cast<uint64_t>(desc.counted.slots),
                    static_cast<uint64_t>(desc.counted.rows)})
    digest = (digest ^ part) * 0x100000001b3;
  Issued issued;
  issued.count = 1;
  issued.digest = digest;
  return issued;
}

Result<std::unique_ptr<NullChannel>> NullChannel::create(const hal::ChannelDesc &desc,
                                                         const std::vector<int> &ranksHere,
                                                         const Options &options,
                                                         std::shared_ptr<Ledger> ledger) {
  RETURN_IF_ERROR(hal::checkMembers(desc, options.ranks));
  std::unique_ptr<NullChannel> channel(new NullChannel(desc, ledger));
  {
    std::lock_guard lock(ledger->mutex);
    RETURN_IF_ERROR(channel->fill(ranksHere));
  }
  if (channel->size() > 1)
    RETURN_IF_ERROR(channel->connect(options));
  return channel;
}

Status NullChannel::connect(const Options &options) const {
  std::vector<int> here;
  for (const auto &[rank, issued] : line_->issued)
    here.push_back(rank);
  hal::ChannelDesc connected = desc();
  if (!options.rendezvous)
    connected.members = here;
  Library library(connected, here, options);
  return channels::connect(connected, here, library,
                           {options.rendezvous, options.refusals, options.emit, options.failed});
}

Status NullChannel::fill(const std::vector<int> &ranksHere) {
  const hal::ChannelDesc &desc = this->desc();
  auto invalid = [&desc](const std::string &why) {
    return makeStatus(StatusCode::InvalidInput, "channel '{}': {}", desc.name, why);
  };
  RETURN_IF_ERROR(ledger_->checkOpen());
  line_->name = desc.name;
  line_->members = desc.members;
  for (int rank : ranksHere)
    if (std::ranges::find(desc.members, rank) != desc.members.end())
      line_->issued[rank] = {};
  if (line_->issued.empty())
    return invalid("no member is in this process");
  for (const hal::ChannelUse &use : desc.uses)
    if (use.bytes < 0)
      return invalid(fmt::format("a use of {} bytes", use.bytes));
  if (desc.receiveBufferBytes < 0)
    return invalid(fmt::format("a receive buffer of {} bytes", desc.receiveBufferBytes));
  for (const hal::SharedMemory &shared : desc.shared) {
    if (shared.bytes != desc.shared.front().bytes)
      return invalid(fmt::format("ranks {} and {} share {} and {} bytes", desc.shared.front().rank,
                                 shared.rank, desc.shared.front().bytes, shared.bytes));
    RETURN_IF_ERROR(take(shared, "shared memory"));
    if (const Block &block = *line_->shared.back(); block.kind != hal::MemoryKind::Sym)
      return invalid(fmt::format("shared memory of rank {} is in '{}', of {} memory", shared.rank,
                                 block.name, hal::toString(block.kind)));
  }
  for (const hal::SharedMemory &reached : desc.reached) {
    RETURN_IF_ERROR(take(reached, "memory that others reach"));
    if (const Block &block = *line_->shared.back(); block.kind == hal::MemoryKind::Host)
      return invalid(fmt::format("'{}' is reached, and not device memory", block.name));
  }
  // Lent memory is checked, but the channel does not count as its user.
  for (const hal::SharedMemory &lent : desc.lent) {
    ASSIGN_OR_RETURN(auto block, ledger_->find(lent.rank, lent.data, lent.bytes, "lent memory"));
    if (block->kind == hal::MemoryKind::Host)
      return invalid(fmt::format("'{}' is lent, and not device memory", block->name));
  }
  ledger_->lines.insert(line_);
  for (const std::shared_ptr<Block> &block : line_->shared)
    ++block->channels;
  ledger_->add(this);
  return Status::ok();
}

Status NullChannel::take(const hal::SharedMemory &memory, std::string_view what) {
  if (!line_->issued.contains(memory.rank))
    return Ledger::refuse("channel '{}': rank {} has {} and is no member here", desc().name,
                          memory.rank, what);
  ASSIGN_OR_RETURN(auto block, ledger_->find(memory.rank, memory.data, memory.bytes, what));
  line_->shared.push_back(std::move(block));
  return Status::ok();
}

NullChannel::~NullChannel() {
  std::lock_guard lock(ledger_->mutex);
  if (ledger_->lines.erase(line_) == 0)
    return; // creation failed
  ledger_->drop(this, "a channel");
  for (const std::shared_ptr<Block> &block : line_->shared)
    --block->channels;
  if (line_->graphs > 0)
    ledger_->keep(Ledger::refuse("channel '{}' is destroyed before {} graphs that use it",
                                 desc().name, line_->graphs));
  for (const auto &[rank, lastUse] : line_->lastUse)
    if (!ledger_->isKnown(rank, lastUse))
      ledger_->keep(Ledger::refuse("channel '{}' is destroyed while collectives of rank {} may run",
                                   desc().name, rank));
}

/// Refuses combinations of type, kind and options that no backend accepts. Valid ranges must ascend
/// and lie in the member's part.
Status NullChannel::checkTypes(const Collective &desc) const {
  if (Status sound = hal::checkTypes(desc); !sound.isOk())
    return Ledger::refuse("{} of {} into {}: {}", hal::toString(desc.kind), dtypeName(desc.inType),
                          dtypeName(desc.outType), sound.message());
  if (!isSum(desc.kind) && (desc.average || desc.anyOrder))
    return Ledger::refuse("{} sums nothing", hal::toString(desc.kind));
  if (desc.by != 0 && desc.kind != CollectiveKind::Shift)
    return Ledger::refuse("{} by {} positions", hal::toString(desc.kind), desc.by);
  if (desc.accumulate && desc.kind != CollectiveKind::ReduceScatter)
    return Ledger::refuse("{} does not add to what is there", hal::toString(desc.kind));
  if (desc.squares && desc.anyOrder)
    return Ledger::refuse("squares are of sums in rank order; not of {}", hal::toString(desc.kind));
  int64_t at = 0;
  for (const ElementRange &range : desc.valid) {
    if (range.begin < at || range.end < range.begin || range.end > desc.count)
      return Ledger::refuse("valid elements {} to {} after {} of {}", range.begin, range.end, at,
                            desc.count);
    at = range.end;
  }
  return Status::ok();
}

Status NullChannel::checkCounted(int rank, const Collective &desc) const {
  if (Status sound = hal::checkCounted(desc, size()); !sound.isOk())
    return Ledger::refuse("{}", sound.message());
  Extent out = resultOf(desc, size());
  bool isReached = std::ranges::any_of(this->desc().reached, [&](const hal::SharedMemory &memory) {
    const auto *begin = static_cast<const uint8_t *>(memory.data);
    return memory.rank == rank && out.begin >= begin && out.end() <= begin + memory.bytes;
  });
  return this->desc().reached.empty() || isReached
             ? Status::ok()
             : Ledger::refuse("a result of counted rows that other members do not reach");
}

Status NullChannel::checkUse(const Collective &desc, int64_t bytes) const {
  int64_t most = -1;
  for (const hal::ChannelUse &use : this->desc().uses)
    if (use.kind == desc.kind && use.anyOrder == desc.anyOrder)
      most = std::max(most, use.bytes);
  if (this->desc().uses.empty() || bytes <= most)
    return Status::ok();
  return most < 0 ? Ledger::refuse("channel '{}' was not made for {}{}", this->desc().name,
                                   hal::toString(desc.kind), desc.anyOrder ? " in any order" : "")
                  : Ledger::refuse("channel '{}' was made for {} of {} bytes, not {}",
                                   this->desc().name, hal::toString(desc.kind), most, bytes);
}

/// Checks one member's collective and returns the buffers that it uses. Sizes are checked first, so
/// that no product below overflows.
Result<std::vector<std::shared_ptr<Block>>> NullChannel::check(int rank,
                                                               const Collective &desc) const {
  auto member = std::ranges::find(line_->members, rank);
  if (member == line_->members.end())
    return Ledger::refuse("rank {} is not a member of channel '{}'", rank, this->desc().name);
  constexpr int64_t kCountMax = int64_t{1} << 48; // bounds bytes over all members below overflow
  if (desc.count < 0 || desc.count > kCountMax / size())
    return Ledger::refuse("a collective of {} elements", desc.count);
  RETURN_IF_ERROR(checkTypes(desc));
  if (isPointToPoint(desc.kind) && size() != 2)
    return Ledger::refuse("{} on channel '{}' of {} members; it needs two",
                          hal::toString(desc.kind), this->desc().name, size());
  Extent in = operandOf(desc, size()), out = resultOf(desc, size());
  std::vector<std::shared_ptr<Block>> used;
  if (desc.kind != CollectiveKind::Recv) {
    ASSIGN_OR_RETURN(auto operand, ledger_->find(rank, in.begin, in.bytes, "the operand"));
    used.push_back(std::move(operand));
  }
  if (desc.kind != CollectiveKind::Send) {
    ASSIGN_OR_RETURN(auto result, ledger_->find(rank, out.begin, out.bytes, "the result"));
    used.push_back(std::move(result));
  }
  if (desc.squares) {
    ASSIGN_OR_RETURN(auto squares, ledger_->find(rank, desc.squares, sizeof(double), "squares"));
    used.push_back(std::move(squares));
  }
  if (desc.counted.counts) {
    RETURN_IF_ERROR(checkCounted(rank, desc));
    int64_t bytes = desc.counted.slots * desc.counted.groups * int64_t{sizeof(int32_t)};
    ASSIGN_OR_RETURN(auto counts, ledger_->find(rank, desc.counted.counts, bytes, "the counts"));
    used.push_back(std::move(counts));
  }
  if (!areApart(desc, in, out, member - line_->members.begin()))
    return Ledger::refuse("operand and result of {} overlap", hal::toString(desc.kind));
  RETURN_IF_ERROR(checkUse(desc, std::max(in.bytes, out.bytes)));
  return used;
}

} // namespace shardc::null
