// Implements each collective in one of several ways: with NCCL's own, with sends and receives
// followed by a kernel that sums in rank order, or with kernels that write to the memory of peers.
// Sums in rank order have the same bits on every number of nodes.
#include "runtime/backend/cuda/CudaChannel.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/RankSum.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/GroupCall.h"
#include "runtime/backend/cuda/Kernels.h"
#include "runtime/base/Reduction.h"

namespace shardc::cuda {
namespace {

using hal::Collective;
using hal::CollectiveKind;
using kernels::cuda::Queue;
using kernels::cuda::RankSum;

Reduction reductionOf(const Collective &desc, int members) {
  return {desc.kind == CollectiveKind::ReduceScatter,
          members,
          desc.count,
          desc.inType,
          desc.outType,
          desc.accumulate,
          desc.anyOrder,
          desc.squares != nullptr};
}

/// Types of one byte are never summed by NCCL, only moved. Therefore it does not matter which of
/// them it is.
Result<ncclDataType_t> ncclType(DType type) {
  switch (type) {
  case DType::F64:
    return ncclFloat64;
  case DType::F32:
    return ncclFloat32;
  case DType::BF16:
    return ncclBfloat16;
  case DType::F16:
    return ncclFloat16;
  case DType::I64:
    return ncclInt64;
  case DType::I32:
    return ncclInt32;
  default:
    if (dtypeBytes(type) == 1)
      return ncclUint8;
    return makeStatus(StatusCode::InvalidInput, "{} cannot be exchanged", dtypeName(type));
  }
}

/// Transfers NF4 records as 32-bit words, since NCCL has no type for them.
Collective ofWords(Collective desc) {
  if (isRecord(desc.inType) && desc.outType == desc.inType) {
    desc.count *= dtypeBytes(desc.inType) / dtypeBytes(DType::I32);
    desc.inType = desc.outType = DType::I32;
  }
  return desc;
}

std::byte *at(const void *base, int64_t elements, DType type) {
  return static_cast<std::byte *>(const_cast<void *>(base)) + elements * dtypeBytes(type);
}

Status addUp(const RankSum &sum, Queue &queue) {
  kernels::cuda::launchRankSum(sum, queue);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return Status::ok();
}

} // namespace

/// Creates one member per rank of this process. A channel with one rank needs neither a
/// communicator nor receive buffers.
Result<std::unique_ptr<CudaChannel>> CudaChannel::create(const hal::ChannelDesc &desc,
                                                         const std::vector<DeviceState *> &devices,
                                                         const Options &options,
                                                         CommunicatorWatch &watch) {
  std::unique_ptr<CudaChannel> channel(new CudaChannel(desc, watch));
  for (size_t i = 0; i < desc.members.size(); ++i)
    for (DeviceState *device : devices)
      if (device->rank == desc.members[i]) {
        auto member = std::make_unique<Member>();
        member->rank = device->rank;
        member->index = static_cast<int>(i);
        member->device = device;
        ASSIGN_OR_RETURN(member->order, CudaEvent::create(*device));
        channel->members_.push_back(std::move(member));
      }
  if (channel->members_.empty())
    return makeStatus(StatusCode::InvalidInput, "channel '{}' has no member in this process",
                      desc.name);
  if (channel->size() > 1) {
    if (desc.receiveBufferBytes > 0)
      RETURN_IF_ERROR(channel->allocateReceiveBuffers(desc.receiveBufferBytes));
    RETURN_IF_ERROR(channel->connect(options));
  }
  return channel;
}

CudaChannel::~CudaChannel() {
  for (std::unique_ptr<Member> &member : members_) {
    if (member->peers)
      watch_.removeStop(member->peers->stop());
    member->peers.reset(); // closes memory of other members before they free it
    for (ncclComm_t communicator : {member->meeting, member->communicator})
      if (communicator && !watch_.hasFailed()) {
        watch_.remove(communicator);
        cudaSetDevice(member->device->device);
        static_cast<void>(ncclCommDestroy(communicator));
      }
  }
}

CudaChannel::Member *CudaChannel::memberOf(int rank) {
  for (std::unique_ptr<Member> &member : members_)
    if (member->rank == rank)
      return member.get();
  return nullptr;
}

Status CudaChannel::allocateReceiveBuffers(int64_t bytes) {
  for (std::unique_ptr<Member> &each : members_) {
    ASSIGN_OR_RETURN(auto buffer,
                     each->device->allocations->allocateBuffer(
                         each->device->device, hal::MemoryKind::Work, bytes,
                         fmt::format("receive buffer of channel '{}'", desc().name), false));
    each->receiveBuffers.push_back(std::move(buffer));
  }
  return Status::ok();
}

int64_t CudaChannel::receiveBufferBytes() const {
  const Member &member = *members_.front();
  return member.receiveBuffers.empty() ? 0 : member.receiveBuffers.back()->bytes();
}

Result<void *> CudaChannel::receiveBuffer(Member &member, const Collective &desc) {
  int64_t bytes = shardc::receiveBufferBytes(reductionOf(desc, size()));
  if (receiveBufferBytes() < bytes) {
    if (!this->desc().uses.empty())
      return makeStatus(StatusCode::Internal,
                        "channel '{}': {} needs a receive buffer of {} bytes; it has one of {}",
                        this->desc().name, hal::toString(desc.kind), bytes, receiveBufferBytes());
    RETURN_IF_ERROR(allocateReceiveBuffers(bytes));
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(member.device->device));
  return static_cast<void *>(member.receiveBuffers.empty() ? nullptr
                                                           : member.receiveBuffers.back()->data());
}

/// Queues one collective on the member's stream. How a sum is made depends on its size, its types
/// and on whether any order is allowed (ReductionWay).
Status CudaChannel::issue(Member &member, const Collective &asked, Queue &queue) {
  const Collective desc = ofWords(asked);
  if (desc.counted.counts)
    RETURN_IF_ERROR(hal::checkCounted(desc, size()));
  RETURN_IF_ERROR(hal::checkTypes(desc));
  if (watch_.hasFailed())
    return makeStatus(StatusCode::Aborted, "channel '{}' was aborted", this->desc().name);
  switch (desc.kind) {
  case CollectiveKind::AllGather:
    return allGather(member, desc, queue);
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return transfer(member, desc, queue);
  case CollectiveKind::AllReduceMax:
    return allReduceByNccl(member, desc, queue);
  case CollectiveKind::AllToAll:
    return allToAll(member, desc, queue);
  case CollectiveKind::Shift:
    return shift(member, desc, queue);
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllReduce:
    break;
  }
  bool scatters = desc.kind == CollectiveKind::ReduceScatter;
  ReductionWay way = wayOf(reductionOf(desc, size()));
  if (desc.squares && (!scatters || way != ReductionWay::Exchange || size() == 1))
    return makeStatus(StatusCode::InvalidInput,
                      "channel '{}': {} sums squares of what is exchanged", this->desc().name,
                      hal::toString(desc.kind));
  switch (way) {
  case ReductionWay::Library:
  case ReductionWay::LibraryThen:
    return scatters ? reduceByNccl(member, desc, queue) : allReduceByNccl(member, desc, queue);
  case ReductionWay::Exchange:
    return scatters ? reduceScatter(member, desc, queue) : allReduce(member, desc, queue);
  case ReductionWay::Gather:
    return allReduceSmall(member, desc, queue);
  }
  return Status::ok();
}

Status CudaChannel::allGather(Member &member, const Collective &desc, Queue &queue) {
  if (size() == 1) {
    if (desc.in != desc.out)
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(
          desc.out, desc.in, static_cast<size_t>(desc.count * dtypeBytes(desc.inType)),
          cudaMemcpyDeviceToDevice, queue));
    return Status::ok();
  }
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
  RETURN_IF_CUDA_ERROR(ncclAllGather(desc.in, desc.out, static_cast<size_t>(desc.count), type,
                                     member.communicator, queue));
  return Status::ok();
}

