// Exchanges between some ranks of a job by MPI, if mpirun launched it: for NCCL's ids and the votes
// about channels. MPI is active only between begin() and end(); rendezvous, watching and ending
// belong to RendezvousClient and RendezvousServer, over TCP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/hal/Peers.h"
#include "runtime/launch/mpi/Module.h"

namespace shardc::launch {

struct MpiOptions {
  /// libshardc_mpi.so; empty: the one beside this program.
  std::string module;
  /// Longest wait for all ranks where MPI waits by itself: at its begin and its end.
  double timeoutSeconds = 600;
};

class MpiExchange {
public:
  /// Loads the module and joins MPI's world. All ranks call it together; the peers outlive what it
  /// gives, which is null on all of them if one has no module that can be loaded, or if MPI's world
  /// has other ranks than the job; `tell` takes the reason then, the same on all. Unavailable if
  /// MPI does not start, Aborted once the job has failed.
  static Result<std::unique_ptr<MpiExchange>> begin(hal::Peers &peers, const MpiOptions &options,
                                                    const ReportSink &tell);

  /// What each member gave, in their order, each up to 64 KiB. All members call it together with
  /// the same key, in the same order for each two of them, others need not; this rank is one of
  /// them. Internal where members have other keys, on all of them; waits for a member that does not
  /// come until the job's end.
  Result<std::vector<std::string>> gather(const std::string &key, const std::vector<int> &members,
                                          const std::string &mine);

  /// Ends MPI; all ranks call it together, once, and gather no more.
  Status end();

  /// Which MPI this is, as it calls itself.
  std::string library() const { return module_->library(); }

private:
  MpiExchange(hal::Peers &peers, const MpiModule *module, double timeoutSeconds)
      : peers_(peers), module_(module), timeoutSeconds_(timeoutSeconds) {}
  Status send(int to, const std::string &bytes);
  Result<std::string> receive(int from);
  Status explained(int error, const char *call) const;

  hal::Peers &peers_;
  const MpiModule *module_;
  double timeoutSeconds_;
};

} // namespace shardc::launch
