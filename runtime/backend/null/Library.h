// A library of communicators that transfers nothing; it stands in for NCCL. Calls that members make
// together wait for all members, as NCCL's do. It checks that all calls are for the same channel
// and members, and that members registered alike.
#pragma once

#include "runtime/backend/channels/Connect.h"
#include "runtime/backend/null/Options.h"

namespace shardc::null {

class Library final : public channels::Communicators {
public:
  /// Creates the communicators of the channel's members in this process. Description and options
  /// must outlive it.
  Library(const hal::ChannelDesc &desc, const std::vector<int> &here, const Options &options)
      : desc_(desc), here_(here), options_(options) {}

  Result<std::string> makeId() override;
  Status init(const std::string &id) override;
  Status split() override;
  bool canRegister() const override;
  bool registerWindows() override;
  bool registerLocally() override;
  void dropLocal() override;
  Result<std::string> describePeers() override;
  Status openPeers(const std::vector<std::string> &described) override;
  Status decidePeers(bool keeps) override;
  Status warmUp() override;

private:
  /// Waits until all members make the same call with the same text, for the communicator with the
  /// same id.
  Status together(std::string_view call, const std::string &mine);
  int64_t sharedBytes() const;
  void note(std::string_view call) const;

  const hal::ChannelDesc &desc_;
  const std::vector<int> &here_;
  const Options &options_;
  std::string id_;
  hal::Registration registered_ = hal::Registration::Nothing;
  bool hasPeers_ = false;
};

} // namespace shardc::null
