// Row-major products are described to the column-major library with exchanged operands. Each
// distinct product (Key) has a plan: descriptors and an algorithm.
#include "kernels/cuda/Gemm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/Choices.h"
#include "kernels/cuda/CublasLt.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

/// Enqueues the work once; false if it cannot run.
using Way = std::function<bool()>;

/// Returns the milliseconds of one run, averaged over several runs if it is short; negative if it
/// cannot run. The first run loads the kernel and is not counted.
float timeOf(const Way &run, cudaStream_t stream) {
  constexpr float kEnough = 0.5f; // ms
  constexpr int kGroupsMax = 4;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool good = cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess;
  float ms = 0;
  auto measure = [&](int runs) {
    good = good && cudaEventRecord(begin, stream) == cudaSuccess;
    for (int i = 0; good && i < runs; ++i)
      good = run();
    good = good && cudaEventRecord(end, stream) == cudaSuccess &&
           cudaEventSynchronize(end) == cudaSuccess &&
           cudaEventElapsedTime(&ms, begin, end) == cudaSuccess;
    return ms / static_cast<float>(runs);
  };
  measure(1);
  float mean = measure(1);
  if (mean < kEnough)
    mean = measure(kGroupsMax);
  for (cudaEvent_t event : {begin, end})
    if (event)
      cudaEventDestroy(event);
  cudaGetLastError();
  return good ? mean : -1;
}

/// Returns the index of the fastest implementation according to fastestBy(), or ways.size() if none
/// can run. Blocks until the work is complete.
size_t fastest(const std::vector<Way> &ways, cudaStream_t stream) {
  return fastestBy(ways.size(), [&](size_t way) { return timeOf(ways[way], stream); });
}

constexpr int kDevicesMax = 64;
constexpr int64_t kWorkspaceAlign = 256;
constexpr int64_t kWorkspaceUsed = kGemmWorkspace - kWorkspaceAlign;

/// The properties of a product that determine the heuristic's algorithm.
struct Key {
  int64_t m, n, k, batches;
  int64_t steps[6]; ///< strides of a, b and c
  uint32_t alignA, alignB, alignC, alignBias, alignOther;
  uint8_t transA, transB, accumulate, hasBias, in, out, epilogue, inB; ///< inB 0: not scaled
  uint32_t device;
  int32_t multiprocessors;
  uint8_t fastAccum, tf32;
  uint8_t scalesA, scalesB; ///< as cublasLtMatmulMatrixScale_t

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Key) == 120, "keys are compared and hashed as bytes: no padding");

struct KeyHash {
  size_t operator()(const Key &key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char *>(&key), sizeof key});
  }
};

/// A product as cuBLASLt describes it; kept as long as its library.
struct Plan {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo = {};
  bool served = false; ///< the library has an algorithm
  bool apart = false;  ///< a separate kernel is faster than the epilogue
};

/// The result of timing the candidates of a product.
struct Choice {
  cublasLtMatmulAlgo_t algo;
  uint64_t apart;
};

void release(const Plan &plan) {
  for (cublasLtMatrixLayout_t layout : {plan.first, plan.second, plan.result})
    if (layout)
      cublasLt().MatrixLayoutDestroy(layout);
  if (plan.op)
    cublasLt().MatmulDescDestroy(plan.op);
}

} // namespace

struct GemmLibrary {
  std::recursive_mutex mutex; ///< recursive, because timing runs products
  std::array<cublasLtHandle_t, kDevicesMax> handles{};
  std::unordered_map<Key, Plan, KeyHash> plans;
  std::unordered_map<Key, Choice, KeyHash> choices;
  std::unordered_set<Key, KeyHash> met; ///< products that tuneGemm() has met
  size_t shareRank = 0, shareRanks = 1; ///< times every shareRanks-th product of `met`
  std::string failure;                  ///< first failure of the current call

  ~GemmLibrary() {
    for (auto &[key, plan] : plans)
      release(plan);
    for (cublasLtHandle_t handle : handles)
      if (handle)
        cublasLt().Destroy(handle);
  }

  bool ok(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS)
      return true;
    if (failure.empty())
      failure = fmt::format("{}: {}", what, cublasLt().GetStatusString(status));
    return false;
  }
};

