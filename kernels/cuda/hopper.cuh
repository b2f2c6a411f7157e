// Hopper's tensor cores and tensor memory accelerator, with one function per instruction: barriers
// in shared memory, copies of tiles by tensor maps, and matrix products of a warpgroup (wgmma). For
// sm_90a only. Addresses are 32-bit addresses of shared memory. Source: PTX ISA 9.0, chapters on
// mbarrier, cp.async.bulk.tensor and wgmma.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace shardc::kernels::cuda::hopper {

/// The 32-bit address of something in this block's shared memory, for PTX instructions.
__device__ __forceinline__ uint32_t sharedAddress(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers ----

/// Initialises a barrier whose phases end after `arrivals` arrivals. One thread calls it.
__device__ __forceinline__ void initBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes initialised barriers visible to the cluster and to the copy engine.
__device__ __forceinline__ void fenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives at the barrier. Its phase then ends only after `bytes` bytes of copies have arrived.
__device__ __forceinline__ void expectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives at a barrier of this block.
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier with the same address in another block of the cluster.
__device__ __forceinline__ void arriveAt(uint32_t barrier, uint32_t block) {
  asm volatile("{\n"
               ".reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
               "}" ::"r"(barrier),
               "r"(block)
               : "memory");
}

/// Returns when the phase of this parity has ended.
__device__ __forceinline__ void waitFor(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra ended;\n"
               "bra again;\n"
               "ended:\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

// Clusters are the one part of this file that is also compiled for older GPUs, as PTX. There, a
// kernel that needs them stops the run.

/// Waits until all threads of the cluster have called it; what they wrote before is then visible.
__device__ __forceinline__ void syncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#else
  __trap();
#endif
}

/// Reads a float at the same address in another block's shared memory.
__device__ __forceinline__ float readFrom(uint32_t address, uint32_t block) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n"
               ".reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %1, %2;\n"
               "ld.shared::cluster.f32 %0, [remote];\n"
               "}"
               : "=f"(value)
               : "r"(address), "r"(block)
               : "memory");
#else
  __trap();
#endif
  return value;
}

/// This block's index in its cluster.
__device__ __forceinline__ uint32_t blockOfCluster() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Synchronises `threads` threads of the block at one of 16 numbered barriers. __syncthreads uses
/// barrier 0.
__device__ __forceinline__ void syncThreads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- tiles ----

/// The first element of a tile in a tensor of three dimensions, innermost first.
struct Corner {
  int x, y, z;
};

/// Starts the copy of a tile to this block's shared memory; the barrier counts its bytes.
__device__ __forceinline__ void loadTile(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                         Corner at) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
               "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z)
               : "memory");
}

/// Starts the copy of a tile to the same address in both blocks of a cluster of two; the barrier of
/// each counts its bytes.
__device__ __forceinline__ void loadTileForBoth(const CUtensorMap *map, uint32_t to,
                                                uint32_t barrier, Corner at) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
               "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z),
               "h"(static_cast<uint16_t>(3))
               : "memory");
}

/// Zeroes 16 bytes of shared memory.
__device__ __forceinline__ void clear16(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

/// Makes the threads' writes to shared memory visible to copies and products.
__device__ __forceinline__ void fenceForCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products ----

/// Raises the register limit of this warpgroup's threads to kRegisters, and waits until these
/// registers are free. All four warps must call it.
template <int kRegisters> __device__ __forceinline__ void takeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
/// Lowers the register limit of this warpgroup's threads to kRegisters. All four warps must call
/// it.
template <int kRegisters> __device__ __forceinline__ void giveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Describes an operand of wgmma in shared memory: rows of 128 bytes, whose 16-byte parts are
/// swizzled by row. Rows along k are consecutive. Rows across k lie in blocks of 64 columns, which
/// are `blockBytes` apart. The address costs few instructions if the compiler can see that it is
/// uniform in a warp.
class Factor {
public:
  /// `address` is in this block's shared memory. The bits from 24 on are the block's index in the
  /// cluster and are dropped.
  __device__ __forceinline__ Factor(uint32_t address, uint32_t blockBytes)
      : lower_(blockBytes >> 4 << 16 | (address & 0x3ffff) >> 4) {}
  /// Descriptor of the operand that begins `bytes` bytes after this one.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kSwizzle128 = 1 << 30, kEightRows = 1024 >> 4;
    return uint64_t{kSwizzle128 | kEightRows} << 32 | (lower_ + (bytes >> 4));
  }

private:
  uint32_t lower_;
};