ncclResult_t CudaChannel::meet(Member &member, cudaStream_t stream) {
  uint8_t *bytes = member.meetingBytes->data();
  return ncclAllGather(bytes + member.index, bytes, 1, ncclUint8, member.meeting, stream);
}

/// Sends to, or receives from, the other member of a pair. The earlier side waits in a kernel that
/// occupies one multiprocessor. Without this, it would wait in the kernels of the transfer, which
/// occupy multiprocessors that compute needs.
Status CudaChannel::transfer(Member &member, const Collective &desc, Queue &queue) {
  if (size() != 2)
    return makeStatus(StatusCode::InvalidInput, "channel '{}': {} of {} members; it needs two",
                      this->desc().name, hal::toString(desc.kind), size());
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
  auto count = static_cast<size_t>(desc.count);
  int other = 1 - member.index;
  if (member.meeting)
    RETURN_IF_CUDA_ERROR(meet(member, queue));
  RETURN_IF_CUDA_ERROR(desc.kind == CollectiveKind::Send
                           ? ncclSend(desc.in, count, type, other, member.communicator, queue)
                           : ncclRecv(desc.out, count, type, other, member.communicator, queue));
  return Status::ok();
}

Status CudaChannel::exchange(Member &member, const void *in, void *receiveBuffer, int64_t count,
                             int64_t chunk, DType type, Queue &queue) {
  ASSIGN_OR_RETURN(ncclDataType_t wire, ncclType(type));
  auto elementsOf = [&](int64_t p) { return std::clamp<int64_t>(count - p * chunk, 0, chunk); };
  auto mine = static_cast<size_t>(elementsOf(member.index));
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (int p = 0; p < size(); ++p) {
    if (p == member.index)
      continue;
    if (elementsOf(p) > 0)
      RETURN_IF_CUDA_ERROR(ncclSend(at(in, p * chunk, type), static_cast<size_t>(elementsOf(p)),
                                    wire, p, member.communicator, queue));
    if (mine > 0)
      RETURN_IF_CUDA_ERROR(
          ncclRecv(at(receiveBuffer, p * chunk, type), mine, wire, p, member.communicator, queue));
  }
  RETURN_IF_CUDA_ERROR(group.end());
  return Status::ok();
}