std::shared_ptr<GemmLibrary> makeGemmLibrary() { return std::make_shared<GemmLibrary>(); }

namespace {

using Library = GemmLibrary;

/// Locks the library during a call. At its end, passes the call's first failure, if any, to the
/// queue.
class Use {
public:
  explicit Use(Library &lib, Queue *queue = nullptr) : lib_(lib), queue_(queue), lock_(lib.mutex) {}
  ~Use() {
    std::string failure = std::exchange(lib_.failure, {});
    if (queue_ && !failure.empty())
      queue_->reportError(std::move(failure));
  }
  Use(const Use &) = delete;
  Use &operator=(const Use &) = delete;

private:
  Library &lib_;
  Queue *queue_;
  std::lock_guard<std::recursive_mutex> lock_;
};

uint32_t alignmentOf(const void *address) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & -bits);
}

cublasLtMatmulMatrixScale_t modeOf(std::optional<ScaleBlocks> blocks) {
  if (!blocks)
    return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  switch (*blocks) {
  case ScaleBlocks::Rows128:
    return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  case ScaleBlocks::Squares128:
    return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  case ScaleBlocks::Rows32:
    return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  __builtin_unreachable();
}

Key keyOf(const Gemm &g, int device) {
  Key key = {};
  key.m = g.m, key.n = g.n, key.k = g.k, key.batches = g.batches;
  const int64_t steps[] = {g.stepsA.row,    g.stepsA.matrix, g.stepsB.row,
                           g.stepsB.matrix, g.stepsC.row,    g.stepsC.matrix};
  std::copy(std::begin(steps), std::end(steps), key.steps);
  key.alignA = alignmentOf(g.a), key.alignB = alignmentOf(g.b);
  key.alignC = std::min(alignmentOf(g.c), alignmentOf(g.added));
  key.alignBias = alignmentOf(g.bias), key.alignOther = alignmentOf(g.other);
  key.transA = g.transA, key.transB = g.transB;
  key.accumulate = g.accumulate || g.added != nullptr;
  key.hasBias = g.bias != nullptr;
  key.in = static_cast<uint8_t>(g.in), key.out = static_cast<uint8_t>(g.out);
  key.epilogue = static_cast<uint8_t>(g.epilogue);
  key.inB = g.isScaled ? static_cast<uint8_t>(g.inB) : 0;
  key.fastAccum = g.fastAccum, key.tf32 = g.tf32;
  key.scalesA = static_cast<uint8_t>(modeOf(g.blocksA));
  key.scalesB = static_cast<uint8_t>(modeOf(g.blocksB));
  key.device = static_cast<uint32_t>(device);
  key.multiprocessors = g.multiprocessors;
  return key;
}

cudaDataType typeOf(DType type) {
  return type == DType::BF16     ? CUDA_R_16BF
         : type == DType::F16    ? CUDA_R_16F
         : type == DType::F8E4M3 ? CUDA_R_8F_E4M3
         : type == DType::F8E5M2 ? CUDA_R_8F_E5M2
                                 : CUDA_R_32F;
}

template <typename T>
bool setOp(Library &lib, const Plan &plan, cublasLtMatmulDescAttributes_t attribute, T value) {
  return lib.ok(cublasLt().MatmulDescSetAttribute(plan.op, attribute, &value, sizeof value),
                "cublasLtMatmulDescSetAttribute");
}

template <typename T>
bool setLayout(Library &lib, cublasLtMatrixLayout_t layout,
               cublasLtMatrixLayoutAttribute_t attribute, T value) {
  return lib.ok(cublasLt().MatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
                "cublasLtMatrixLayoutSetAttribute");
}

template <typename T>
bool prefer(Library &lib, cublasLtMatmulPreference_t preference,
            cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return lib.ok(
      cublasLt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
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

/// Sets the addresses in a description, because products that share a key differ in their
/// addresses.
bool point(Library &lib, const Gemm &g, const Plan &plan) {
  return (!g.bias || setOp(lib, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias)) &&
         (g.epilogue == Epilogue::Plain ||
          setOp(lib, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.other)) &&
         (!g.isScaled || (setOp(lib, plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.scaleB) &&
                          setOp(lib, plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.scaleA)));
}

/// cuBLASLt is column-major and computes cᵀ[n,m] = op(b)ᵀ·op(a)ᵀ. A row-major matrix is its own
/// transpose in column-major order. Therefore b is the first operand, and the flags of transposed
/// operands stay the same.
bool describe(Library &lib, const Gemm &g, Plan &plan) {
  cublasComputeType_t type = g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  bool good =
      lib.ok(cublasLt().MatmulDescCreate(&plan.op, type, CUDA_R_32F), "cublasLtMatmulDescCreate");
  good =
      good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_TRANSA, g.transB ? CUBLAS_OP_T : CUBLAS_OP_N);
  good =
      good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_TRANSB, g.transA ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (g.bias)
    good = good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, typeOf(g.out));
  if (g.epilogue != Epilogue::Plain)
    good = good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.n);
  if (g.multiprocessors > 0)
    good = good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, g.multiprocessors);
  if (g.isScaled)
    good = good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{g.fastAccum}) &&
           setOp(lib, plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t{modeOf(g.blocksB)}) &&
           setOp(lib, plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t{modeOf(g.blocksA)});
  good =
      good && setOp(lib, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogueOf(g)) && point(lib, g, plan);
  auto rows = [](int64_t count) { return static_cast<uint64_t>(count); };
  auto layout = [&](cublasLtMatrixLayout_t *to, DType type, int64_t cols, int64_t count,
                    Gemm::Steps steps) {
    const int64_t row = steps.row > 0 ? steps.row : cols;
    good = good &&
           lib.ok(cublasLt().MatrixLayoutCreate(to, typeOf(type), rows(cols), rows(count), row),
                  "cublasLtMatrixLayoutCreate");
    if (g.batches == 1)
      return;
    good =
        good &&
        setLayout(lib, *to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(g.batches)) &&
        setLayout(lib, *to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                  steps.matrix > 0 ? steps.matrix : row * count);
  };
  layout(&plan.first, g.isScaled ? g.inB : g.in, g.transB ? g.k : g.n, g.transB ? g.n : g.k,
         g.stepsB);
  layout(&plan.second, g.in, g.transA ? g.m : g.k, g.transA ? g.k : g.m, g.stepsA);
  layout(&plan.result, g.out, g.n, g.m, g.stepsC);
  return good;
}