/// Must precede the first product, and each product after other instructions have changed the
/// registers of its sums or its first operand.
__device__ __forceinline__ void beginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Commits the products that were started since the last call as one group.
__device__ __forceinline__ void endProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kGroups of the committed groups of products are unfinished.
template <int kGroups> __device__ __forceinline__ void waitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

#define SHARDC_NAMES32                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "     \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SHARDC_NAMES64                                                                             \
  SHARDC_NAMES32                                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "        \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SHARDC_NAMES96                                                                             \
  SHARDC_NAMES64                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "        \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SHARDC_NAMES104 SHARDC_NAMES96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SHARDC_NAMES112 SHARDC_NAMES104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SHARDC_NAMES120 SHARDC_NAMES112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SHARDC_NAMES128 SHARDC_NAMES120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SHARDC_SUMS8(i)                                                                            \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]),            \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SHARDC_SUMS32(i)                                                                           \
  SHARDC_SUMS8(i), SHARDC_SUMS8(i + 8), SHARDC_SUMS8(i + 16), SHARDC_SUMS8(i + 24)
#define SHARDC_SUMS64(i) SHARDC_SUMS32(i), SHARDC_SUMS32(i + 32)
#define SHARDC_SUMS96(i) SHARDC_SUMS64(i), SHARDC_SUMS32(i + 64)
#define SHARDC_SUMS104(i) SHARDC_SUMS96(i), SHARDC_SUMS8(i + 96)
#define SHARDC_SUMS112(i) SHARDC_SUMS104(i), SHARDC_SUMS8(i + 104)
#define SHARDC_SUMS120(i) SHARDC_SUMS112(i), SHARDC_SUMS8(i + 112)
#define SHARDC_SUMS128(i) SHARDC_SUMS120(i), SHARDC_SUMS8(i + 120)
/// A wgmma instruction with `cols` columns and `sums` sums per thread. The further arguments are
/// the numbers of its other operands.
#define SHARDC_PRODUCT(cols, sums, a, b, adds, transA, transB, type)                               \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" adds ", 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type                   \
               " {" SHARDC_NAMES##sums "}, %" a ", %" b ", adds, 1, 1, %" transA ", %" transB      \
                                       ";\n}"                                                      \
               : SHARDC_SUMS##sums(0)                                                              \
               : "l"(atA), "l"(atB), "r"(addsToSum), "n"(kTransA), "n"(kTransB))
#define SHARDC_PRODUCT_OF_TYPE(cols, sums, a, b, adds, transA, transB)                             \
  if constexpr (kIsF16)                                                                            \
    SHARDC_PRODUCT(cols, sums, a, b, adds, transA, transB, "f16");                                 \
  else                                                                                             \
    SHARDC_PRODUCT(cols, sums, a, b, adds, transA, transB, "bf16")

/// sum[64, kCols] = a[64, 16]·b[16, kCols] by a warpgroup, added to the old sum unless addsToSum is
/// 0. Thread t of a warp has rows t/4 and t/4 + 8 of the warp's 16 rows and, in each 8 columns,
/// columns 2·(t mod 4) and the next: sum[4·j ..] = (row, col), (row, col + 1), (row + 8, col), ...
/// The rows of transposed operands are across k.
template <int kCols, bool kIsF16, int kTransA, int kTransB>
__device__ __forceinline__ void addProduct(float (&sum)[128], uint64_t atA, uint64_t atB,
                                           int addsToSum) {
  static_assert(kCols <= 256 && kCols % (kCols > 192 ? 16 : 64) == 0);
  if constexpr (kCols == 64) {
    SHARDC_PRODUCT_OF_TYPE("64", 32, "32", "33", "34", "35", "36");
  } else if constexpr (kCols == 128) {
    SHARDC_PRODUCT_OF_TYPE("128", 64, "64", "65", "66", "67", "68");
  } else if constexpr (kCols == 192) {
    SHARDC_PRODUCT_OF_TYPE("192", 96, "96", "97", "98", "99", "100");
  } else if constexpr (kCols == 208) {
    SHARDC_PRODUCT_OF_TYPE("208", 104, "104", "105", "106", "107", "108");
  } else if constexpr (kCols == 224) {
    SHARDC_PRODUCT_OF_TYPE("224", 112, "112", "113", "114", "115", "116");
  } else if constexpr (kCols == 240) {
    SHARDC_PRODUCT_OF_TYPE("240", 120, "120", "121", "122", "123", "124");
  } else {
    SHARDC_PRODUCT_OF_TYPE("256", 128, "128", "129", "130", "131", "132");
  }
}

