#include "runtime/measure/MemoryTest.h"

#include <algorithm>
#include <cstring>

namespace shardc::measure {
namespace {

constexpr int64_t kBlock = int64_t{16} << 20;
constexpr const char *kLabel = "memory test";

/// The words of a block: another one for each place, or its complement.
void drawBlock(uint8_t *to, int64_t block, bool isComplement) {
  auto *words = reinterpret_cast<uint64_t *>(to); // buffers are aligned
  uint64_t state = static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15 + 1;
  for (int64_t i = 0; i < kBlock / 8; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    words[i] = isComplement ? ~state : state;
  }
}

void compare(const uint8_t *found, const uint8_t *wanted, int64_t block, MemoryFindings &findings) {
  if (std::memcmp(found, wanted, kBlock) == 0)
    return;
  ++findings.differing;
  int64_t at = std::mismatch(found, found + kBlock, wanted).first - found;
  if (findings.firstByte < 0)
    findings.firstByte = block * kBlock + at;
}

} // namespace

Result<MemoryFindings> testDeviceMemory(hal::Device &device, hal::Backend &backend, int64_t bytes) {
  MemoryFindings findings;
  findings.blocks = (bytes + kBlock - 1) / kBlock;
  ASSIGN_OR_RETURN(auto stream, device.createStream(kLabel, hal::StreamUse::Compute));
  ASSIGN_OR_RETURN(auto tested,
                   device.allocate(hal::MemoryKind::Work, findings.blocks * kBlock, kLabel));
  ASSIGN_OR_RETURN(auto wanted, device.allocate(hal::MemoryKind::Host, kBlock, kLabel));
  ASSIGN_OR_RETURN(auto found, device.allocate(hal::MemoryKind::Host, kBlock, kLabel));
  for (bool isComplement : {false, true}) {
    for (int64_t block = 0; block < findings.blocks; ++block) {
      drawBlock(wanted->data(), block, isComplement);
      RETURN_IF_ERROR(stream->copy(tested->data() + block * kBlock, wanted->data(), kBlock, kLabel));
      RETURN_IF_ERROR(backend.synchronize()); // the numbers change next
    }
    for (int64_t block = 0; block < findings.blocks; ++block) {
      drawBlock(wanted->data(), block, isComplement);
      RETURN_IF_ERROR(stream->copy(found->data(), tested->data() + block * kBlock, kBlock, kLabel));
      RETURN_IF_ERROR(backend.synchronize());
      compare(found->data(), wanted->data(), block, findings);
    }
  }
  return findings;
}

Result<MemoryFindings> testHostMemory(hal::Device &device, int64_t bytes) {
  MemoryFindings findings;
  findings.blocks = (bytes + kBlock - 1) / kBlock;
  ASSIGN_OR_RETURN(auto tested,
                   device.allocate(hal::MemoryKind::Host, findings.blocks * kBlock, kLabel));
  ASSIGN_OR_RETURN(auto wanted, device.allocate(hal::MemoryKind::Host, kBlock, kLabel));
  for (bool isComplement : {false, true}) {
    for (int64_t block = 0; block < findings.blocks; ++block)
      drawBlock(tested->data() + block * kBlock, block, isComplement);
    for (int64_t block = 0; block < findings.blocks; ++block) {
      drawBlock(wanted->data(), block, isComplement);
      compare(tested->data() + block * kBlock, wanted->data(), block, findings);
    }
  }
  return findings;
}

} // namespace shardc::measure
