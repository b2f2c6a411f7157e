// Part i of member j's y = part j of member i's x, for the valid rows. Each block of a member works
// with the blocks of the same index of all other members. A block
// 1. signals that its result may be written, and where it is;
// 2. writes its share of the rows to each other member, once that member has signalled;
// 3. signals that it has written them;
// 4. ends when all rows for this member have arrived.
// Meanwhile, half of its threads copy the rows that stay on this member. Mapping: a thread moves
// four pieces of 16 bytes at a time, or smaller pieces if rows or addresses are not multiples of 16
// bytes. Limited by the links between devices.
#include "kernels/cuda/PeerRows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kGivers = 512;  ///< threads that write to other members
constexpr int kKeepers = 512; ///< threads that copy the own part
constexpr int kAhead = 4;     ///< pieces that a thread loads before it stores the first

__device__ __forceinline__ void emit(uint32_t *flag, uint32_t call) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(call) : "memory");
}

__device__ __forceinline__ uint32_t signalledCall(const uint32_t *flag) {
  uint32_t call;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(call) : "l"(flag) : "memory");
  return call;
}

/// Returns when another member has signalled this call, or when `stop` is set. Call numbers may
/// wrap around.
__device__ void await(const uint32_t *flag, uint32_t call, const uint32_t *stop) {
  constexpr uint32_t kPollsPerStop = 1 << 12;
  for (uint32_t poll = 1; static_cast<int32_t>(signalledCall(flag) - call) < 0; ++poll)
    if (poll % kPollsPerStop == 0 && *static_cast<const volatile uint32_t *>(stop) != 0)
      return;
}

__device__ __forceinline__ void meetGivers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGivers) : "memory");
}

/// The number of valid rows in a slot: the sum of its groups' counts, limited to its capacity. All
/// threads of a warp must call it.
__device__ int64_t rowsOf(const PeerRows &p, int64_t slot) {
  int64_t sum = 0;
  for (int group = static_cast<int>(threadIdx.x) % kWarp; group < p.groups; group += kWarp)
    sum += p.counts[slot * p.groups + group];
  sum = warpSum(sum);
  return sum < 0 ? 0 : sum > p.rows ? p.rows : sum;
}

/// Copies this block's share of part `part` to `to`, with `threads` of its threads.
template <typename Piece>
__device__ void copyPart(const PeerRows &p, int part, std::byte *to, int thread, int threads) {
  int64_t slotBytes = p.rows * p.rowBytes;
  for (int s = 0; s < p.slots; ++s) {
    int64_t slot = int64_t{part} * p.slots + s;
    int64_t pieces = rowsOf(p, slot) * (p.rowBytes / static_cast<int64_t>(sizeof(Piece)));
    int64_t begin = pieces * blockIdx.x / gridDim.x, end = pieces * (blockIdx.x + 1) / gridDim.x;
    const Piece *from = reinterpret_cast<const Piece *>(p.in + slot * slotBytes);
    Piece *into = reinterpret_cast<Piece *>(to + s * slotBytes);
    for (int64_t first = begin + thread; first < end; first += int64_t{kAhead} * threads) {
      Piece piece[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (int64_t i = first + int64_t{a} * threads; i < end)
          piece[a] = from[i];
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (int64_t i = first + int64_t{a} * threads; i < end)
          into[i] = piece[a];
    }
  }
}

/// The threads below kGivers write rows to peers; the others copy the member's own part meanwhile.
/// Flags have system scope, since the peers are other devices. Each wait also watches `stop`, so
/// that the host can end it.
template <typename Piece>
__global__ void __launch_bounds__(kGivers + kKeepers) giveRows(const PeerRows p) {
  awaitPrevious();
  __shared__ uint32_t call;
  __shared__ uint64_t offset; // offset of the result in the memory of the current target
  if (threadIdx.x == 0)
    call = ++p.calls[blockIdx.x];
  __syncthreads();
  int64_t partBytes = p.slots * p.rows * p.rowBytes;
  auto thread = static_cast<int>(threadIdx.x);
  if (thread >= kGivers) {
    copyPart<Piece>(p, p.index, p.out + p.index * partBytes, thread - kGivers, kKeepers);
    return;
  }
  auto lineOf = [&](int reader, int teller) {
    return p.views[reader].lines + int64_t{teller} * gridDim.x + blockIdx.x;
  };
  for (int member = thread; member < p.size; member += kGivers)
    if (member != p.index) {
      PeerLine *line = lineOf(member, p.index);
      *static_cast<volatile uint64_t *>(&line->offset) = p.offset;
      emit(&line->ready, call);
    }
  for (int step = 1; step < p.size; ++step) { // in each step, members write to different members
    int member = (p.index + step) % p.size;
    if (thread == 0) {
      const PeerLine *line = lineOf(p.index, member);
      await(&line->ready, call, p.stop);
      offset = *static_cast<const volatile uint64_t *>(&line->offset);
    }
    meetGivers();
    copyPart<Piece>(p, member, p.views[member].memory + offset + p.index * partBytes, thread,
                    kGivers);
    __threadfence_system();
    meetGivers();
    if (thread == 0)
      emit(&lineOf(member, p.index)->done, call);
  }
  for (int member = thread; member < p.size; member += kGivers)
    if (member != p.index)
      await(&lineOf(p.index, member)->done, call, p.stop);
}

/// Size of pieces: the largest power of two, up to 16, that divides rows and addresses.
int pieceOf(const PeerRows &p) {
  uint64_t all = reinterpret_cast<uintptr_t>(p.in) | reinterpret_cast<uintptr_t>(p.out) |
                 static_cast<uint64_t>(p.rowBytes) | 16;
  return static_cast<int>(all & -all);
}

/// Selects the copy kernel for the largest word that fits addresses and row size.
template <typename Launch> void forPiece(int bytes, Launch launch) {
  if (bytes == 16)
    launch.template operator()<uint4>();
  else if (bytes == 8)
    launch.template operator()<uint2>();
  else if (bytes == 4)
    launch.template operator()<uint32_t>();
  else if (bytes == 2)
    launch.template operator()<uint16_t>();
  else
    launch.template operator()<uint8_t>();
}

} // namespace

void launchPeerRows(const PeerRows &rows, int blocks, Queue &queue) {
  noteOther(queue); // a collective precedes it on the channel
  forPiece(pieceOf(rows), [&]<typename Piece>() {
    launchKernel(giveRows<Piece>, static_cast<unsigned>(blocks), kGivers + kKeepers, 0, queue,
                 rows);
  });
}

cudaError_t loadPeerRows() {
  cudaFuncAttributes unused;
  cudaError_t status = cudaSuccess;
  for (int bytes : {16, 8, 4, 2, 1})
    forPiece(bytes, [&]<typename Piece>() {
      if (status == cudaSuccess)
        status = cudaFuncGetAttributes(&unused, giveRows<Piece>);
    });
  return status;
}

} // namespace shardc::kernels::cuda