/// Multiplies into an array of exactly kCols/2 sums, with rows of the first operand along k.
template <int kCols, bool kIsF16, int kTransB>
__device__ __forceinline__ void addProductOf(float (&sum)[kCols / 2], uint64_t atA, uint64_t atB,
                                             int addsToSum) {
  constexpr int kTransA = 0;
  static_assert(kCols == 64 || kCols == 128);
  if constexpr (kCols == 64)
    SHARDC_PRODUCT_OF_TYPE("64", 32, "32", "33", "34", "35", "36");
  else
    SHARDC_PRODUCT_OF_TYPE("128", 64, "64", "65", "66", "67", "68");
}

#define SHARDC_PRODUCT_FROM(cols, sums, a0, a1, a2, a3, b, transB, type)                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type                   \
               " {" SHARDC_NAMES##sums "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b              \
                                       ", 1, 1, 1, %" transB ";"                                   \
               : SHARDC_SUMS##sums(0)                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(atB), "n"(kTransB))

/// sum[64, kCols] += a[64, 16]·b[16, kCols], with the first operand in registers, in the layout of
/// sums and packed in pairs of columns: a = {(row, col), (row + 8, col), (row, col + 8), (row + 8,
/// col + 8)}. The instruction reads the registers until it completes, so they must not change
/// before waitForProducts().
template <int kCols, bool kIsF16, int kTransB>
__device__ __forceinline__ void addProductFrom(float (&sum)[kCols / 2], const uint32_t *a,
                                               uint64_t atB) {
  static_assert(kCols == 64 || kCols == 128);
  if constexpr (kCols == 64 && kIsF16)
    SHARDC_PRODUCT_FROM("64", 32, "32", "33", "34", "35", "36", "37", "f16");
  else if constexpr (kCols == 64)
    SHARDC_PRODUCT_FROM("64", 32, "32", "33", "34", "35", "36", "37", "bf16");
  else if constexpr (kIsF16)
    SHARDC_PRODUCT_FROM("128", 64, "64", "65", "66", "67", "68", "69", "f16");
  else
    SHARDC_PRODUCT_FROM("128", 64, "64", "65", "66", "67", "68", "69", "bf16");
}

/// Keeps the compiler from moving reads of the sums before waitForProducts().
template <int kSums> __device__ __forceinline__ void settle(float (&sum)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    asm volatile("" : "+f"(sum[i])::"memory");
}

#undef SHARDC_PRODUCT_FROM
#define SHARDC_PRODUCT8(type)                                                                      \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                  \
               "wgmma.mma_async.sync.aligned.m64n128k32.f32." type ".e4m3 {" SHARDC_NAMES64        \
               "}, %64, %65, adds, 1, 1;\n}"                                                       \
               : SHARDC_SUMS64(0)                                                                  \
               : "l"(a), "l"(b), "r"(adds))

/// Multiplies 8-bit operands with rows along k: sum[64, 128] = a[64, 32]·b[32, 128]. The second
/// operand is e4m3. The tensor cores keep fewer bits of these sums than fp32 has, so sums must be
/// short.
template <bool kIsE5M2>
__device__ __forceinline__ void addProduct8(float (&sum)[64], uint64_t a, uint64_t b, int adds) {
  if constexpr (kIsE5M2)
    SHARDC_PRODUCT8("e5m2");
  else
    SHARDC_PRODUCT8("e4m3");
}

#undef SHARDC_PRODUCT8
#undef SHARDC_PRODUCT_OF_TYPE
#undef SHARDC_PRODUCT
#undef SHARDC_SUMS128
#undef SHARDC_SUMS120
#undef SHARDC_SUMS112
#undef SHARDC_SUMS104
#undef SHARDC_SUMS96
#undef SHARDC_SUMS64
#undef SHARDC_SUMS32
#undef SHARDC_SUMS8
#undef SHARDC_NAMES128
#undef SHARDC_NAMES120
#undef SHARDC_NAMES112
#undef SHARDC_NAMES104
#undef SHARDC_NAMES96
#undef SHARDC_NAMES64
#undef SHARDC_NAMES32

/// Writes four 8-by-8 matrices of 16-bit elements, each transposed if kTransposes. Lane l passes
/// the address of row l mod 8 of what is written of matrix l/8.
template <bool kTransposes = false>
__device__ __forceinline__ void storeMatrices(uint32_t address, const uint32_t (&v)[4]) {
  if constexpr (kTransposes)
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
        : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

} // namespace shardc::kernels::cuda::hopper
