// Runs the steps of setting up a channel, each of which all members must reach: the id, the
// communicators, registration, warm-up, and access to the memory of peers.
#include "runtime/backend/channels/Connect.h"

#include <algorithm>

#include "runtime/backend/channels/Uses.h"
#include "runtime/base/Reports.h"

namespace shardc::channels {
namespace {

class Connecting {
public:
  Connecting(const hal::ChannelDesc &desc, const std::vector<int> &membersHere,
             Communicators &library, const ConnectOptions &options)
      : desc_(desc), here_(membersHere), library_(library), options_(options) {}

  Status run() {
    if (!isInOneProcess() && !options_.rendezvous)
      return makeStatus(StatusCode::InvalidInput,
                        "channel '{}' has members in other processes and no connection to them",
                        desc_.name);
    ASSIGN_OR_RETURN(std::string id, agreeOnId());
    RETURN_IF_ERROR(library_.init(id));
    if (meetsBeforeTransfers(desc_))
      RETURN_IF_ERROR(library_.split());
    RETURN_IF_ERROR(registerShared());
    RETURN_IF_ERROR(connectPeers());
    return library_.warmUp();
  }

private:
  bool isInOneProcess() const { return here_.size() == desc_.members.size(); }
  bool refuses(Service what) const { return options_.refusals && options_.refusals->refuses(what); }

  /// Several groups may have channels of the same name. The first member tells them apart.
  std::string keyOf(std::string_view what) const {
    return fmt::format("{} of '{}' of rank {}", what, desc_.name, desc_.members.front());
  }

  Result<std::string> agreeOnId() {
    bool isRoot = std::ranges::find(here_, desc_.members.front()) != here_.end();
    std::string id;
    if (isRoot) {
      ASSIGN_OR_RETURN(id, library_.makeId());
    }
    return isInOneProcess() ? id : options_.rendezvous->first(keyOf("id"), desc_.members, id);
  }

  /// Whether `mine` is true in every process of the channel. The vote uses the rendezvous, since a
  /// vote through the library would create connections that nothing else needs.
  Result<bool> allAgree(std::string_view what, bool mine) {
    if (isInOneProcess())
      return mine;
    ASSIGN_OR_RETURN(std::string against,
                     options_.rendezvous->first(keyOf(what), desc_.members, mine ? "" : "no"));
    return against.empty();
  }

  /// Registration is an optimisation, so a channel without it works, and a remark says so. Only a
  /// disagreement among members is an error: it aborts the job, since other members may already
  /// wait in a collective.
  Status registerShared() {
    RegistrationSteps steps;
    steps.canTryWindows = [this] { return !refuses(Service::Windows) && library_.canRegister(); };
    steps.windows = [this] { return library_.registerWindows(); };
    steps.locally = [this] { return !refuses(Service::Buffers) && library_.registerLocally(); };
    steps.dropLocal = [this] { library_.dropLocal(); };
    steps.allAgree = [this](std::string_view what, bool mine) { return allAgree(what, mine); };
    hal::Registration wanted = desc_.registration;
    Result<hal::Registration> agreed = agreeOnRegistration(desc_.name, wanted, steps);
    if (!agreed.isOk()) { // others may wait for this member in collectives
      if (options_.failed)
        options_.failed(agreed.status());
      return agreed.status();
    }
    hal::Registration reached = *agreed;
    if (wanted == hal::Registration::Windows && reached != wanted && options_.emit)
      options_.emit(makeReport(report::NoWindows, desc_.name));
    if (wanted != hal::Registration::Nothing && reached == hal::Registration::Nothing &&
        options_.emit)
      options_.emit(makeReport(report::NoRegistration, desc_.name));
    return Status::ok();
  }

  /// Connects each member to the memory of all others. If one member cannot connect, all members
  /// send counted rows through the library.
  Status connectPeers() {
    if (desc_.reached.empty())
      return Status::ok();
    ASSIGN_OR_RETURN(std::string mine, library_.describePeers());
    std::vector<std::string> described(desc_.members.size(), mine);
    if (!isInOneProcess()) {
      ASSIGN_OR_RETURN(described,
                       options_.rendezvous->gather(keyOf("memory"), desc_.members, mine));
    }
    Status reached = refuses(Service::Peers) ? Status(StatusCode::Unavailable, "a test refuses it")
                                             : library_.openPeers(described);
    ASSIGN_OR_RETURN(bool all, allAgree("peers", reached.isOk()));
    RETURN_IF_ERROR(library_.decidePeers(all));
    if (!reached.isOk() && !reached.message().empty() && options_.emit)
      options_.emit(makeReport(report::NoPeers, desc_.name, reached.message()));
    return Status::ok();
  }

  const hal::ChannelDesc &desc_;
  const std::vector<int> &here_;
  Communicators &library_;
  const ConnectOptions &options_;
};

} // namespace

/// Votes in a fixed order: first whether all members can try windows, then whether all got them,
/// then whether all registered locally. Every member takes part in every vote that its answers lead
/// to. If NCCL gave windows to this member and not to another one, the result is an error, not a
/// fallback. The member returns it only after the last vote, so that no other member waits for its
/// vote.
Result<hal::Registration> agreeOnRegistration(std::string_view channel, hal::Registration wanted,
                                              const RegistrationSteps &steps) {
  if (wanted == hal::Registration::Nothing)
    return wanted;
  bool hasWindows = false, isAloneWithThem = false;
  if (wanted == hal::Registration::Windows) {
    ASSIGN_OR_RETURN(bool canTry, steps.allAgree("tries of windows", steps.canTryWindows()));
    bool mine = canTry && steps.windows();
    ASSIGN_OR_RETURN(hasWindows, steps.allAgree("windows", mine));
    isAloneWithThem = mine && !hasWindows;
  }
  ASSIGN_OR_RETURN(bool isLocal,
                   steps.allAgree("buffers", hasWindows || (!isAloneWithThem && steps.locally())));
  if (isAloneWithThem)
    return makeStatus(StatusCode::Internal,
                      "NCCL gave windows to some members of channel '{}' and none to others",
                      channel);
  if (hasWindows)
    return hal::Registration::Windows;
  if (isLocal)
    return hal::Registration::Local;
  steps.dropLocal();
  return hal::Registration::Nothing;
}

Status connect(const hal::ChannelDesc &desc, const std::vector<int> &membersHere,
               Communicators &library, const ConnectOptions &options) {
  return Connecting(desc, membersHere, library, options).run();
}

} // namespace shardc::channels
