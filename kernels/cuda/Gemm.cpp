#include "kernels/cuda/Gemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <cublasLt.h>
#include <fmt/format.h>

#include "kernels/cuda/Choices.h"
#include "kernels/cuda/Dependent.h"
#include "kernels/cuda/Errors.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Registry.h"
#include "kernels/cuda/Timing.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kDevicesMax = 64;
constexpr int64_t kWorkspaceAlign = 256;
constexpr int64_t kWorkspaceUsed = kGemmWorkspace - kWorkspaceAlign;

/// The properties of a product that determine the heuristic's algorithm.
struct Key {
  int64_t m, n, k;
  uint32_t alignA, alignB, alignC, alignBias, alignOther;
  uint8_t transA, transB, accumulate, hasBias, in, out, epilogue, unused;
  uint32_t device;
  int32_t multiprocessors, none;

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Key) == 64, "keys are compared and hashed as bytes: no padding");

struct KeyHash {
  size_t operator()(const Key &key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char *>(&key), sizeof key});
  }
};

/// A product as cuBLASLt describes it; kept until the process ends.
struct Plan {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo = {};
  bool served = false; ///< the library has an algorithm
  bool apart = false;  ///< a separate kernel is faster than the epilogue
};

/// Chosen by timing.
struct Choice {
  cublasLtMatmulAlgo_t algo;
  uint64_t apart;
};

