// Shares the memory of a channel's members, so that kernels of one member can write results and
// signals into the memory of another. Processes of one machine use CUDA's IPC handles, which exist
// only for memory from cudaMalloc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/PeerRows.h"
#include "runtime/backend/cuda/CudaStream.h"
#include "runtime/hal/Channel.h"

namespace shardc::cuda {

/// One member's access to the memory of the others. All members create it in three steps:
/// `describe` their own memory, `open` the memory that others have described, and `fill` the table
/// that kernels read.
class Peers {
public:
  /// `memory` is the member's own memory on the device.
  Peers(const DeviceState &device, hal::SharedMemory memory, int index, int size, int blocks)
      : device_(device), memory_(memory), index_(index), size_(size), blocks_(blocks) {}
  ~Peers();
  Peers(const Peers &) = delete;
  Peers &operator=(const Peers &) = delete;

  /// A description for `open` on the other members; all descriptions have the same length.
  Result<std::string> describe(const std::string &name);
  /// Fails with the reason if the memory of a member cannot be reached, or without one if that
  /// member reports the reason. `described` is in the order of members, each with the descriptions
  /// of all members of its process.
  Status open(const std::vector<std::string> &described);
  Status fill();
  /// Sets the addresses of the members and of this device for a call with its result at `out`. Call
  /// it after `fill`.
  void complete(kernels::cuda::PeerRows &rows, const std::byte *out) const;
  const hal::SharedMemory &memory() const { return memory_; }
  /// An abort flag: a value other than 0 ends all waits of kernels for other members.
  uint32_t *stop() const { return stop_; }

private:
  struct Card;
  struct Exported;
  static Status exportMemory(void *data, Exported &to);
  static bool findCard(const std::string &described, int index, Card &card);
  /// The address of a member's exported memory on this device.
  Result<std::byte *> reach(const Card &card, const Exported &exported);

  int64_t linesBytes() const;
  const DeviceState &device_;
  hal::SharedMemory memory_;
  int index_, size_, blocks_;
  std::unique_ptr<hal::Buffer> control_; ///< lines, then views, then counters of calls
  uint32_t *stop_ = nullptr;             ///< in host memory, mapped for the device
  std::vector<kernels::cuda::PeerView> views_;
  std::vector<void *> opened_;
  Status exported_ = Status::ok();
};

} // namespace shardc::cuda
