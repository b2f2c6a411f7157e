// The memory of one rank: its arenas, and addresses of places in them.
#pragma once

#include <array>
#include <memory>

#include "runtime/exec/Mesh.h"
#include "runtime/hal/Backend.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

class Arenas {
public:
  /// Allocates the role's arenas on the device of a rank with these indices, but for that of the
  /// state if there is memory for it already. `registers`: arena sym is registered with channels.
  /// InvalidInput if the state's memory has another size.
  static Result<Arenas> allocate(const plan::Role &role, hal::Device &device, GroupIndices indices,
                                 bool registers, std::unique_ptr<hal::Buffer> state = nullptr);

  /// Address of `bytes` bytes at a place. InvalidInput if they are not inside the arena, so that no
  /// plan can access other memory.
  /// In a ring, in the slot for the microbatch.
  Result<uint8_t *> resolve(const plan::Place &place, int64_t bytes, std::string_view what,
                            int64_t microbatch = 0) const;

  const GroupIndices &indices() const { return indices_; }
  uint8_t *base(plan::Arena arena) const { return buffers_[static_cast<size_t>(arena)]->data(); }
  int64_t bytes(plan::Arena arena) const { return buffers_[static_cast<size_t>(arena)]->bytes(); }

  /// The memory of the state; without it the arenas can only be destroyed.
  std::unique_ptr<hal::Buffer> takeState() {
    return std::move(buffers_[static_cast<size_t>(plan::Arena::State)]);
  }

private:
  std::array<std::unique_ptr<hal::Buffer>, plan::kArenaCount> buffers_;
  GroupIndices indices_;
};

} // namespace shardc::exec
