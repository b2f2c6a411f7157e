#include "kernels/cuda/Gemm.h"

#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include <cublasLt.h>
#include <fmt/format.h>

#include "kernels/cuda/Errors.h"
#include "kernels/cuda/PlainGemm.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kDevicesMax = 64;
constexpr int64_t kWorkspaceAlign = 256;
constexpr int64_t kWorkspaceUsed = kGemmWorkspace - kWorkspaceAlign;

/// What decides which algorithm the heuristic gives.
struct Key {
  int64_t m, n, k;
  uint32_t alignA, alignB, alignC, alignBias;
  uint8_t transA, transB, accumulate, hasBias, in, out;
  uint16_t device;

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Key) == 48, "keys are compared and hashed as bytes: no padding");

struct KeyHash {
  size_t operator()(const Key &key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char *>(&key), sizeof key});
  }
};

/// A product as cuBLASLt takes it; kept for as long as the process lives.
struct Plan {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo = {};
  bool served = false; ///< the library has an algorithm
};

struct Library {
  std::mutex mutex;
  std::array<cublasLtHandle_t, kDevicesMax> handles{};
  std::unordered_map<Key, Plan, KeyHash> plans;
};

Library &library() {
  static Library instance;
  return instance;
}

uint32_t alignmentOf(const void *address) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & -bits);
}

Key keyOf(const Gemm &g, int device) {
  Key key = {};
  key.m = g.m, key.n = g.n, key.k = g.k;
  key.alignA = alignmentOf(g.a), key.alignB = alignmentOf(g.b), key.alignC = alignmentOf(g.c);
  key.alignBias = alignmentOf(g.bias);
  key.transA = g.transA, key.transB = g.transB, key.accumulate = g.accumulate;
  key.hasBias = g.bias != nullptr;
  key.in = static_cast<uint8_t>(g.in), key.out = static_cast<uint8_t>(g.out);
  key.device = static_cast<uint16_t>(device);
  return key;
}

cudaDataType typeOf(DType type) { return type == DType::BF16 ? CUDA_R_16BF : CUDA_R_32F; }

bool ok(cublasStatus_t status, const char *what) {
  if (status == CUBLAS_STATUS_SUCCESS)
    return true;
  reportError(fmt::format("{}: {}", what, cublasLtGetStatusString(status)));
  return false;
}

template <typename T>
bool setOp(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, T value) {
  return ok(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof value),
            "cublasLtMatmulDescSetAttribute");
}

template <typename T>
bool prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            T value) {
  return ok(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
}

/// cuBLASLt is column-major: it computes cᵀ[n,m] = op(b)ᵀ·op(a)ᵀ, and a row-major matrix is its
/// transpose there already. So b comes first, and a factor is transposed there as it is here.
bool describe(const Gemm &g, Plan &plan) {
  bool good = ok(cublasLtMatmulDescCreate(&plan.op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate");
  good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_TRANSA, g.transB ? CUBLAS_OP_T : CUBLAS_OP_N);
  good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_TRANSB, g.transA ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (g.bias) {
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, typeOf(g.out));
  }
  auto rows = [](int64_t count) { return static_cast<uint64_t>(count); };
  auto layout = [&](cublasLtMatrixLayout_t *to, DType type, int64_t cols, int64_t count) {
    good = good && ok(cublasLtMatrixLayoutCreate(to, typeOf(type), rows(cols), rows(count), cols),
                      "cublasLtMatrixLayoutCreate");
  };
  layout(&plan.first, g.in, g.transB ? g.k : g.n, g.transB ? g.n : g.k);
  layout(&plan.second, g.in, g.transA ? g.m : g.k, g.transA ? g.k : g.m);
  layout(&plan.result, g.out, g.n, g.m);
  return good;
}

bool choose(const Key &key, cublasLtHandle_t handle, Plan &plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (!ok(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"))
    return false;
  // Partial products are added in fp32 scratch by a kernel of their own; in place, their order
  // would be that of the blocks' arrival.
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  bool good = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                     static_cast<uint64_t>(kWorkspaceUsed)) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignB) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignA) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignC) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignC);
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  if (good) {
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.op, plan.first, plan.second, plan.result,
                                       plan.result, preference, 1, &result, &found);
    plan.served =
        status == CUBLAS_STATUS_SUCCESS && found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    plan.algo = result.algo;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  return good;
}

} // namespace

void runGemm(const Gemm &gemm, void *workspace, cudaStream_t stream) {
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevicesMax)
    return reportError(
        fmt::format("device {} is beyond the {} that are served", device, kDevicesMax));
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  cublasLtHandle_t &handle = lib.handles[static_cast<size_t>(device)];
  if (!handle && !ok(cublasLtCreate(&handle), "cublasLtCreate"))
    return;
  Key key = keyOf(gemm, device);
  auto [at, isNew] = lib.plans.try_emplace(key);
  Plan &plan = at->second;
  if (isNew && !(describe(gemm, plan) && choose(key, handle, plan)))
    return;
  if (!plan.served) // odd extents that no tensor-core kernel takes
    return launchPlainGemm(gemm, stream);
  if (gemm.bias && !setOp(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias))
    return;
  uintptr_t address = reinterpret_cast<uintptr_t>(workspace);
  auto *aligned =
      reinterpret_cast<void *>((address + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
  float one = 1.0f, beta = gemm.accumulate ? 1.0f : 0.0f;
  ok(cublasLtMatmul(handle, plan.op, &one, gemm.b, plan.first, gemm.a, plan.second, &beta, gemm.c,
                    plan.result, gemm.c, plan.result, &plan.algo, aligned,
                    static_cast<size_t>(kWorkspaceUsed), stream),
     "cublasLtMatmul");
}

} // namespace shardc::kernels::cuda
