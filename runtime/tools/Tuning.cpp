#include "runtime/tools/Tuning.h"

#include <cstdlib>
#include <filesystem>

#include "kernels/cuda/Choices.h"
#include "kernels/cuda/Tuning.h"
#include "runtime/base/Io.h"

namespace shardc::tools {
namespace {

constexpr int64_t kCacheBytesMax = int64_t{16} << 20;
constexpr std::string_view kWhat = "choosing how products run"; ///< names the exchanges

std::string_view headOf(std::string_view choices) {
  return choices.substr(0, choices.find('\n') + 1);
}

/// Returns the file for choices of this GPU and these libraries; empty if there is no cache folder.
std::string cachePath(kernels::cuda::Context &kernels) {
  std::string choices = kernels::cuda::gemmChoices(kernels);
  auto folder = [](const char *name, const char *below) -> std::string {
    const char *value = std::getenv(name);
    return value && *value ? std::string(value) + below : "";
  };
  for (const std::string &path :
       {folder("SHARDC_CACHE_DIR", ""), folder("XDG_CACHE_HOME", "/shardc"),
        folder("HOME", "/.cache/shardc")})
    if (!path.empty())
      return path + "/" + kernels::cuda::choicesFileName(headOf(choices));
  return "";
}

void timeAll(exec::Executable &executable) {
  executable.forEachBound([](const exec::BoundSegment &bound, const plan::Segment &segment) {
    for (size_t i = 0; i < bound.ops.size(); ++i)
      if (bound.ops[i].kind == exec::BoundOp::Kernel)
        kernels::cuda::tune(plan::opInfo(segment.ops[i]).name, *bound.ops[i].call);
  });
}

} // namespace

Status tuneProducts(exec::Executable &executable, kernels::cuda::Context &kernels,
                    hal::Peers *peers) {
  int rank = executable.worldRank(0);
  std::string path = rank == 0 ? cachePath(kernels) : "", known;
  if (auto text = readFile(path, kCacheBytesMax); !path.empty() && text.isOk())
    known = *text;
  if (peers) {
    ASSIGN_OR_RETURN(std::vector<std::string> all, peers->allGatherLong(kWhat, known));
    known = all[0];
    kernels::cuda::shareTuning(kernels, peers->rank(), peers->worldSize());
  }
  kernels::cuda::takeGemmChoices(kernels, known);
  timeAll(executable);
  RETURN_IF_ERROR(executable.backend().synchronize());
  if (peers) {
    ASSIGN_OR_RETURN(std::vector<std::string> all,
                     peers->allGatherLong(kWhat, kernels::cuda::gemmChoices(kernels)));
    for (const std::string &choices : all)
      kernels::cuda::takeGemmChoices(kernels, choices);
  }
  std::string choices = kernels::cuda::gemmChoices(kernels);
  if (!path.empty() && choices != known) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    static_cast<void>(writeFileAtomic(path, choices)); // on failure the next run times again
  }
  return Status::ok();
}

} // namespace shardc::tools