/// 1. All-to-all: each member receives everybody's version of its own part, in the communication
/// type. 2. One kernel adds the versions in rank order in fp32, divides for an average, adds to the
/// shard, and sums the squares if requested.
Status CudaChannel::reduceScatter(Member &member, const Collective &desc, Queue &queue) {
  void *versions = nullptr;
  if (size() > 1) {
    ASSIGN_OR_RETURN(versions, receiveBuffer(member, desc));
    RETURN_IF_ERROR(
        exchange(member, desc.in, versions, size() * desc.count, desc.count, desc.inType, queue));
  }
  RankSum sum = {versions, at(desc.in, member.index * desc.count, desc.inType)};
  sum.count = size(), sum.index = member.index;
  sum.stride = sum.elements = desc.count;
  sum.inType = desc.inType, sum.outType = desc.outType;
  sum.out = desc.out;
  sum.average = desc.average, sum.accumulate = desc.accumulate;
  if (desc.squares) {
    int64_t offset = squareSumsOffset(reductionOf(desc, size()));
    sum.partials = reinterpret_cast<double *>(static_cast<std::byte *>(versions) + offset);
    sum.squares = desc.squares, sum.valid = desc.valid;
  }
  return addUp(sum, queue);
}

Status CudaChannel::reduceByNccl(Member &member, const Collective &desc, Queue &queue) {
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
  bool direct = wayOf(reductionOf(desc, size())) == ReductionWay::Library;
  void *to = desc.out;
  if (!direct) {
    ASSIGN_OR_RETURN(to, receiveBuffer(member, desc));
  }
  RETURN_IF_CUDA_ERROR(ncclReduceScatter(desc.in, to, static_cast<size_t>(desc.count), type,
                                         desc.average ? ncclAvg : ncclSum, member.communicator,
                                         queue));
  if (direct)
    return Status::ok();
  RankSum sum = {to, to};
  sum.count = 1;
  sum.stride = sum.elements = desc.count;
  sum.inType = desc.inType, sum.outType = desc.outType;
  sum.out = desc.out;
  sum.accumulate = desc.accumulate;
  return addUp(sum, queue);
}

Status CudaChannel::allToAll(Member &member, const Collective &desc, Queue &queue) {
  if (desc.counted.counts && member.peers)
    return giveRows(member, desc, queue);
  int64_t own = member.index * desc.count;
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(
      at(desc.out, own, desc.outType), at(desc.in, own, desc.inType),
      static_cast<size_t>(desc.count * dtypeBytes(desc.inType)), cudaMemcpyDeviceToDevice, queue));
  if (size() == 1)
    return Status::ok();
  return exchange(member, desc.in, desc.out, size() * desc.count, desc.count, desc.inType, queue);
}

Status CudaChannel::giveRows(Member &member, const Collective &desc, Queue &queue) {
  const hal::CountedRows &counted = desc.counted;
  kernels::cuda::PeerRows rows;
  rows.in = static_cast<const std::byte *>(desc.in);
  rows.out = static_cast<std::byte *>(desc.out);
  rows.counts = counted.counts;
  rows.slots = static_cast<int>(counted.slots / size());
  rows.groups = static_cast<int>(counted.groups);
  rows.rows = counted.rows / counted.slots;
  rows.rowBytes = size() * desc.count * dtypeBytes(desc.inType) / counted.rows;
  const hal::SharedMemory &reached = member.peers->memory();
  const auto *begin = static_cast<const std::byte *>(reached.data);
  int64_t offset = rows.out - begin, bytes = counted.rows * rows.rowBytes;
  if (rows.out < begin || bytes > reached.bytes || offset > reached.bytes - bytes)
    return makeStatus(StatusCode::Internal, "channel '{}': a result of {} bytes is not reached",
                      this->desc().name, bytes);
  member.peers->complete(rows, rows.out);
  kernels::cuda::launchPeerRows(rows, peerBlocks(), queue);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return Status::ok();
}

