// Records kernels and copies through CUPTI, which is loaded only on request. A graph node is
// attributed to the op whose capture created it, so a tracer must exist before the first capture.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/trace/Span.h"

namespace shardc::cuda {

class Tracer {
public:
  /// Creates the only tracer of the process. Unavailable if CUPTI cannot be loaded or refuses.
  static Result<std::unique_ptr<Tracer>> create(std::unordered_map<int, int> rankOfDevice);
  ~Tracer();

  /// Sets the op to which work that this thread queues from now on belongs.
  void setOrigin(const std::string &stream, const char *label);

  /// Drops all records and starts recording kernels that begin from now on.
  Status start();
  /// The spans since `start`, sorted by begin. Nothing may be running.
  Result<std::vector<trace::Span>> stop();

  struct Impl;

private:
  explicit Tracer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace shardc::cuda
