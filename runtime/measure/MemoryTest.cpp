// Uses copies instead of a kernel, so it works on every backend. Every bit is tested with both
// values.
#include "runtime/measure/MemoryTest.h"

#include <bit>

namespace shardc::measure {
namespace {

constexpr int64_t kBlock = int64_t{16} << 20;
constexpr const char *kTestLabel = "memory test";

/// The words of a block: each position in memory has a different word, or its complement. Steps are
/// odd, so that every bit changes from word to word.
struct Pattern {
  Pattern(int64_t block, bool isComplement)
      : first(static_cast<uint64_t>(block) * 0xd1342543de82ef95 + 0x2545f4914f6cdd1d),
        flip(isComplement ? ~uint64_t{0} : 0) {}

  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  static constexpr int64_t kWords = kBlock / 8;
  uint64_t first, flip;

  uint64_t at(int64_t word) const { return (first + static_cast<uint64_t>(word) * kStep) ^ flip; }

  void write(uint8_t *to) const {
    auto *words = reinterpret_cast<uint64_t *>(to); // buffers are aligned
    for (int64_t i = 0; i < kWords; ++i)
      words[i] = at(i);
  }
};

void compare(const uint8_t *found, const Pattern &wanted, int64_t block, MemoryFindings &findings) {
  const auto *words = reinterpret_cast<const uint64_t *>(found);
  uint64_t differences = 0; // joined without branches, so that compilers vectorise the loop
  for (int64_t i = 0; i < Pattern::kWords; ++i)
    differences |= words[i] ^ wanted.at(i);
  if (differences == 0)
    return;
  ++findings.differing;
  for (int64_t i = 0; i < Pattern::kWords && findings.firstByte < 0; ++i)
    if (uint64_t bits = words[i] ^ wanted.at(i); bits != 0)
      findings.firstByte = block * kBlock + 8 * i + std::countr_zero(bits) / 8;
}

} // namespace

/// Writes all blocks before it reads any, so that a write to one address that also changes another
/// one is found.
Result<MemoryFindings> testDeviceMemory(hal::Device &device, hal::Backend &backend, int64_t bytes) {
  MemoryFindings findings;
  findings.blocks = (bytes + kBlock - 1) / kBlock;
  ASSIGN_OR_RETURN(auto stream, device.createStream(kTestLabel, hal::StreamUse::Compute));
  ASSIGN_OR_RETURN(auto tested,
                   device.allocate(hal::MemoryKind::Work, findings.blocks * kBlock, kTestLabel));
  ASSIGN_OR_RETURN(auto staged, device.allocate(hal::MemoryKind::Host, kBlock, kTestLabel));
  for (bool isComplement : {false, true}) {
    for (int64_t block = 0; block < findings.blocks; ++block) {
      Pattern(block, isComplement).write(staged->data());
      RETURN_IF_ERROR(
          stream->copy(tested->data() + block * kBlock, staged->data(), kBlock, kTestLabel));
      RETURN_IF_ERROR(backend.synchronize()); // before the next pattern is written
    }
    for (int64_t block = 0; block < findings.blocks; ++block) {
      RETURN_IF_ERROR(
          stream->copy(staged->data(), tested->data() + block * kBlock, kBlock, kTestLabel));
      RETURN_IF_ERROR(backend.synchronize());
      compare(staged->data(), Pattern(block, isComplement), block, findings);
    }
  }
  return findings;
}

Result<MemoryFindings> testHostMemory(hal::Device &device, int64_t bytes) {
  MemoryFindings findings;
  findings.blocks = (bytes + kBlock - 1) / kBlock;
  ASSIGN_OR_RETURN(auto tested,
                   device.allocate(hal::MemoryKind::Host, findings.blocks * kBlock, kTestLabel));
  for (bool isComplement : {false, true}) {
    for (int64_t block = 0; block < findings.blocks; ++block)
      Pattern(block, isComplement).write(tested->data() + block * kBlock);
    for (int64_t block = 0; block < findings.blocks; ++block)
      compare(tested->data() + block * kBlock, Pattern(block, isComplement), block, findings);
  }
  return findings;
}

} // namespace shardc::measure