Status CudaChannel::shift(Member &member, const Collective &desc, Queue &queue) {
  auto to = static_cast<int>(memberBehind(member.index, desc.by, size()));
  auto from = static_cast<int>(memberBehind(member.index, -desc.by, size()));
  if (from == member.index) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(desc.out, desc.in,
                                         static_cast<size_t>(desc.count * dtypeBytes(desc.inType)),
                                         cudaMemcpyDeviceToDevice, queue));
    return Status::ok();
  }
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  RETURN_IF_CUDA_ERROR(
      ncclSend(desc.in, static_cast<size_t>(desc.count), type, to, member.communicator, queue));
  RETURN_IF_CUDA_ERROR(
      ncclRecv(desc.out, static_cast<size_t>(desc.count), type, from, member.communicator, queue));
  RETURN_IF_CUDA_ERROR(group.end());
  return Status::ok();
}

Status CudaChannel::allReduceByNccl(Member &member, const Collective &desc, Queue &queue) {
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
  ncclRedOp_t op = desc.kind == CollectiveKind::AllReduceMax ? ncclMax
                   : desc.average                            ? ncclAvg
                                                             : ncclSum;
  RETURN_IF_CUDA_ERROR(ncclAllReduce(desc.in, desc.out, static_cast<size_t>(desc.count), type, op,
                                     member.communicator, queue));
  return Status::ok();
}

/// 1. All-gather of the whole operands. 2. Each member adds them in rank order.
Status CudaChannel::allReduceSmall(Member &member, const Collective &desc, Queue &queue) {
  void *wholes = nullptr;
  if (size() > 1) {
    ASSIGN_OR_RETURN(wholes, receiveBuffer(member, desc));
    ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.inType));
    RETURN_IF_CUDA_ERROR(ncclAllGather(desc.in, wholes, static_cast<size_t>(desc.count), type,
                                       member.communicator, queue));
  }
  RankSum sum = {wholes, size() > 1 ? at(wholes, member.index * desc.count, desc.inType) : desc.in};
  sum.count = size(), sum.index = member.index;
  sum.stride = sum.elements = desc.count;
  sum.inType = desc.inType, sum.outType = desc.outType;
  sum.out = desc.out;
  sum.average = desc.average;
  return addUp(sum, queue);
}

/// 1. All-to-all of chunks. 2. Each member adds its chunk in rank order, into its place in the
/// result.
/// 3. All-gather of the chunks.
Status CudaChannel::allReduce(Member &member, const Collective &desc, Queue &queue) {
  int64_t chunk = chunkOf(desc.count, size());
  void *versions = nullptr;
  if (size() > 1) {
    ASSIGN_OR_RETURN(versions, receiveBuffer(member, desc));
    RETURN_IF_ERROR(exchange(member, desc.in, versions, desc.count, chunk, desc.inType, queue));
  }
  // The last chunks may be shorter, or have no elements at all.
  int64_t begin = std::min(member.index * chunk, desc.count);
  RankSum sum = {versions, at(desc.in, begin, desc.inType)};
  sum.count = size(), sum.index = member.index;
  sum.stride = chunk, sum.elements = std::min(chunk, desc.count - begin);
  sum.inType = desc.inType, sum.outType = desc.outType;
  sum.out = at(desc.out, begin, desc.outType);
  sum.average = desc.average;
  RETURN_IF_ERROR(addUp(sum, queue));
  if (size() == 1)
    return Status::ok();
  ASSIGN_OR_RETURN(ncclDataType_t type, ncclType(desc.outType));
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (int p = 0; p < size(); ++p) {
    int64_t theirs = std::clamp<int64_t>(desc.count - p * chunk, 0, chunk);
    if (p == member.index)
      continue;
    if (sum.elements > 0)
      RETURN_IF_CUDA_ERROR(ncclSend(sum.out, static_cast<size_t>(sum.elements), type, p,
                                    member.communicator, queue));
    if (theirs > 0)
      RETURN_IF_CUDA_ERROR(ncclRecv(at(desc.out, p * chunk, desc.outType),
                                    static_cast<size_t>(theirs), type, p, member.communicator,
                                    queue));
  }
  RETURN_IF_CUDA_ERROR(group.end());
  return Status::ok();
}

} // namespace shardc::cuda
