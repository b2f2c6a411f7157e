// The memory of one rank: its arenas, and the addresses of places in them.
#pragma once

#include <array>
#include <memory>

#include "runtime/exec/Mesh.h"
#include "runtime/hal/Backend.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Owns the memory of one rank. Addresses stay the same until it is destroyed or hands over the
/// state.
class Arenas {
public:
  /// Allocates the role's arenas on the device of a rank with these indices. If `state` is given,
  /// it becomes the arena of the state. `registers` says whether arena sym is registered with
  /// channels. InvalidInput if `state` has another size than the arena.
  static Result<Arenas> allocate(const plan::Role &role, hal::Device &device, GroupIndices indices,
                                 bool registers, std::unique_ptr<hal::Buffer> state = nullptr);

  /// Address of `bytes` bytes at a place; in a ring, at the slot for the microbatch. InvalidInput
  /// if the bytes are not inside the arena, so that no plan can access other memory.
  Result<uint8_t *> resolve(const plan::Place &place, int64_t bytes, std::string_view what,
                            int64_t microbatch = 0) const;

  const GroupIndices &indices() const { return indices_; }
  uint8_t *base(plan::Arena arena) const { return buffers_[static_cast<size_t>(arena)]->data(); }
  int64_t bytes(plan::Arena arena) const { return buffers_[static_cast<size_t>(arena)]->bytes(); }

  /// Hands over the memory of the state. Afterwards the arenas can only be destroyed.
  std::unique_ptr<hal::Buffer> takeState() {
    return std::move(buffers_[static_cast<size_t>(plan::Arena::State)]);
  }

private:
  std::array<std::unique_ptr<hal::Buffer>, plan::kArenaCount> buffers_;
  GroupIndices indices_;
};

} // namespace shardc::exec
