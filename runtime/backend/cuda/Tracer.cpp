#include "runtime/backend/cuda/Tracer.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

namespace shardc::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kSpansMax = size_t{1} << 22; ///< further spans of a long run are dropped
constexpr size_t kWorkNameMax = 96;

/// CUPTI's functions, loaded by name.
struct Library {
#define SHARDC_CUPTI(name) decltype(&::name) name = nullptr;
#define SHARDC_CUPTI_FUNCTIONS                                                                     \
  SHARDC_CUPTI(cuptiSubscribe)                                                                     \
  SHARDC_CUPTI(cuptiUnsubscribe)                                                                   \
  SHARDC_CUPTI(cuptiEnableCallback)                                                                \
  SHARDC_CUPTI(cuptiGetGraphNodeId)                                                                \
  SHARDC_CUPTI(cuptiActivityEnable)                                                                \
  SHARDC_CUPTI(cuptiActivityDisable)                                                               \
  SHARDC_CUPTI(cuptiActivityRegisterCallbacks)                                                     \
  SHARDC_CUPTI(cuptiActivityGetNextRecord)                                                         \
  SHARDC_CUPTI(cuptiActivityFlushAll)                                                              \
  SHARDC_CUPTI(cuptiGetTimestamp)                                                                  \
  SHARDC_CUPTI(cuptiGetResultString)
  SHARDC_CUPTI_FUNCTIONS
#undef SHARDC_CUPTI

  Status load() {
    void *handle = nullptr;
    for (const char *name : {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so"})
      if (!handle)
        handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
      return makeStatus(StatusCode::Unavailable, "cannot load CUPTI for a trace: {}", dlerror());
#define SHARDC_CUPTI(name)                                                                         \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #name));                                   \
  if (!name)                                                                                       \
    return makeStatus(StatusCode::Unavailable, "CUPTI has no " #name);
    SHARDC_CUPTI_FUNCTIONS
#undef SHARDC_CUPTI
    return Status::ok();
  }

  Status check(CUptiResult result, const char *what) const {
    if (result == CUPTI_SUCCESS)
      return Status::ok();
    const char *text = nullptr;
    cuptiGetResultString(result, &text);
    return makeStatus(StatusCode::Unavailable, "CUPTI: {}: {}", what, text ? text : "?");
  }
};

struct Origin {
  std::string stream, label;
};

/// CUPTI gives mangled names of C++ kernels. Names of templates can be very long, so they are cut.
std::string readableName(const char *name) {
  if (!name)
    return "kernel";
  int status = 0;
  char *plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 && plain ? plain : name;
  std::free(plain);
  if (text.size() > kWorkNameMax)
    text.resize(kWorkNameMax);
  return text;
}

} // namespace

struct Tracer::Impl {
  Library lib;
  CUpti_SubscriberHandle subscriber = nullptr;
  std::unordered_map<int, int> rankOfDevice;
  std::mutex mutex; ///< CUPTI's threads deliver buffers concurrently
  std::vector<Origin> origins;
  std::unordered_map<uint64_t, uint32_t> originOfNode;
  uint32_t current = 0;
  uint64_t beginNs = 0;
  bool isRecording = false;
  std::vector<trace::Span> spans;

  static Impl *instance;

  void add(uint32_t device, uint64_t node, uint64_t begin, uint64_t end, std::string work);
  void addRecord(const CUpti_Activity *record);
  Status subscribe();
};

Tracer::Impl *Tracer::Impl::instance = nullptr;

namespace {

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

void CUPTIAPI giveBuffer(uint8_t **buffer, size_t *size, size_t *recordsMax) {
  *buffer = static_cast<uint8_t *>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *recordsMax = 0;
}

void CUPTIAPI takeBuffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t validBytes) {
  Tracer::Impl *impl = Tracer::Impl::instance;
  CUpti_Activity *record = nullptr;
  while (impl && validBytes > 0 &&
         impl->lib.cuptiActivityGetNextRecord(buffer, validBytes, &record) == CUPTI_SUCCESS)
    impl->addRecord(record);
  std::free(buffer);
}

/// Attributes each new node to the op that is being captured, and each node of an instantiated
/// graph to the op of the node from which it was copied.
void CUPTIAPI onResource(void *userData, CUpti_CallbackDomain, CUpti_CallbackId id,
                         const void *data) {
  auto *impl = static_cast<Tracer::Impl *>(userData);
  const auto *resource = static_cast<const CUpti_ResourceData *>(data);
  const auto *graph = static_cast<const CUpti_GraphData *>(resource->resourceDescriptor);
  uint64_t node = 0, original = 0;
  if (impl->lib.cuptiGetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS)
    return;
  std::lock_guard lock(impl->mutex);
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
    impl->originOfNode[node] = impl->current;
  } else if (impl->lib.cuptiGetGraphNodeId(graph->originalNode, &original) == CUPTI_SUCCESS) {
    auto at = impl->originOfNode.find(original);
    if (at != impl->originOfNode.end())
      impl->originOfNode[node] = at->second;
  }
}

} // namespace