struct Library {
  std::recursive_mutex mutex; ///< timing runs products
  std::array<cublasLtHandle_t, kDevicesMax> handles{};
  std::unordered_map<Key, Plan, KeyHash> plans;
  std::unordered_map<Key, Choice, KeyHash> choices;
  std::unordered_set<Key, KeyHash> met; ///< by tuning; ranks share the products by these numbers
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
  key.alignBias = alignmentOf(g.bias), key.alignOther = alignmentOf(g.other);
  key.transA = g.transA, key.transB = g.transB, key.accumulate = g.accumulate;
  key.hasBias = g.bias != nullptr;
  key.in = static_cast<uint8_t>(g.in), key.out = static_cast<uint8_t>(g.out);
  key.epilogue = static_cast<uint8_t>(g.epilogue);
  key.device = static_cast<uint32_t>(device);
  key.multiprocessors = g.multiprocessors;
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

cublasLtEpilogue_t epilogueOf(const Gemm &g) {
  switch (g.epilogue) {
  case Epilogue::Gelu:
    return g.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  case Epilogue::GeluBwd:
    return CUBLASLT_EPILOGUE_DGELU;
  case Epilogue::Plain:
    break;
  }
  return g.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// Sets the addresses in a description: products with one key have different addresses.
bool point(const Gemm &g, const Plan &plan) {
  return (!g.bias || setOp(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias)) &&
         (g.epilogue == Epilogue::Plain ||
          setOp(plan.op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.other));
}

/// cuBLASLt is column-major: it computes cᵀ[n,m] = op(b)ᵀ·op(a)ᵀ. A row-major matrix is already its
/// transpose there, so b comes first, and factors are transposed for it exactly if they are here.
bool describe(const Gemm &g, Plan &plan) {
  bool good = ok(cublasLtMatmulDescCreate(&plan.op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate");
  good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_TRANSA, g.transB ? CUBLAS_OP_T : CUBLAS_OP_N);
  good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_TRANSB, g.transA ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (g.bias)
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, typeOf(g.out));
  if (g.epilogue != Epilogue::Plain)
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.n);
  if (g.multiprocessors > 0)
    good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, g.multiprocessors);
  good = good && setOp(plan.op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogueOf(g)) && point(g, plan);
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

/// The library's candidates for a product, its preferred one first.
using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

bool findCandidates(const Key &key, cublasLtHandle_t handle, const Plan &plan, int most,
                    Candidates &candidates) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (!ok(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"))
    return false;
  // Partial products are added in fp32 scratch by a separate kernel. In place, the order of
  // additions would be the order in which blocks arrive.
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  bool good = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                     static_cast<uint64_t>(kWorkspaceUsed)) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignB) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignA) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignC) &&
              prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignC);
  candidates.resize(static_cast<size_t>(most));
  int found = 0;
  if (good && cublasLtMatmulAlgoGetHeuristic(handle, plan.op, plan.first, plan.second, plan.result,
                                             plan.result, preference, most, candidates.data(),
                                             &found) != CUBLAS_STATUS_SUCCESS)
    found = 0;
  candidates.resize(static_cast<size_t>(found));
  std::erase_if(candidates, [](const auto &c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  cublasLtMatmulPreferenceDestroy(preference);
  return good;
}

/// Null after a reported failure.
cublasLtHandle_t handleOf(Library &lib, int device) {
  cublasLtHandle_t &handle = lib.handles[static_cast<size_t>(device)];
  if (!handle)
    ok(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

/// Whether the library accepts the algorithm for this product, within its scratch and with a
/// deterministic order of additions. The algorithm may come from a file.
bool serves(cublasLtHandle_t handle, const Plan &plan, const cublasLtMatmulAlgo_t &algo) {
  cublasLtMatmulHeuristicResult_t result = {};
  if (cublasLtMatmulAlgoCheck(handle, plan.op, plan.first, plan.second, plan.result, plan.result,
                              &algo, &result) != CUBLAS_STATUS_SUCCESS ||
      result.state != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kWorkspaceUsed))
    return false;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
  size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                              &reduction, sizeof reduction,
                                              &written) == CUBLAS_STATUS_SUCCESS &&
         (reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
          reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/// Applies the choice for a product if there is one, and forgets a choice that cannot be applied.
void followChoice(Library &lib, const Key &key, Plan &plan) {
  auto known = lib.choices.find(key);
  if (known == lib.choices.end())
    return;
  const Choice &choice = known->second;
  // Only the work of an epilogue can be done separately.
  bool isMeant = choice.apart == 0 || (choice.apart == 1 && key.epilogue != 0);
  if (!isMeant || !plan.served || !serves(lib.handles[key.device], plan, choice.algo)) {
    lib.choices.erase(known);
    return;
  }
  plan.algo = choice.algo;
  plan.apart = choice.apart != 0;
}

void release(const Plan &plan) {
  for (cublasLtMatrixLayout_t layout : {plan.first, plan.second, plan.result})
    if (layout)
      cublasLtMatrixLayoutDestroy(layout);
  if (plan.op)
    cublasLtMatmulDescDestroy(plan.op);
}

/// The product's entry with the library's own choice; null after a reported failure.
Plan *planOf(Library &lib, const Gemm &gemm, const Key &key) {
  cublasLtHandle_t handle = handleOf(lib, static_cast<int>(key.device));
  if (!handle)
    return nullptr;
  auto [at, isNew] = lib.plans.try_emplace(key);
  Plan &plan = at->second;
  if (!isNew)
    return &plan;
  Candidates candidates;
  if (!describe(gemm, plan) || !findCandidates(key, handle, plan, 1, candidates)) {
    // An incomplete entry would look like a product that the library does not support.
    release(plan);
    lib.plans.erase(at);
    return nullptr;
  }
  plan.served = !candidates.empty();
  if (plan.served)
    plan.algo = candidates.front().algo;
  followChoice(lib, key, plan);
  return &plan;
}

cublasStatus_t launch(Library &lib, const Gemm &gemm, const Key &key, const Plan &plan,
                      const cublasLtMatmulAlgo_t &algo, void *workspace, cudaStream_t stream) {
  uintptr_t address = reinterpret_cast<uintptr_t>(workspace);
  auto *aligned =
      reinterpret_cast<void *>((address + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
  float one = 1.0f, beta = gemm.accumulate ? 1.0f : 0.0f;
  noteLibrary(stream);
  return cublasLtMatmul(lib.handles[key.device], plan.op, &one, gemm.b, plan.first, gemm.a,
                        plan.second, &beta, gemm.c, plan.result, gemm.c, plan.result, &algo,
                        aligned, static_cast<size_t>(kWorkspaceUsed), stream);
}

std::atomic<size_t> shareRank{0}, shareRanks{1};

/// Whether this process times the product with this number.
bool isMine(size_t number) { return number % shareRanks == shareRank; }

/// The driver's release; empty if the system does not provide it.
std::string driverRelease() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string release;
  file >> release;
  return release;
}

/// What choices depend on in addition to the product: version of the text, library, driver and
/// device.
std::string choicesHead(int device) {
  cudaDeviceProp properties = {};
  cudaGetDeviceProperties(&properties, device);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return fmt::format("gemm 4 cublasLt {} driver {} {} {}\n", cublasLtGetVersion(), driver,
                     driverRelease(), properties.name);
}

template <typename T> std::string bytesOf(const T &value) {
  return {reinterpret_cast<const char *>(&value), sizeof value};
}

} // namespace

namespace {

/// Enqueues the product if the library supports it; null after a reported failure.
const Plan *runByLibrary(const Gemm &gemm, void *workspace, cudaStream_t stream) {
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevicesMax) {
    reportError(fmt::format("device {} is beyond the limit of {} devices", device, kDevicesMax));
    return nullptr;
  }
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  Key key = keyOf(gemm, device);
  Plan *plan = planOf(lib, gemm, key);
  if (plan && plan->served && !plan->apart && point(gemm, *plan))
    ok(launch(lib, gemm, key, *plan, plan->algo, workspace, stream), "cublasLtMatmul");
  return plan;
}

} // namespace

void prepareGemm(int device) {
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  if (device < kDevicesMax && !takesOwnKernels())
    handleOf(lib, device);
}

void runGemm(const Gemm &gemm, void *workspace, cudaStream_t stream) {
  if (takesOwnKernels())
    return launchPlainGemm(gemm, stream);
  const Plan *plan = runByLibrary(gemm, workspace, stream);
  if (plan && !plan->served) // odd extents, which no tensor-core kernel supports
    launchPlainGemm(gemm, stream);
}

bool runGemmWithEpilogue(const Gemm &gemm, void *workspace, cudaStream_t stream) {
  if (takesOwnKernels())
    return false;
  const Plan *plan = runByLibrary(gemm, workspace, stream);
  return !plan || (plan->served && !plan->apart);
}

void tuneGemm(const Gemm &gemm, void *workspace, cudaStream_t stream,
              const std::function<void()> &apart) {
  constexpr int kCandidatesMax = 8;
  if (takesOwnKernels())
    return;
  int device = 0;
  cudaGetDevice(&device);
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  Key key = keyOf(gemm, device);
  if (device >= kDevicesMax)
    return;
  Plan *plan = planOf(lib, gemm, key); // forgets a choice that the library does not accept
  if (lib.choices.contains(key) || !lib.met.insert(key).second || !isMine(lib.met.size() - 1))
    return;
  Candidates candidates;
  if (!plan || !plan->served ||
      !findCandidates(key, lib.handles[key.device], *plan, kCandidatesMax, candidates) ||
      candidates.empty() || !point(gemm, *plan))
    return;
  launchRandom(const_cast<void *>(gemm.a), gemm.in, gemm.m * gemm.k, stream);
  launchRandom(const_cast<void *>(gemm.b), gemm.in, gemm.k * gemm.n, stream);
  if (gemm.epilogue == Epilogue::GeluBwd)
    launchRandom(gemm.other, gemm.out, gemm.m * gemm.n, stream);
  std::vector<Way> ways;
  for (const auto &candidate : candidates)
    ways.push_back([&] {
      return launch(lib, gemm, key, *plan, candidate.algo, workspace, stream) ==
             CUBLAS_STATUS_SUCCESS;
    });
  if (apart)
    ways.push_back([&] {
      apart();
      return true;
    });
  size_t best = fastest(ways, stream);
  if (best == ways.size()) // the run of the product reports the reason
    return;
  Choice choice = {candidates[best < candidates.size() ? best : 0].algo,
                   best < candidates.size() ? 0u : 1u};
  lib.choices[key] = choice;
  followChoice(lib, key, *plan);
}

void shareTuning(int rank, int ranks) {
  shareRank = static_cast<size_t>(rank);
  shareRanks = static_cast<size_t>(std::max(ranks, 1));
}

std::string gemmChoices() {
  int device = 0;
  cudaGetDevice(&device);
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  std::vector<ChoiceRecord> records;
  for (const auto &[key, choice] : lib.choices) {
    Key anywhere = key;
    anywhere.device = 0;
    records.push_back({bytesOf(anywhere), bytesOf(choice)});
  }
  return writeChoices(choicesHead(device), std::move(records));
}

void takeGemmChoices(std::string_view text) {
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevicesMax)
    return;
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  for (const ChoiceRecord &record :
       readChoices(choicesHead(device), text, sizeof(Key), sizeof(Choice))) {
    Key key = {};
    Choice choice = {};
    std::memcpy(&key, record.key.data(), sizeof key);
    std::memcpy(&choice, record.choice.data(), sizeof choice);
    key.device = static_cast<uint32_t>(device);
    lib.choices[key] = choice;
    if (auto at = lib.plans.find(key); at != lib.plans.end())
      followChoice(lib, key, at->second);
  }
}

} // namespace shardc::kernels::cuda
