// Creates a channel: what its members decide together and in which order, independent of the
// library that provides the communicators. The CUDA backend connects through NCCL. The null backend
// connects through a library that transfers nothing.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"
#include "runtime/hal/Channel.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::channels {

/// A library of communicators, as the members of one channel in this process use it. A call marked
/// "collective" returns once the members in all processes have made it.
class Communicators {
public:
  virtual ~Communicators() = default;

  /// An id that one member creates and all members of the communicator need.
  virtual Result<std::string> makeId() = 0;
  /// Creates the communicators; collective.
  virtual Status init(const std::string &id) = 0;
  /// Creates further communicators of the same members, in which both ends of a transfer wait for
  /// each other; collective.
  virtual Status split() = 0;

  /// Whether each member in this process has memory to register.
  virtual bool canRegister() const = 0;
  /// Registers the memory as windows; collective.
  virtual bool registerWindows() = 0;
  virtual bool registerLocally() = 0;
  virtual void dropLocal() = 0;

  /// The data that other members need to access the memory of this process' members.
  virtual Result<std::string> describePeers() = 0;
  /// Opens the memory that all members have described, in their order. If it fails, the status has
  /// the reason, or an empty message if another member has reported it.
  virtual Status openPeers(const std::vector<std::string> &described) = 0;
  /// Keeps the access to other members' memory, or closes it.
  virtual Status decidePeers(bool keeps) = 0;

  /// Uses every kind of collective once, before any capture, and measures bandwidth; collective.
  virtual Status warmUp() = 0;
};

/// The steps of registration that a member can take. Each step returns false if the member cannot
/// take it, and is called at most once; only votes may be called several times.
struct RegistrationSteps {
  std::function<bool()> canTryWindows; ///< decides alone, without waiting for others
  std::function<bool()> windows;       ///< collective: called by all members or by none
  std::function<bool()> locally;       ///< registers alone
  std::function<void()> dropLocal;     ///< undoes `locally`, whatever it returned
  /// Whether `mine` is true for all members; `what` names the vote.
  std::function<Result<bool>(std::string_view what, bool mine)> allAgree;
};

/// Registers buffers step by step, with a vote of all members after each step, and returns how all
/// members have registered. The number of votes depends only on `wanted`: groups that share a name
/// vote at the same time, and one group may register more than another. Internal if this member has
/// windows and another member has none. A window lasts as long as its communicator, and collectives
/// between members with and without windows may never end.
Result<hal::Registration> agreeOnRegistration(std::string_view channel, hal::Registration wanted,
                                              const RegistrationSteps &steps);

struct ConnectOptions {
  hal::Rendezvous *rendezvous = nullptr; ///< null: all members are in this process
  const Refusals *refusals = nullptr;    ///< services that a test makes the library refuse
  ReportSink emit; ///< gets the reason if less memory is registered than requested
  /// Called with an error that only this member has, before the channel is given up. The other
  /// members must be told.
  std::function<void(const Status &)> failed;
};

/// Connects the members in these steps: 1. the id, 2. a communicator for each member, shared with
/// no other channel, 3. registration of shared memory, as windows if possible, else locally, else
/// not at all, 4. access to the memory of other members, 5. warm-up. The members make all choices
/// together, since a member that registers alone would wait for the others forever. Internal if
/// they cannot agree. `membersHere` lists the members in this process, at least one.
Status connect(const hal::ChannelDesc &desc, const std::vector<int> &membersHere,
               Communicators &library, const ConnectOptions &options);

} // namespace shardc::channels
