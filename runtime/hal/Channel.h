// Collectives and the communicators that carry them. A channel belongs to one group of ranks,
// serves one purpose, and shares no resources with other channels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/CollectiveKind.h"
#include "runtime/base/DType.h"
#include "runtime/base/Reduction.h"
#include "runtime/base/Status.h"

namespace shardc::hal {

using shardc::CollectiveKind;
using shardc::toString;

/// The valid rows of a collective's operand. The operand has equal slots, and each slot begins with
/// the rows of its groups, one after the other.
struct CountedRows {
  const int32_t *counts = nullptr; ///< [slots, groups], on the device; null: all rows are valid
  int64_t slots = 0, groups = 0;
  int64_t rows = 0; ///< capacity of all slots together
};

/// One member's part in a collective. Sums are computed in rank order and in fp32 (f64 for f64
/// operands), unless `anyOrder` is set.
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
  /// For sums: the backend may add in the operand's type and in any order.
  bool anyOrder = false;
  /// ReduceScatter in rank order, into f32, bf16 or f16: receives the sum of the squares of the
  /// result's valid elements after the operation; null if not requested.
  double *squares = nullptr;
  CountedRows counted; ///< AllToAll: only these rows are sent; others are undefined in the result
  int64_t by = 0;      ///< Shift: `out` is `in` of the member `by` positions before this one
  /// Disjoint ranges of elements in ascending order. They must outlive every launch of the graph
  /// that captured the collective.
  std::span<const ElementRange> valid;
};

/// How memory is registered, from least to most: not at all; locally, so that collectives read and
/// write it in place; or as windows visible to all members, so that copy engines can use it.
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
  int64_t bytes = 0; ///< size of the whole operand or result
  bool anyOrder = false;
};

/// The member ranks of a channel and its purpose.
struct ChannelDesc {
  std::string name;
  std::vector<int>
      members; ///< world ranks in group order; at least one of them must be in this process
  /// Memory that collectives share, and that the creation of the channel may overwrite. Must
  /// outlive the channel.
  std::vector<SharedMemory> shared;
  /// Device memory of each rank of this process that the creation of the channel may use
  /// temporarily and overwrite, because it has no content yet.
  std::vector<SharedMemory> lent;
  /// Device memory of each rank of this process that contains all results of exchanges of counted
  /// rows; other members' kernels may write to it. Empty in all processes of the channel or in
  /// none. Must outlive the channel.
  std::vector<SharedMemory> reached;
  /// How `shared` is registered, as far as the backend supports it. All-gathers between windows do
  /// not occupy multiprocessors.
  Registration registration = Registration::Nothing;
  /// Multiprocessors of the device that kernels may occupy; 0: only the backend's own limit
  /// applies.
  int32_t multiprocessors = 0;
  /// The uses for which a backend prepares the channel; empty: all uses.
  std::vector<ChannelUse> uses;
  /// Device memory per member that the uses need in addition to operands and results, if the
  /// backend uses receive buffers for sums. If `uses` is empty, the backend allocates on demand.
  int64_t receiveBufferBytes = 0;
};

/// An error if there are no members, or if one is not a rank or is listed twice.
Status checkMembers(const ChannelDesc &desc, int worldSize);

/// An error if no backend sums, compares or copies elements of these types.
Status checkTypes(const Collective &desc);

/// An error if the slots of counted rows are not equal, if members do not have equally many slots,
/// or if the collective cannot have counted rows.
Status checkCounted(const Collective &desc, int members);

/// A communicator of one group. All members must issue the same collectives in the same order. The
/// collectives of one rank on a channel execute one after the other, even if they are issued on
/// several streams.
class Channel {
public:
  virtual ~Channel() = default;
  Channel(const Channel &) = delete;
  Channel &operator=(const Channel &) = delete;

  const ChannelDesc &desc() const { return desc_; }
  int size() const { return static_cast<int>(desc_.members.size()); }
  /// Bandwidth in GB/s at which a member received the channel's largest all-gather when the channel
  /// was created; 0: not measured.
  virtual double measuredGatherGBs() const { return 0; }
  /// Bytes of each member's receive buffer.
  virtual int64_t receiveBufferBytes() const { return 0; }

protected:
  explicit Channel(ChannelDesc desc) : desc_(std::move(desc)) {}

private:
  ChannelDesc desc_;
};

} // namespace shardc::hal
