// Records kernels and copies through CUPTI, which is loaded on request. A graph node is attributed
// to the op during whose capture it was created, so tracing must be announced before the first
// capture.
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
  /// The process' only tracer. Unavailable where CUPTI cannot be loaded or refuses.
  static Result<std::unique_ptr<Tracer>> create(std::unordered_map<int, int> rankOfDevice);
  ~Tracer();

  /// The op whose work this thread queues from here on.
  void setOrigin(const std::string &stream, const char *label);

  /// Drops all records; kernels that begin from now on are recorded.
  Status start();
  /// The spans since `start`, in order of begin; nothing may be running.
  Result<std::vector<trace::Span>> stop();

  struct Impl;

private:
  explicit Tracer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace shardc::cuda
