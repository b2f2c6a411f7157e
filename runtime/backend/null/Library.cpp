// For calls that all members make together, the members in different processes exchange a text and
// compare it. A member that makes another call, or registered something else, is reported.
#include "runtime/backend/null/Library.h"

#include <algorithm>

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

} // namespace

void Library::note(std::string_view call) const {
  if (options_.onCall)
    options_.onCall(call, desc_);
}

Status Library::together(std::string_view call, const std::string &mine) {
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

Result<std::string> Library::makeId() {
  note("makeId");
  return textOf(randomBytes32());
}

Status Library::init(const std::string &id) {
  if (id.size() != 2 * sizeof(Nonce))
    return makeStatus(StatusCode::Internal,
                      "null backend: channel '{}' has an id of {} bytes instead of {}", desc_.name,
                      id.size(), 2 * sizeof(Nonce));
  id_ = id;
  return together("init", fmt::format("{} members", desc_.members.size()));
}

Status Library::split() {
  return together("split", fmt::format("{} members", desc_.members.size()));
}

int64_t Library::sharedBytes() const {
  return desc_.shared.empty() ? 0 : desc_.shared.front().bytes;
}

bool Library::canRegister() const {
  return std::ranges::all_of(here_, [this](int rank) {
    return std::ranges::any_of(desc_.shared, [rank](const hal::SharedMemory &shared) {
      return shared.rank == rank && shared.bytes > 0;
    });
  });
}

bool Library::registerWindows() {
  bool good =
      canRegister() && together("registerWindows", fmt::format("{} bytes", sharedBytes())).isOk();
  if (good)
    registered_ = hal::Registration::Windows;
  return good;
}

bool Library::registerLocally() {
  note("registerLocally");
  if (!canRegister())
    return false;
  registered_ = hal::Registration::Local;
  return true;
}

void Library::dropLocal() {
  note("dropLocal");
  registered_ = hal::Registration::Nothing;
}

Result<std::string> Library::describePeers() {
  note("describePeers");
  std::string cards;
  for (int rank : here_)
    cards += cardOf(rank);
  return cards;
}

Status Library::openPeers(const std::vector<std::string> &described) {
  note("openPeers");
  for (size_t i = 0; i < desc_.members.size(); ++i)
    if (i >= described.size() || described[i].find(cardOf(desc_.members[i])) == std::string::npos)
      return makeStatus(StatusCode::Unavailable, "rank {} says nothing of its memory",
                        desc_.members[i]);
  return Status::ok();
}

Status Library::decidePeers(bool keeps) {
  note(keeps ? "keepPeers" : "dropPeers");
  hasPeers_ = keeps;
  return Status::ok();
}

/// Like NCCL's first collectives, it would hang if members had registered different buffers, so it
/// checks for that.
Status Library::warmUp() {
  return together("warmUp", fmt::format("registration {}, peers {}", static_cast<int>(registered_),
                                        hasPeers_ ? "reached" : "not reached"));
}

} // namespace shardc::null
