// Collectives: what is exchanged, and the communicator that it travels on. A channel belongs to one
// group of ranks and one purpose, and shares no resources with other channels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/DType.h"
#include "runtime/base/Reduction.h"

namespace shardc::hal {

enum class CollectiveKind : uint8_t { AllGather, ReduceScatter, AllReduce };
std::string_view toString(CollectiveKind kind);

/// One member's part in a collective. Sums are formed in rank order, in fp32 (f64 for f64
/// operands), unless they may be formed in any order.
struct Collective {
  CollectiveKind kind = CollectiveKind::AllGather;
  const void *in = nullptr;
  void *out = nullptr; ///< AllGather: `in` may lie at the member's own slot of `out`; AllReduce:
                       ///< may equal `in`
  int64_t count = 0;   ///< elements of a shard, or of the whole for AllReduce
  DType inType = DType::F32;
  DType outType = DType::F32; ///< may be wider than inType where there is a sum
  bool average = false;       ///< divides the sum by the number of members
  bool accumulate = false;    ///< ReduceScatter: adds the sum to what is in `out`
  /// Of sums: the backend may add in the wire's type and in whatever order is fastest.
  bool anyOrder = false;
  /// ReduceScatter in rank order, into f32 or bf16: where the sum of the squares of the result's
  /// valid elements goes, as they are afterwards; null: nowhere.
  double *squares = nullptr;
  /// In order and apart; they outlive the launch of what the collective was captured in.
  std::span<const ElementRange> valid;
};

/// How far memory is registered, from least to most: locally, so that collectives read and write it
/// in place, or as windows that all members see, so that copy engines can.
enum class Registration : uint8_t { Nothing, Local, Windows };

/// Memory of one rank of this process that collectives touch; all members give as many bytes.
struct SharedMemory {
  int rank;
  void *data;
  int64_t bytes;
};

/// A way in which a channel will be used: what its largest collective of this kind moves.
struct ChannelUse {
  CollectiveKind kind = CollectiveKind::AllGather;
  int64_t bytes = 0; ///< of the whole
  bool anyOrder = false;
};

/// Which ranks talk, and what for.
struct ChannelDesc {
  std::string name;
  std::vector<int>
      members; ///< world ranks in group order; those of this process must be among them
  /// Holds nothing when the channel is made, which may write to it; outlives the channel.
  std::vector<SharedMemory> shared;
  /// Device memory of each rank of this process that the making of the channel may write to and
  /// that holds nothing then, whatever it is for later.
  std::vector<SharedMemory> lent;
  /// Of `shared`, as far as the backend can. All-gathers between windows leave the multiprocessors
  /// alone.
  Registration registration = Registration::Nothing;
  /// What a backend may get ready for; left empty, for everything.
  std::vector<ChannelUse> uses;
  /// Device memory beside operands and results that the uses need on each member, where the backend
  /// forms sums in landing buffers. Without uses the backend allocates what comes to be needed.
  int64_t landingBytes = 0;
};

/// A communicator of one group. Each member issues the same collectives in the same order on it;
/// a rank's collectives on one channel run one after the other, whatever its streams.
class Channel {
public:
  virtual ~Channel() = default;
  Channel(const Channel &) = delete;
  Channel &operator=(const Channel &) = delete;

  const ChannelDesc &desc() const { return desc_; }
  int size() const { return static_cast<int>(desc_.members.size()); }
  /// GB/s in which a member took in the largest all-gather of the channel's uses when it was made;
  /// 0: not measured.
  virtual double measuredGatherGBs() const { return 0; }
  /// Bytes of the landing buffer of each member.
  virtual int64_t landingBytes() const { return 0; }

protected:
  explicit Channel(ChannelDesc desc) : desc_(std::move(desc)) {}

private:
  ChannelDesc desc_;
};

} // namespace shardc::hal