void Tracer::Impl::add(uint32_t device, uint64_t node, uint64_t begin, uint64_t end,
                       std::string work) {
  std::lock_guard lock(mutex);
  auto rank = rankOfDevice.find(static_cast<int>(device));
  if (!isRecording || begin < beginNs || end < begin || rank == rankOfDevice.end() ||
      spans.size() >= kSpansMax)
    return;
  auto at = originOfNode.find(node);
  const Origin &origin = origins[at == originOfNode.end() ? 0 : at->second];
  spans.push_back({rank->second, origin.stream, origin.label, std::move(work),
                   static_cast<int64_t>(begin), static_cast<int64_t>(end)});
}

/// Each kind of record has a struct of its own; the number at the end of the struct's name is the
/// version of its layout.
void Tracer::Impl::addRecord(const CUpti_Activity *record) {
  switch (record->kind) {
  case CUPTI_ACTIVITY_KIND_KERNEL:
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
    const auto *k = reinterpret_cast<const CUpti_ActivityKernel10 *>(record);
    return add(k->deviceId, k->graphNodeId, k->start, k->end, readableName(k->name));
  }
  case CUPTI_ACTIVITY_KIND_MEMCPY: {
    const auto *c = reinterpret_cast<const CUpti_ActivityMemcpy6 *>(record);
    return add(c->deviceId, c->graphNodeId, c->start, c->end,
               fmt::format("copy of {} bytes", c->bytes));
  }
  case CUPTI_ACTIVITY_KIND_MEMCPY2: {
    const auto *c = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4 *>(record);
    return add(
        c->deviceId, c->graphNodeId, c->start, c->end,
        fmt::format("copy of {} bytes from {} to {}", c->bytes, c->srcDeviceId, c->dstDeviceId));
  }
  case CUPTI_ACTIVITY_KIND_MEMSET: {
    const auto *m = reinterpret_cast<const CUpti_ActivityMemset4 *>(record);
    return add(m->deviceId, m->graphNodeId, m->start, m->end,
               fmt::format("fill of {} bytes", m->bytes));
  }
  default:
    return;
  }
}

/// Asks CUPTI for a call whenever a node of a graph is created or cloned, and for records of the
/// kinds in kKinds.
Status Tracer::Impl::subscribe() {
  RETURN_IF_ERROR(lib.load());
  RETURN_IF_ERROR(lib.check(
      lib.cuptiSubscribe(&subscriber, reinterpret_cast<CUpti_CallbackFunc>(onResource), this),
      "cuptiSubscribe"));
  for (CUpti_CallbackId id :
       {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
    RETURN_IF_ERROR(lib.check(lib.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, id),
                              "cuptiEnableCallback"));
  RETURN_IF_ERROR(lib.check(lib.cuptiActivityRegisterCallbacks(giveBuffer, takeBuffer),
                            "cuptiActivityRegisterCallbacks"));
  for (CUpti_ActivityKind kind : kKinds)
    RETURN_IF_ERROR(lib.check(lib.cuptiActivityEnable(kind), "cuptiActivityEnable"));
  return Status::ok();
}

Tracer::Tracer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Tracer>> Tracer::create(std::unordered_map<int, int> rankOfDevice) {
  if (Impl::instance)
    return makeStatus(StatusCode::Unavailable, "this process is traced already");
  auto impl = std::make_unique<Impl>();
  impl->rankOfDevice = std::move(rankOfDevice);
  impl->origins.push_back({"other", ""});
  Impl::instance = impl.get();
  std::unique_ptr<Tracer> tracer(new Tracer(std::move(impl)));
  RETURN_IF_ERROR(tracer->impl_->subscribe());
  return tracer;
}

Tracer::~Tracer() {
  if (impl_->subscriber) {
    for (CUpti_ActivityKind kind : kKinds)
      impl_->lib.cuptiActivityDisable(kind);
    impl_->lib.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    impl_->lib.cuptiUnsubscribe(impl_->subscriber);
  }
  Impl::instance = nullptr;
}

void Tracer::setOrigin(const std::string &stream, const char *label) {
  std::lock_guard lock(impl_->mutex);
  impl_->origins.push_back({stream, label});
  impl_->current = static_cast<uint32_t>(impl_->origins.size()) - 1;
}

Status Tracer::start() {
  RETURN_IF_ERROR(impl_->lib.check(
      impl_->lib.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"));
  std::lock_guard lock(impl_->mutex);
  impl_->spans.clear();
  impl_->isRecording = true;
  return impl_->lib.check(impl_->lib.cuptiGetTimestamp(&impl_->beginNs), "cuptiGetTimestamp");
}

Result<std::vector<trace::Span>> Tracer::stop() {
  RETURN_IF_ERROR(impl_->lib.check(
      impl_->lib.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"));
  std::lock_guard lock(impl_->mutex);
  impl_->isRecording = false;
  std::stable_sort(
      impl_->spans.begin(), impl_->spans.end(),
      [](const trace::Span &a, const trace::Span &b) { return a.beginNs < b.beginNs; });
  return std::move(impl_->spans);
}

} // namespace shardc::cuda
