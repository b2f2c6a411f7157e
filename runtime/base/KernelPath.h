// Chooses the kernels that run an op on a GPU, from the rows of KernelPaths.def. Compiler and
// backend share this choice: the compiler asks for a device of its table, the backend for the
// device, the libraries and the machine code that it finds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/DType.h"

namespace shardc {

class Status; // its header includes what nvcc does not compile

/// Ops among which kernels are chosen by the same rows.
enum class PathGroup : uint8_t { Attention, Grouped, Symmetric, Launch, Delta };
inline constexpr size_t kPathGroupCount = 5;

enum class KernelPath : uint8_t {
  None, ///< no kernel serves the op
#define PATH(enumerator, ...) enumerator,
#include "runtime/base/KernelPaths.def"
};
inline constexpr size_t kKernelPathCount = 1
#define PATH(...) +1
#include "runtime/base/KernelPaths.def"
    ;

/// A row of KernelPaths.def, without its condition.
struct KernelPathInfo {
  KernelPath path;
  PathGroup group;
  std::string_view word;
  int from, to, code, sharedKiB;
  const char *text;
  bool isOnCudaCores() const { return word == "plain"; }
};
const KernelPathInfo &info(KernelPath path);
std::string_view wordOf(PathGroup group);

/// The properties of an attention op on which the choice of kernels depends.
struct AttentionKind {
  static constexpr PathGroup kGroup = PathGroup::Attention;
  DType type = DType::F32; ///< type of queries, keys and values
  bool drops = false;      ///< dropout of attention probabilities
  bool isCausal = true;
  bool hasDocuments = false;    ///< document masks
  bool hasWindow = false;       ///< a query sees only a number of keys before its own position
  bool hasChunks = false;       ///< a query sees only keys of its own chunk of the sequence
  bool isCapped = false;        ///< scores are soft-capped
  bool packed = false;          ///< queries, keys and values share rows
  bool hasSlices = false;       ///< queries and keys are slices of sequences
  bool hasAllKeys = false;      ///< with slices: the keys are whole sequences
  bool hasUnknownOrder = false; ///< causal slices whose positions are known only from operands
  int64_t heads = 1, groups = 1;
  int64_t channels = 64, values = 64; ///< head sizes: of queries and keys, and of values
  bool isGradient = false;
};

/// The properties of a matrix product with one operand per expert.
struct GroupedKind {
  static constexpr PathGroup kGroup = PathGroup::Grouped;
  DType type = DType::F32;     ///< type in which the operands are multiplied; F8E4M3: any of 8 bits
  bool hasOneType = true;      ///< operands, biases and results other than gradients have it
  bool hasSmallBlocks = false; ///< 32 numbers share a scale
  int64_t k = 8, m = 8;        ///< extents of a product [rows, k]·[k, m], or of a gradient [k, m]
  int64_t groups = 1;          ///< in all slots
};

/// The properties of products of matrices with their own transposes, of bf16.
struct SymmetricKind {
  static constexpr PathGroup kGroup = PathGroup::Symmetric;
  int64_t side = 8, depth = 8;
};

/// Kernels of which a faster form needs newer instructions.
struct LaunchKind {
  static constexpr PathGroup kGroup = PathGroup::Launch;
};

/// The properties of a delta rule or a state scan, or of its gradient.
struct DeltaKind {
  static constexpr PathGroup kGroup = PathGroup::Delta;
  DType type = DType::F32;        ///< type of queries, keys and values
  int64_t keys = 64, values = 64; ///< head sizes
  bool isScan = false;            ///< a state scan
};

/// Most groups of a grouped product, and longest side of a symmetric one, on tensor cores.
inline constexpr int64_t kGroupsOfTilesMax = 1024, kSymmetricSideMax = 16384;

/// What a GPU and the software on it offer.
struct GpuTraits {
  int capability = 0;          ///< compute capability times 10
  int sharedKiB = 0;           ///< shared memory that a block may have
  int cudnn = 0, cublasLt = 0; ///< CUDNN_VERSION and CUBLAS_VERSION; 0: not there
  /// By path: the version of PTX times 10 from which the device's code comes; 0: it has none.
  std::array<int, kKernelPathCount> code = {};
  /// By group: the path that ops take if it serves them; None: the table's order decides.
  std::array<KernelPath, kPathGroupCount> forced = {};
};

/// The GPUs of a capability, with the libraries and the machine code of a package.
GpuTraits packagedTraits(int capability);

/// KiB of shared memory that a block may have on GPUs of a capability times 10.
int sharedKiBOf(int capability);

/// Forces the paths of a text such as `attention:plain,grouped:wgmma`. Returns the part that names
/// no row of the table; empty if there is none.
std::string_view forcePaths(std::string_view text, GpuTraits &gpu);

/// InvalidInput if the environment variable SHARDC_KERNEL_PATH has such a part.
Status checkKernelPaths();

/// The paths that a GPU offers, by group, from the fastest on, as text; forced ones stand first.
/// Equal texts mean that ops take equal paths.
std::string offeredText(const GpuTraits &gpu);

/// The path that an op takes on a GPU.
KernelPath kernelPath(const AttentionKind &kind, const GpuTraits &gpu);
KernelPath kernelPath(const GroupedKind &kind, const GpuTraits &gpu);
KernelPath kernelPath(const SymmetricKind &kind, const GpuTraits &gpu);
KernelPath kernelPath(const LaunchKind &kind, const GpuTraits &gpu);
KernelPath kernelPath(const DeltaKind &kind, const GpuTraits &gpu);

/// Why an op does not take a path of its group on a GPU, whether or not another one is faster; null
/// if it could.
const char *pathRefusal(KernelPath path, const AttentionKind &kind, const GpuTraits &gpu);
const char *pathRefusal(KernelPath path, const GroupedKind &kind, const GpuTraits &gpu);
const char *pathRefusal(KernelPath path, const DeltaKind &kind, const GpuTraits &gpu);

/// Why no kernel of the GPU serves the attention; null if one does.
const char *attentionRefusal(const AttentionKind &kind, const GpuTraits &gpu);

} // namespace shardc
