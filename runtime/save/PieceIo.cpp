// The two halves of an fp32 master weight are its bf16 weight and the lower 16 bits, which are in a
// cell of their own.
#include "runtime/save/PieceIo.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/Remainder.h"

namespace shardc::save {
namespace {

template <typename T> T at(const uint8_t *array, int64_t i) {
  T value;
  std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <typename T> void set(uint8_t *array, int64_t i, const T &value) {
  std::memcpy(array + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

constexpr int64_t kElementsAtOnce = 4 << 20;
constexpr int64_t kHalf = 2; ///< bytes per half

/// The address at which a piece begins in its cell.
Result<uint8_t *> addressOf(exec::Executable &executable, size_t rank, const plan::Cell &cell,
                            const StatePiece &piece) {
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
  return address + piece.byteBegin;
}

/// A range of elements of a piece in halves that is transferred at a time.
struct Stretch {
  uint8_t *upper, *lower;                   ///< addresses in both cells
  std::vector<uint8_t> weights, remainders; ///< host memory, equally many bytes
  int64_t begin = 0, count = 0;             ///< elements of the piece

  int64_t bytes() const { return std::ssize(weights); }
};

/// Calls `move` for consecutive ranges until the whole piece was transferred.
template <typename Move>
Status forStretches(exec::Executable &executable, size_t rank, const StateLayout &layout,
                    const StatePiece &piece, const Move &move) {
  Stretch stretch;
  ASSIGN_OR_RETURN(stretch.lower, addressOf(executable, rank, layout.cellOf(piece), piece));
  ASSIGN_OR_RETURN(stretch.upper, addressOf(executable, rank, layout.upperOf(piece), piece));
  for (int64_t all = piece.bytes / kHalf; stretch.begin < all; stretch.begin += stretch.count) {
    stretch.count = std::min(kElementsAtOnce, all - stretch.begin);
    stretch.weights.resize(static_cast<size_t>(kHalf * stretch.count));
    stretch.remainders.resize(stretch.weights.size());
    RETURN_IF_ERROR(move(stretch));
    stretch.upper += stretch.bytes(), stretch.lower += stretch.bytes();
  }
  return Status::ok();
}

} // namespace

void joinHalves(const uint8_t *weights, const uint8_t *remainders, int64_t count,
                uint8_t *masters) {
  for (int64_t i = 0; i < count; ++i)
    set(masters, i, joinMaster({at<uint16_t>(weights, i)}, at<uint16_t>(remainders, i)));
}

void splitHalves(const uint8_t *masters, int64_t count, uint8_t *weights, uint8_t *remainders) {
  for (int64_t i = 0; i < count; ++i) {
    MasterHalves halves = splitMaster(at<float>(masters, i));
    set(weights, i, halves.weight.bits);
    set(remainders, i, halves.remainder);
  }
}

Status readPiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                 const StatePiece &piece, std::vector<uint8_t> &bytes) {
  bytes.resize(static_cast<size_t>(StateLayout::bytesOf(piece)));
  if (piece.upper == plan::kNone) {
    ASSIGN_OR_RETURN(uint8_t * address, addressOf(executable, rank, layout.cellOf(piece), piece));
    return executable.read(rank, address, piece.bytes, bytes.data());
  }
  return forStretches(executable, rank, layout, piece, [&](Stretch &s) -> Status {
    RETURN_IF_ERROR(executable.read(rank, s.upper, s.bytes(), s.weights.data()));
    RETURN_IF_ERROR(executable.read(rank, s.lower, s.bytes(), s.remainders.data()));
    joinHalves(s.weights.data(), s.remainders.data(), s.count, bytes.data() + 2 * kHalf * s.begin);
    return Status::ok();
  });
}

Status writePiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                  const StatePiece &piece, const std::vector<uint8_t> &bytes) {
  if (piece.upper == plan::kNone) {
    ASSIGN_OR_RETURN(uint8_t * address, addressOf(executable, rank, layout.cellOf(piece), piece));
    return executable.write(rank, address, piece.bytes, bytes.data());
  }
  return forStretches(executable, rank, layout, piece, [&](Stretch &s) -> Status {
    splitHalves(bytes.data() + 2 * kHalf * s.begin, s.count, s.weights.data(), s.remainders.data());
    RETURN_IF_ERROR(executable.write(rank, s.upper, s.bytes(), s.weights.data()));
    return executable.write(rank, s.lower, s.bytes(), s.remainders.data());
  });
}

} // namespace shardc::save
