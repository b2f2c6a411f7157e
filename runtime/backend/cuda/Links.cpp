// Everything here is for reports, so a missing library or file is not an error.
#include "runtime/backend/cuda/Links.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

namespace shardc::cuda {
namespace {

namespace fs = std::filesystem;

/// The NVML functions that are used. NVML is part of the driver and is loaded at run time if
/// present.
class Nvml {
public:
  using Handle = void *;

  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_)
      return;
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(byBusId_, "nvmlDeviceGetHandleByPciBusId_v2");
    find(linkState_, "nvmlDeviceGetNvLinkState");
    find(pcieGeneration_, "nvmlDeviceGetMaxPcieLinkGeneration");
    find(pcieWidth_, "nvmlDeviceGetMaxPcieLinkWidth");
    isReady_ = init_ && shutdown_ && byBusId_ && linkState_ && pcieGeneration_ && pcieWidth_ &&
               init_() == 0;
  }
  ~Nvml() {
    if (isReady_)
      shutdown_();
    if (library_)
      ::dlclose(library_);
  }

  Handle find(const char *busId) const {
    Handle handle = nullptr;
    return isReady_ && byBusId_(busId, &handle) == 0 ? handle : nullptr;
  }
  /// Number of NVLinks that are up.
  int nvlinks(Handle handle) const {
    constexpr unsigned kLinksMax = 18;
    int count = 0;
    for (unsigned link = 0; link < kLinksMax; ++link) {
      int state = 0;
      count += linkState_(handle, link, &state) == 0 && state == 1;
    }
    return count;
  }
  std::string pcie(Handle handle) const {
    unsigned generation = 0, width = 0;
    return pcieGeneration_(handle, &generation) == 0 && pcieWidth_(handle, &width) == 0
               ? fmt::format("PCIe {} x{}", generation, width)
               : "PCIe unknown";
  }

private:
  template <typename Entry> void find(Entry &entry, const char *name) {
    entry = reinterpret_cast<Entry>(::dlsym(library_, name));
  }

  void *library_;
  bool isReady_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*byBusId_)(const char *, Handle *) = nullptr;
  int (*linkState_)(Handle, unsigned, int *) = nullptr;
  int (*pcieGeneration_)(Handle, unsigned *) = nullptr;
  int (*pcieWidth_)(Handle, unsigned *) = nullptr;
};

std::string firstLine(const fs::path &path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<fs::path> entriesOf(const fs::path &folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

} // namespace

std::string networkOf(const std::string &classFolder) {
  std::string text;
  auto add = [&](const std::string &name, const std::string &rate) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, rate);
  };
  for (const fs::path &adapter : entriesOf(fs::path(classFolder) / "infiniband"))
    for (const fs::path &port : entriesOf(adapter / "ports"))
      if (std::string rate = firstLine(port / "rate"); !rate.empty())
        add(adapter.filename(), rate);
  std::error_code ignored;
  for (const fs::path &adapter : entriesOf(fs::path(classFolder) / "net"))
    if (fs::exists(adapter / "device", ignored)) { // a physical adapter, not a virtual one
      std::string speed = firstLine(adapter / "speed");
      add(adapter.filename(),
          speed.empty() || speed[0] == '-' ? "of unknown speed" : speed + " Mb/sec");
    }
  return text.empty() ? "no network adapters" : text;
}

std::string linksOf(int device) {
  char busId[32] = "";
  Nvml nvml;
  Nvml::Handle handle = nullptr;
  if (cudaDeviceGetPCIBusId(busId, sizeof busId, device) == cudaSuccess)
    handle = nvml.find(busId);
  std::string own = handle ? fmt::format("{} NVLinks, {}", nvml.nvlinks(handle), nvml.pcie(handle))
                           : "NVLink and PCIe unknown";
  return fmt::format("{}; {}", own, networkOf("/sys/class"));
}

} // namespace shardc::cuda
