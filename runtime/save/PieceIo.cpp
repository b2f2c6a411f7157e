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

/// Elements of a piece in halves that are moved at once.
constexpr int64_t kElementsAtOnce = 4 << 20;
constexpr int64_t kHalf = 2; ///< bytes

/// Where a piece begins in a cell that has its bytes.
Result<uint8_t *> addressOf(exec::Executable &executable, size_t rank, const plan::Cell &cell,
                            const StatePiece &piece) {
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
  return address + piece.byteBegin;
}

/// Calls move(addresses of a stretch of both cells, its first element, its elements) until all of
/// the piece is moved.
template <typename Move>
Status forStretches(exec::Executable &executable, size_t rank, const StateLayout &layout,
                    const StatePiece &piece, const Move &move) {
  ASSIGN_OR_RETURN(uint8_t * lower, addressOf(executable, rank, layout.cellOf(piece), piece));
  ASSIGN_OR_RETURN(uint8_t * upper, addressOf(executable, rank, layout.upperOf(piece), piece));
  for (int64_t begin = 0, all = piece.bytes / kHalf; begin < all; begin += kElementsAtOnce)
    RETURN_IF_ERROR(move(upper + kHalf * begin, lower + kHalf * begin, begin,
                         std::min(kElementsAtOnce, all - begin)));
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
  std::vector<uint8_t> upper, lower;
  auto join = [&](uint8_t *weights, uint8_t *remainders, int64_t begin, int64_t count) -> Status {
    upper.resize(static_cast<size_t>(kHalf * count));
    lower.resize(upper.size());
    RETURN_IF_ERROR(executable.read(rank, weights, kHalf * count, upper.data()));
    RETURN_IF_ERROR(executable.read(rank, remainders, kHalf * count, lower.data()));
    joinHalves(upper.data(), lower.data(), count, bytes.data() + 2 * kHalf * begin);
    return Status::ok();
  };
  return forStretches(executable, rank, layout, piece, join);
}

Status writePiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                  const StatePiece &piece, const std::vector<uint8_t> &bytes) {
  if (piece.upper == plan::kNone) {
    ASSIGN_OR_RETURN(uint8_t * address, addressOf(executable, rank, layout.cellOf(piece), piece));
    return executable.write(rank, address, piece.bytes, bytes.data());
  }
  std::vector<uint8_t> upper, lower;
  auto split = [&](uint8_t *weights, uint8_t *remainders, int64_t begin, int64_t count) -> Status {
    upper.resize(static_cast<size_t>(kHalf * count));
    lower.resize(upper.size());
    splitHalves(bytes.data() + 2 * kHalf * begin, count, upper.data(), lower.data());
    RETURN_IF_ERROR(executable.write(rank, weights, kHalf * count, upper.data()));
    return executable.write(rank, remainders, kHalf * count, lower.data());
  };
  return forStretches(executable, rank, layout, piece, split);
}

} // namespace shardc::save
