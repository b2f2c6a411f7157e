// A channel: one NCCL communicator per member in this process, not shared with other channels, and
// the receive buffers for sums over ranks.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <vector>

#include "runtime/backend/channels/Connect.h"
#include "runtime/backend/cuda/CudaStream.h"
#include "runtime/backend/cuda/Peers.h"
#include "runtime/hal/Channel.h"

namespace shardc::cuda {

/// One object has all members of a channel that are in this process. Collectives of a member are
/// queued in the order of issue(), on any of its streams.
class CudaChannel final : public hal::Channel, private channels::Communicators {
public:
  /// A member of the channel in this process.
  struct Member {
    int rank = 0, index = 0; ///< rank in the world, index in the group
    DeviceState *device = nullptr;
    ncclComm_t communicator = nullptr; ///< null in a group of one
    /// A communicator that occupies one multiprocessor, in which both ends of a transfer wait for
    /// each other; null if transfers do not wait.
    ncclComm_t meeting = nullptr;
    std::unique_ptr<hal::Buffer> meetingBytes; ///< one byte per end
    CudaStream *lastStream = nullptr; ///< stream of the last collective; lastCapture is its capture
    uint64_t lastCapture = 0;
    std::unique_ptr<CudaEvent> order;
    /// Receive buffers. There are several only if uses are unknown: each is larger than the
    /// previous ones, which captured graphs may still use.
    std::vector<std::unique_ptr<hal::Buffer>> receiveBuffers;
    const hal::SharedMemory *shared = nullptr; ///< its memory in the description; null: none
    const hal::SharedMemory *lent = nullptr;   ///< lent memory; null: none
    void *localHandle = nullptr;               ///< handle of a local registration
    std::unique_ptr<Peers> peers; ///< access to others' memory for counted rows; null: uses NCCL
  };

  /// Creates the communicators. All processes of the group call it together.
  static Result<std::unique_ptr<CudaChannel>> create(const hal::ChannelDesc &desc,
                                                     const std::vector<DeviceState *> &devices,
                                                     const Options &options,
                                                     CommunicatorWatch &watch);
  ~CudaChannel() override;

  /// The member with this rank in this process, or null.
  Member *memberOf(int rank);
  double measuredGatherGBs() const override { return gatherGBs_; }
  int64_t receiveBufferBytes() const override;
  /// Queues the member's part in a collective.
  Status issue(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);

private:
  CudaChannel(hal::ChannelDesc desc, CommunicatorWatch &watch)
      : Channel(std::move(desc)), watch_(watch) {}

  Status connect(const Options &options);
  /// Completes when both members have queued it.
  static ncclResult_t meet(Member &member, cudaStream_t stream);
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
  /// Number of thread blocks of a peer exchange. These kernels take the place of NCCL's, so the
  /// limit of NCCL's kernels applies. A power of two, so that the rows of each block begin at a
  /// cache line; between H200s, 24 blocks are slower than 16.
  int peerBlocks() const;
  Status useAll();
  /// Measures the plan's largest all-gather with the transport that it will use: between shared
  /// buffers if they are large enough, on all members at the same time. The buffers have no content
  /// yet.
  Status measureGather();
  /// Whether the channel has uses in which members send parts to each other. Sums in rank order do
  /// so, too.
  bool sendsParts() const;
  /// Bytes of shared memory per member; the same in all processes.
  int64_t sharedBytes() const;
  /// Allocates the receive buffers of all members of this process together, because an allocation
  /// on one device may wait for another device on which a collective waits for the allocating
  /// member.
  Status allocateReceiveBuffers(int64_t bytes);
  /// The member's receive buffer, grown if the reduction needs more and uses are unknown.
  Result<void *> receiveBuffer(Member &member, const hal::Collective &desc);
  Status allGather(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  Status reduceScatter(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// Reduces with NCCL, in the communication type and in NCCL's order. Then one kernel widens,
  /// divides and adds if needed.
  Status reduceByNccl(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  Status allReduce(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// Reduces with NCCL, in the communication type and in NCCL's order. A maximum does not depend on
  /// the order.
  Status allReduceByNccl(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  Status transfer(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// Exchanges with sends and receives. The member's own part is copied. If members can access each
  /// other's memory, kernels move counted rows instead.
  Status allToAll(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// Writes rows directly to the other members' results, which must lie in the memory that the
  /// members have opened to each other.
  Status giveRows(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// A rank that would send to itself copies instead.
  Status shift(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  Status allReduceSmall(Member &member, const hal::Collective &desc, kernels::cuda::Queue &queue);
  /// Sends chunk p of `in` to member p, and receives chunk `member.index` of every other member
  /// into slots of `chunk` elements. The member's own chunk is not copied. The last chunks of
  /// `count` elements may be short or empty.
  Status exchange(Member &member, const void *in, void *receiveBuffer, int64_t count, int64_t chunk,
                  DType type, kernels::cuda::Queue &queue);

  CommunicatorWatch &watch_;
  ncclConfig_t config_ = NCCL_CONFIG_INITIALIZER;
  std::vector<std::unique_ptr<Member>> members_;
  double gatherGBs_ = 0;
};

} // namespace shardc::cuda