/// The library's candidates for a product, its preferred one first.
using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

bool findCandidates(Library &lib, const Key &key, const Plan &plan, int most,
                    Candidates &candidates) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (!lib.ok(cublasLt().MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"))
    return false;
  // The library adds partial products in fp32 scratch, by a separate kernel. If it added them in
  // place, their order would be the order in which blocks finish.
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  bool good = prefer(lib, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                     static_cast<uint64_t>(kWorkspaceUsed)) &&
              prefer(lib, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions) &&
              prefer(lib, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignB) &&
              prefer(lib, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignA) &&
              prefer(lib, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignC) &&
              prefer(lib, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignC);
  candidates.resize(static_cast<size_t>(most));
  int found = 0;
  if (good &&
      cublasLt().MatmulAlgoGetHeuristic(lib.handles[key.device], plan.op, plan.first, plan.second,
                                        plan.result, plan.result, preference, most,
                                        candidates.data(), &found) != CUBLAS_STATUS_SUCCESS)
    found = 0;
  candidates.resize(static_cast<size_t>(found));
  std::erase_if(candidates, [](const auto &c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  cublasLt().MatmulPreferenceDestroy(preference);
  return good;
}

/// Returns the device's handle; null after a reported failure.
cublasLtHandle_t handleOf(Library &lib, int device) {
  cublasLtHandle_t &handle = lib.handles[static_cast<size_t>(device)];
  if (handle)
    return handle;
  if (cublasLt().failure.empty())
    lib.ok(cublasLt().Create(&handle), "cublasLtCreate");
  else if (lib.failure.empty())
    lib.failure = cublasLt().failure;
  return handle;
}

/// Whether the library accepts the algorithm for this product, within the workspace and with a
/// deterministic order of additions. Needed because the algorithm may come from a file.
bool serves(cublasLtHandle_t handle, const Plan &plan, const cublasLtMatmulAlgo_t &algo) {
  cublasLtMatmulHeuristicResult_t result = {};
  if (cublasLt().MatmulAlgoCheck(handle, plan.op, plan.first, plan.second, plan.result, plan.result,
                                 &algo, &result) != CUBLAS_STATUS_SUCCESS ||
      result.state != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kWorkspaceUsed))
    return false;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
  size_t written = 0;
  return cublasLt().MatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                 &reduction, sizeof reduction,
                                                 &written) == CUBLAS_STATUS_SUCCESS &&
         (reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
          reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/// Applies the stored choice for a product, if any. Erases a choice that cannot be applied.
void followChoice(Library &lib, const Key &key, Plan &plan) {
  auto known = lib.choices.find(key);
  if (known == lib.choices.end())
    return;
  const Choice &choice = known->second;
  // Only a product with an epilogue can be divided into two kernels.
  bool isMeant = choice.apart == 0 || (choice.apart == 1 && key.epilogue != 0);
  if (!isMeant || !plan.served || !serves(lib.handles[key.device], plan, choice.algo)) {
    lib.choices.erase(known);
    return;
  }
  plan.algo = choice.algo;
  plan.apart = choice.apart != 0;
}

/// Returns the product's plan, with the heuristic's algorithm; null after a reported failure.
Plan *planOf(Library &lib, const Gemm &gemm, const Key &key) {
  if (!handleOf(lib, static_cast<int>(key.device)))
    return nullptr;
  auto [at, isNew] = lib.plans.try_emplace(key);
  Plan &plan = at->second;
  if (!isNew)
    return &plan;
  Candidates candidates;
  if (!describe(lib, gemm, plan) || !findCandidates(lib, key, plan, 1, candidates)) {
    // An incomplete entry would later look like a product that the library does not support.
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
                      const cublasLtMatmulAlgo_t &algo, void *workspace, Queue &queue) {
  uintptr_t address = reinterpret_cast<uintptr_t>(workspace);
  auto *aligned =
      reinterpret_cast<void *>((address + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
  float alpha = gemm.alpha, beta = gemm.added ? gemm.beta : gemm.accumulate ? 1.0f : 0.0f;
  const void *added = gemm.added ? gemm.added : gemm.c;
  queue.noteLibrary();
  return cublasLt().Matmul(lib.handles[key.device], plan.op, &alpha, gemm.b, plan.first, gemm.a,
                           plan.second, &beta, added, plan.result, gemm.c, plan.result, &algo,
                           aligned, static_cast<size_t>(kWorkspaceUsed), queue);
}

/// The driver's release; empty if the system does not provide it.
std::string driverRelease() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string release;
  file >> release;
  return release;
}

/// What an algorithm's choice depends on besides the product: versions of the text format, library
/// and driver, and the device.
std::string choicesHead(int device) {
  cudaDeviceProp properties = {};
  cudaGetDeviceProperties(&properties, device);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return fmt::format("gemm 6 cublasLt {} driver {} {} {}\n",
                     cublasLt().failure.empty() ? cublasLt().GetVersion() : 0, driver,
                     driverRelease(), properties.name);
}

template <typename T> std::string bytesOf(const T &value) {
  return {reinterpret_cast<const char *>(&value), sizeof value};
}

/// Enqueues the product if the library supports it. Returns its plan; null after a reported
/// failure.
const Plan *runByLibrary(const Gemm &gemm, void *workspace, Queue &queue) {
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevicesMax) {
    queue.reportError(
        fmt::format("device {} is beyond the limit of {} devices", device, kDevicesMax));
    return nullptr;
  }
  Library &lib = queue.context().gemm();
  Use use(lib, &queue);
  Key key = keyOf(gemm, device);
  Plan *plan = planOf(lib, gemm, key);
  if (plan && plan->served && !plan->apart && point(lib, gemm, *plan))
    lib.ok(launch(lib, gemm, key, *plan, plan->algo, workspace, queue), "cublasLtMatmul");
  return plan;
}

} // namespace

void prepareGemm(Context &context, int device) {
  Library &lib = context.gemm();
  Use use(lib);
  if (device < kDevicesMax && !context.options().ownKernels)
    handleOf(lib, device); // the first product reports a failure
}

void runGemm(const Gemm &gemm, void *workspace, Queue &queue) {
  if (queue.context().options().ownKernels)
    return launchPlainGemm(gemm, queue);
  if (launchRowProduct(gemm, queue))
    return;
  const Plan *plan = runByLibrary(gemm, workspace, queue);
  if (!plan || plan->served)
    return;
  if (gemm.stepsA.row > 0 || gemm.stepsB.row > 0 || gemm.stepsC.row > 0)
    return queue.reportError("the library has no product of parts of such matrices");
  launchPlainGemm(gemm, queue); // odd extents, which library kernels do not support
}

bool runGemmWithEpilogue(const Gemm &gemm, void *workspace, Queue &queue) {
  if (queue.context().options().ownKernels)
    return false;
  const Plan *plan = runByLibrary(gemm, workspace, queue);
  return !plan || (plan->served && !plan->apart);
}

/// Times the candidates of the library's heuristic on random operands and keeps the fastest, once
/// per key. Of several ranks, each times its share of the products. `apart` computes product and
/// epilogue separately, which may be faster than fused.
void tuneGemm(const Gemm &gemm, void *workspace, Queue &queue, const std::function<void()> &apart) {
  constexpr int kCandidatesMax = 8;
  if (queue.context().options().ownKernels)
    return;
  int device = 0;
  cudaGetDevice(&device);
  Library &lib = queue.context().gemm();
  Use use(lib, &queue);
  Key key = keyOf(gemm, device);
  if (device >= kDevicesMax)
    return;
  Plan *plan = planOf(lib, gemm, key); // erases a choice that the library does not accept
  if (lib.choices.contains(key) || !lib.met.insert(key).second ||
      (lib.met.size() - 1) % lib.shareRanks != lib.shareRank)
    return;
  Candidates candidates;
  if (!plan || !plan->served || !findCandidates(lib, key, *plan, kCandidatesMax, candidates) ||
      candidates.empty() || !point(lib, gemm, *plan))
    return;
  launchRandom(const_cast<void *>(gemm.a), gemm.in, gemm.m * gemm.k * gemm.batches, queue);
  launchRandom(const_cast<void *>(gemm.b), gemm.isScaled ? gemm.inB : gemm.in,
               gemm.k * gemm.n * gemm.batches, queue);
  if (gemm.epilogue == Epilogue::GeluBwd)
    launchRandom(gemm.other, gemm.out, gemm.m * gemm.n, queue);
  std::vector<Way> ways;
  for (const auto &candidate : candidates)
    ways.push_back([&] {
      return launch(lib, gemm, key, *plan, candidate.algo, workspace, queue) ==
             CUBLAS_STATUS_SUCCESS;
    });
  if (apart)
    ways.push_back([&] {
      apart();
      return true;
    });
  size_t best = fastest(ways, queue);
  if (best == ways.size()) // the product itself reports the reason when it runs
    return;
  Choice choice = {candidates[best < candidates.size() ? best : 0].algo,
                   best < candidates.size() ? 0u : 1u};
  lib.choices[key] = choice;
  followChoice(lib, key, *plan);
}

void shareTuning(Context &context, int rank, int ranks) {
  Library &lib = context.gemm();
  Use use(lib);
  lib.shareRank = static_cast<size_t>(rank);
  lib.shareRanks = static_cast<size_t>(std::max(ranks, 1));
}

std::string gemmChoices(Context &context) {
  int device = 0;
  cudaGetDevice(&device);
  Library &lib = context.gemm();
  Use use(lib);
  std::vector<ChoiceRecord> records;
  for (const auto &[key, choice] : lib.choices) {
    Key anywhere = key;
    anywhere.device = 0;
    records.push_back({bytesOf(anywhere), bytesOf(choice)});
  }
  return writeChoices(choicesHead(device), std::move(records));
}

/// Plans that were made before the choices came are changed too.
void takeGemmChoices(Context &context, std::string_view text) {
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevicesMax)
    return;
  Library &lib = context.gemm();
  Use use(lib);
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
