// Memory of the host backend: page-aligned maps, optionally filled with poison and surrounded by
// guard zones.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/hal/Buffer.h"

namespace shardc::host {

/// One map of whole pages, which the destructor unmaps.
class HostBuffer final : public hal::Buffer {
public:
  /// Maps `bytes` bytes. With `guards`, a zone of known bytes is added before and after them.
  static Result<std::unique_ptr<HostBuffer>> map(hal::MemoryKind kind, int64_t bytes,
                                                 std::string name, bool poison, bool guards);
  ~HostBuffer() override;

  /// InvalidInput with the location of the first overwritten guard byte.
  Status checkGuards() const;
  const std::string &name() const { return name_; }

private:
  HostBuffer(uint8_t *map, int64_t mapBytes, int64_t guardBytes, hal::MemoryKind kind,
             int64_t bytes, std::string name);

  uint8_t *map_;
  int64_t mapBytes_;
  int64_t guardBytes_;
  std::string name_;
};

} // namespace shardc::host
