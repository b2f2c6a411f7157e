// Collectives and the communicators that carry them. A channel belongs to one group of ranks and
// one purpose, and shares no resources with other channels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/CollectiveKind.h"
#include "runtime/base/DType.h"
#include "runtime/base/Reduction.h"
#include "runtime/base/Status.h"

namespace shardc::hal {

using shardc::CollectiveKind;
using shardc::toString;

/// The valid rows of a collective's operand: each of its equal slots begins with the rows of its
/// groups, one after the other.
struct CountedRows {
  const int32_t *counts = nullptr; ///< [slots, groups], on the device; null: all rows are there
  int64_t slots = 0, groups = 0;
  int64_t rows = 0; ///< that all slots have room for
};

/// One member's part in a collective. Sums are made in rank order, in fp32 (f64 for f64 operands),
/// unless any order is allowed.
struct Collective {
  CollectiveKind kind = CollectiveKind::AllGather;
  const void *in = nullptr;
  void *out = nullptr; ///< AllGather: `in` may lie at the member's own slot of `out`; AllReduce and
                       ///< AllReduceMax: may equal `in`
  int64_t count = 0;   ///< elements of a part for AllGather, ReduceScatter and AllToAll, otherwise
                       ///< of operand and result
  DType inType = DType::F32;
  DType outType = DType::F32; ///< may be wider than inType for sums
  bool average = false;       ///< divides the sum by the number of members
  bool accumulate = false;    ///< ReduceScatter: adds the sum to the old content of `out`
  /// For sums: the backend may add in the operand's type and in the fastest order.
  bool anyOrder = false;
  /// ReduceScatter in rank order, into f32, bf16 or f16: receives the sum of the squares of the
  /// result's valid elements after the operation; null if not requested.
  double *squares = nullptr;
  CountedRows counted; ///< AllToAll: results of other rows are anything
  int64_t by = 0;      ///< Shift: `out` is `in` of the member so many positions before this one
  /// Element ranges in ascending order and disjoint; must outlive every launch of the graph that
  /// captured the collective.
  std::span<const ElementRange> valid;
};

/// How memory is registered, from least to most: locally, so that collectives read and write it in
/// place, or as windows visible to all members, so that copy engines can use it.
enum class Registration : uint8_t { Nothing, Local, Windows };

/// Memory of one rank of this process that collectives access; the same size on all members.
struct SharedMemory {
  int rank;
  void *data;
  int64_t bytes;
};

/// One use of a channel: the size of its largest collective of this kind.
struct ChannelUse {
  CollectiveKind kind = CollectiveKind::AllGather;
  int64_t bytes = 0; ///< of the whole
  bool anyOrder = false;
};

/// The member ranks of a channel and its purpose.
struct ChannelDesc {
  std::string name;
  std::vector<int>
      members; ///< world ranks in group order; those of this process must be among them
  /// Scratch that the creation of the channel may overwrite; must outlive the channel.
  std::vector<SharedMemory> shared;
  /// Device memory of each rank of this process that the creation of the channel may overwrite,
  /// because it has no content yet, whatever its later purpose.
  std::vector<SharedMemory> lent;
  /// Device memory of each rank of this process that has all results of exchanges of counted rows:
  /// other members' kernels may write them. Empty in all processes of the channel or in none; must
  /// outlive the channel.
  std::vector<SharedMemory> reached;
  /// How `shared` is registered, as far as the backend supports it. All-gathers between windows do
  /// not use multiprocessors.
  Registration registration = Registration::Nothing;
  /// Multiprocessors of the device that kernels may use; 0: no limit but the backend's.
  int32_t multiprocessors = 0;
  /// The uses for which a backend prepares; if empty, all.
  std::vector<ChannelUse> uses;
  /// Device memory besides operands and results that the uses need on each member, if the backend
  /// uses receive buffers for sums. Without uses, the backend allocates on demand.
  int64_t receiveBufferBytes = 0;
};

/// An error if there are no members, or one is not a rank or there twice.
Status checkMembers(const ChannelDesc &desc, int worldSize);

/// An error if counted rows are not in equal slots, equally many for each member, or if the
/// collective cannot have counted rows.
Status checkCounted(const Collective &desc, int members);

/// A communicator of one group. Each member must issue the same collectives in the same order on
/// it. The collectives of a rank on one channel run one after the other, whatever their streams.
class Channel {
public:
  virtual ~Channel() = default;
  Channel(const Channel &) = delete;
  Channel &operator=(const Channel &) = delete;

  const ChannelDesc &desc() const { return desc_; }
  int size() const { return static_cast<int>(desc_.members.size()); }
  /// GB/s at which a member received the channel's largest all-gather when it was created; 0: not
  /// measured.
  virtual double measuredGatherGBs() const { return 0; }
  /// Bytes of the receive buffer of each member.
  virtual int64_t receiveBufferBytes() const { return 0; }

protected:
  explicit Channel(ChannelDesc desc) : desc_(std::move(desc)) {}

private:
  ChannelDesc desc_;
};

} // namespace shardc::hal
