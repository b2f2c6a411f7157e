// Creates a channel: what its members decide together, in which order, whatever library makes the
// communicators. The CUDA backend connects through NCCL; the null backend through a library that
// counts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"
#include "runtime/hal/Channel.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::channels {

/// The interface of a library of communicators, for the members of one channel in this process.
/// Calls marked "together" return once the members in all processes have made them.
class Communicators {
public:
  virtual ~Communicators() = default;

  /// An id that one member creates and all members of the communicator need.
  virtual Result<std::string> makeId() = 0;
  /// Makes the communicators, together.
  virtual Status init(const std::string &id) = 0;
  /// Makes communicators of the same members in which both ends of a transfer meet, together.
  virtual Status split() = 0;

  /// Whether each member here has memory to register.
  virtual bool canRegister() const = 0;
  /// Registers it as windows, together.
  virtual bool registerWindows() = 0;
  virtual bool registerLocally() = 0;
  virtual void dropLocal() = 0;

  /// The data that other members need to access the memory of this process' members.
  virtual Result<std::string> describePeers() = 0;
  /// Reaches what all members have described, in their order. Not ok if it cannot, with the reason,
  /// or with none if another member has said it.
  virtual Status openPeers(const std::vector<std::string> &described) = 0;
  /// Keeps the ways into others' memory, or gives them back.
  virtual Status decidePeers(bool keeps) = 0;

  /// Uses everything once before it is captured, and measures, together.
  virtual Status warmUp() = 0;
};

struct ConnectOptions {
  hal::Rendezvous *rendezvous = nullptr; ///< null: all members are in this process
  const Refusals *refusals = nullptr;    ///< what a test has the library refuse
  ReportSink emit;                       ///< takes why less is registered than requested
  /// Called with an error that other members do not know of, before the channel is given up.
  std::function<void(const Status &)> failed;
};

/// 1. The id, 2. a communicator for each member, shared with no other channel, 3. registration of
/// shared memory, as windows if possible, else locally, else not at all, 4. ways into the memory of
/// other members, 5. warm-ups. The members make all choices together: one that registers while
/// another does not would wait for it forever. Internal where they cannot agree. `membersHere` are
/// those of this process, at least one.
Status connect(const hal::ChannelDesc &desc, const std::vector<int> &membersHere,
               Communicators &library, const ConnectOptions &options);

} // namespace shardc::channels
