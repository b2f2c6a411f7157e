// Shares the memory of a channel's members, so that kernels of one member can write results and
// signals into the memory of another. Processes of one machine use CUDA's handles for interprocess
// communication, which only memory of cudaMalloc has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/PeerRows.h"
#include "runtime/backend/cuda/CudaStream.h"
#include "runtime/hal/Channel.h"

namespace shardc::cuda {

/// One member's access to the memory of the others. All members create it in the same three steps:
/// `describe` the own memory, `open` the memory that others have described, `fill` the table that
/// kernels read.
class Peers {
public:
  /// `memory` is the member's own, of the device's.
  Peers(const DeviceState &device, hal::SharedMemory memory, int index, int size, int blocks)
      : device_(device), memory_(memory), index_(index), size_(size), blocks_(blocks) {}
  ~Peers();
  Peers(const Peers &) = delete;
  Peers &operator=(const Peers &) = delete;

  /// Bytes that `open` of every other member understands, as many for each member.
  Result<std::string> describe(const std::string &name);
  /// Fails with the reason if the memory of a member cannot be reached, or without one if that
  /// member reports the reason. `described` is in the order of members, each with the descriptions
  /// of all members of its process.
  Status open(const std::vector<std::string> &described);
  Status fill();
  /// After `fill`: sets the addresses of the members and of this device for a call whose result is
  /// at `out`.
  void complete(kernels::cuda::PeerRows &rows, const std::byte *out) const;
  const hal::SharedMemory &memory() const { return memory_; }
  /// A flag that ends all waits of kernels for other members once it is not 0.
  uint32_t *stop() const { return stop_; }

private:
  struct Card;
  struct Exported;
  static Status exportMemory(void *data, Exported &to);
  static bool findCard(const std::string &described, int index, Card &card);
  Result<std::byte *> reach(const Card &card, const Exported &exported);

  int64_t linesBytes() const;
  const DeviceState &device_;
  hal::SharedMemory memory_;
  int index_, size_, blocks_;
  std::unique_ptr<hal::Buffer> control_; ///< lines, then views, then calls
  uint32_t *stop_ = nullptr;             ///< of the host, seen by the device
  std::vector<kernels::cuda::PeerView> views_;
  std::vector<void *> opened_;
  Status exported_ = Status::ok();
};

} // namespace shardc::cuda
