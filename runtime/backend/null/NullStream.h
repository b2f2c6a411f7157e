// Streams, events, marks, graphs and channels of the null backend. They check calls against the
// ledger and record which work would run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/null/Ledger.h"
#include "runtime/backend/null/Options.h"

namespace shardc::null {

/// The digest of a collective, which must be equal on all members.
Issued issuedOf(const hal::Collective &desc);

/// Checks descriptions, memory and uses, and compares the members' collectives; transfers nothing.
class NullChannel final : public hal::Channel {
public:
  /// Creates a channel. InvalidInput for members or memory that a channel cannot have. `ranksHere`
  /// lists the ranks of this process.
  static Result<std::unique_ptr<NullChannel>> create(const hal::ChannelDesc &desc,
                                                     const std::vector<int> &ranksHere,
                                                     const Options &options,
                                                     std::shared_ptr<Ledger> ledger);
  ~NullChannel() override;

  const std::shared_ptr<Line> &line() const { return line_; }
  /// Checks whether the rank may issue this collective. Returns the buffers that it uses, or the
  /// reason why not. The caller must hold the mutex.
  Result<std::vector<std::shared_ptr<Block>>> check(int rank, const hal::Collective &desc) const;

private:
  NullChannel(hal::ChannelDesc desc, std::shared_ptr<Ledger> ledger)
      : Channel(std::move(desc)), ledger_(std::move(ledger)), line_(std::make_shared<Line>()) {}
  /// Checks the description and registers the channel as alive.
  Status fill(const std::vector<int> &ranksHere);
  /// Connects to the members in other processes. Ranks that the process leaves out are not waited
  /// for.
  Status connect(const Options &options) const;
  Status take(const hal::SharedMemory &memory, std::string_view what);
  Status checkTypes(const hal::Collective &desc) const;
  /// A channel that was created with a list of uses accepts no other use.
  Status checkUse(const hal::Collective &desc, int64_t bytes) const;
  /// Checks that the result lies in memory that other members can access, in addition to the checks
  /// for all backends.
  Status checkCounted(int rank, const hal::Collective &desc) const;

  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Line> line_;
};

/// State that a device's streams share.
struct DeviceState;
std::shared_ptr<DeviceState> makeDeviceState(std::shared_ptr<Ledger> ledger, int rank);

/// Checks each call and advances the rank's clock instead of executing work.
std::unique_ptr<hal::Stream> makeStream(std::shared_ptr<DeviceState> device, std::string name);
/// Stands for a point in the rank's vector clock.
std::unique_ptr<hal::Event> makeEvent(std::shared_ptr<Ledger> ledger, int rank, bool isTimed);
/// Counts launches of the graph that captured it.
std::unique_ptr<hal::Mark> makeMark(std::shared_ptr<Ledger> ledger, int rank);

} // namespace shardc::null
