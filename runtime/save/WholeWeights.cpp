#include "runtime/save/WholeWeights.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/save/PieceIo.h"
#include "runtime/save/RunProgress.h"

namespace shardc::save {
namespace {

/// Bytes that a rank sends at a time, since exchanges have a size limit.
constexpr int64_t kPart = int64_t{48} << 10;

/// Bytes of a piece, and of the scale that follows a weight of 8 bits.
int64_t bytesWithScale(const StateLayout &layout, const StatePiece &piece) {
  constexpr int64_t kScale = sizeof(float);
  return StateLayout::bytesOf(piece) + (layout.typeOf(piece) == DType::F8E4M3 ? kScale : 0);
}

/// The scales of a rank's weights of 8 bits; empty if it has none.
Result<std::vector<float>> scalesOf(exec::Executable &executable, size_t rank) {
  std::vector<float> scales;
  const plan::Role &role = executable.roleOf(rank);
  uint32_t index = plan::findCell(role, plan::CellKind::WeightScales);
  if (index == plan::kNone)
    return scales;
  const plan::Cell &cell = role.cells[index];
  scales.resize(static_cast<size_t>(cell.type.numel()));
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
  RETURN_IF_ERROR(executable.read(rank, address, cell.type.bytes(), scales.data()));
  return scales;
}

std::vector<float> numbersOf(const StateLayout &layout, const StatePiece &piece,
                             const uint8_t *bytes) {
  std::vector<float> numbers(
      static_cast<size_t>(checkpoint::elementCount(piece.box.shape).value_or(0)));
  if (layout.typeOf(piece) == DType::NF4x64) {
    const auto *blocks = reinterpret_cast<const Nf4Block *>(bytes);
    for (size_t i = 0; i < numbers.size(); i += Nf4Block::kNumbers)
      fromNf4(*blocks++, &numbers[i]);
    return numbers;
  }
  if (layout.typeOf(piece) == DType::NF4x512) {
    const auto *records = reinterpret_cast<const Nf4Record *>(bytes);
    for (size_t i = 0; i < numbers.size(); i += Nf4Record::kNumbers)
      fromNf4Record(*records++, &numbers[i]);
    return numbers;
  }
  checkpoint::convertElements(checkpoint::elementOf(layout.typeOf(piece)), bytes,
                              checkpoint::Element::F32, reinterpret_cast<uint8_t *>(numbers.data()),
                              std::ssize(numbers));
  if (layout.typeOf(piece) == DType::F8E4M3) {
    float scale = 0;
    std::memcpy(&scale, bytes + StateLayout::bytesOf(piece), sizeof scale);
    for (float &number : numbers)
      number *= scale;
  }
  return numbers;
}

/// Writes pieces into the tensors that they are parts of.
class Assembly {
public:
  Assembly(const StateLayout &layout, std::map<std::string, std::vector<float>> &tensors)
      : layout_(layout), tensors_(tensors) {}

  void add(const StatePiece &piece, const uint8_t *bytes) {
    using checkpoint::Element;
    const checkpoint::Shape shape = layout_.shapeOf(piece.param);
    const checkpoint::Shape strides = checkpoint::denseStrides(shape);
    const checkpoint::Shape own = checkpoint::denseStrides(piece.box.shape);
    std::vector<float> &tensor = tensors_[layout_.nameOf(piece)];
    tensor.resize(static_cast<size_t>(checkpoint::elementCount(shape).value_or(0)));
    const checkpoint::Shape origin(shape.size(), 0);
    float *to = tensor.data() + checkpoint::distance(origin, piece.box.offset, strides);
    const std::vector<float> numbers = numbersOf(layout_, piece, bytes);
    checkpoint::copyBox(piece.box.shape, {Element::F32, own},
                        reinterpret_cast<const uint8_t *>(numbers.data()), {Element::F32, strides},
                        reinterpret_cast<uint8_t *>(to));
  }

private:
  const StateLayout &layout_;
  std::map<std::string, std::vector<float>> &tensors_;
};

Status readPieces(exec::Executable &executable, size_t rank, const StateLayout &layout,
                  const std::function<void(const StatePiece &, const std::vector<uint8_t> &)> &to) {
  ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, layout.weightsOnce(executable.worldRank(rank)));
  ASSIGN_OR_RETURN(std::vector<float> scales, scalesOf(executable, rank));
  std::vector<uint8_t> bytes;
  for (const StatePiece &piece : pieces) {
    RETURN_IF_ERROR(readPiece(executable, rank, layout, piece, bytes));
    if (layout.typeOf(piece) == DType::F8E4M3) {
      const int64_t number = plan::numberOfScale(executable.plan(), piece.param) + piece.number;
      const float *scale = &scales[static_cast<size_t>(number * plan::kScaleStride)];
      const auto *from = reinterpret_cast<const uint8_t *>(scale);
      bytes.insert(bytes.end(), from, from + sizeof *scale);
    }
    to(piece, bytes);
  }
  return Status::ok();
}

/// Transfers the bytes of a rank's pieces to the first process. Both ends know the number of bytes.
/// In each exchange, the receiving end sends nothing.
class Transfer {
public:
  Transfer(hal::Peers &peers, int from) : peers_(peers), from_(from) {}

  Status send(const std::vector<uint8_t> &bytes) {
    const auto *at = reinterpret_cast<const char *>(bytes.data());
    for (size_t sent = 0; sent < bytes.size(); sent += kPart)
      RETURN_IF_ERROR(exchange({at + sent, std::min<size_t>(kPart, bytes.size() - sent)}).status());
    return Status::ok();
  }
  Status receive(int64_t count, std::vector<uint8_t> &bytes) {
    bytes.clear();
    while (std::ssize(bytes) < count) {
      ASSIGN_OR_RETURN(std::string part, exchange(""));
      if (std::ssize(part) != std::min(kPart, count - std::ssize(bytes)))
        return makeStatus(StatusCode::Internal,
                          "rank {} sent {} bytes of its weights in place of {}", from_, part.size(),
                          count);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
    return Status::ok();
  }

private:
  Result<std::string> exchange(std::string_view mine) {
    ASSIGN_OR_RETURN(
        std::vector<std::string> parts,
        peers_.exchange("weights for texts", {0, from_}, mine, hal::Peers::Fold::First));
    return std::move(parts.front());
  }
  hal::Peers &peers_;
  int from_;
};

Status receiveFrom(int rank, const StateLayout &layout, hal::Peers &peers, Assembly &assembly) {
  ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, layout.weightsOnce(rank));
  Transfer transfer(peers, rank);
  std::vector<uint8_t> bytes;
  for (const StatePiece &piece : pieces) {
    RETURN_IF_ERROR(transfer.receive(bytesWithScale(layout, piece), bytes));
    assembly.add(piece, bytes.data());
  }
  return Status::ok();
}

/// The biases on the choice of experts of all layers, of a rank of this process that has them.
Result<std::string> expertBiases(exec::Executable &executable) {
  const std::optional<int64_t> holder = rankWithExpertBias(executable.plan());
  for (size_t rank = 0; holder && rank < executable.rankCount(); ++rank) {
    if (executable.worldRank(rank) != *holder)
      continue;
    const plan::Cell &cell = *expertBiasOf(executable.plan(), executable.roleIndexOf(rank));
    std::string bytes(static_cast<size_t>(cell.type.bytes()), '\0');
    ASSIGN_OR_RETURN(uint8_t * address,
                     executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
    RETURN_IF_ERROR(executable.read(rank, address, cell.type.bytes(), bytes.data()));
    return bytes;
  }
  return std::string();
}

void addBiases(const plan::Plan &plan, const std::string &bytes,
               std::map<std::string, std::vector<float>> &tensors) {
  const std::vector<ExpertBuffer> buffers = expertBuffersOf(plan);
  if (buffers.empty() || bytes.empty())
    return;
  const plan::Cell *cell = expertBiasOf(plan, exec::roleOf(plan, *rankWithExpertBias(plan)));
  const size_t row = static_cast<size_t>(cell->type.shape[1]) * sizeof(float);
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::vector<float> &bias = tensors[buffers[i].name];
    bias.resize(static_cast<size_t>(buffers[i].experts));
    std::memcpy(bias.data(), bytes.data() + i * row, bias.size() * sizeof(float));
  }
}

} // namespace

/// The first process reads its own ranks' pieces, then receives those of the other ranks, one rank
/// after the other, so that it needs memory for one copy of the weights only. The others send
/// theirs and end with no weights.
Result<WholeWeights> WholeWeights::gather(exec::Executable &executable, hal::Peers *peers) {
  RETURN_IF_ERROR(executable.backend().synchronize());
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(executable.plan()));
  WholeWeights whole;
  Assembly assembly(layout, whole.tensors_);
  const bool isFirst = peers == nullptr || peers->rank() == 0;
  for (size_t rank = 0; isFirst && rank < executable.rankCount(); ++rank)
    RETURN_IF_ERROR(readPieces(executable, rank, layout,
                               [&](const StatePiece &piece, const std::vector<uint8_t> &bytes) {
                                 assembly.add(piece, bytes.data());
                               }));
  ASSIGN_OR_RETURN(std::string biases, expertBiases(executable));
  if (peers != nullptr) {
    if (isFirst) {
      for (int rank = 1; rank < peers->worldSize(); ++rank)
        RETURN_IF_ERROR(receiveFrom(rank, layout, *peers, assembly));
    } else {
      Transfer transfer(*peers, peers->rank());
      Status sent;
      RETURN_IF_ERROR(readPieces(executable, 0, layout,
                                 [&](const StatePiece &, const std::vector<uint8_t> &bytes) {
                                   if (sent.isOk())
                                     sent = transfer.send(bytes);
                                 }));
      RETURN_IF_ERROR(sent);
    }
    ASSIGN_OR_RETURN(std::vector<std::string> first,
                     peers->exchange("biases for texts", {}, biases, hal::Peers::Fold::First));
    biases = std::move(first.front());
  }
  if (isFirst)
    addBiases(executable.plan(), biases, whole.tensors_);
  return whole;
}

Status WholeWeights::take(const std::string &name, const plan::Type &type, int64_t first,
                          int64_t count, void *dst) {
  auto found = tensors_.find(name);
  if (found == tensors_.end())
    return makeStatus(report::PlanCannotRun, "the run has no weights '{}', which its samples need",
                      name);
  const int64_t row = type.numel() / type.shape[0], begin = first * row;
  const int64_t there = std::clamp<int64_t>(std::ssize(found->second) - begin, 0, count * row);
  auto *to = static_cast<uint8_t *>(dst);
  checkpoint::convertElements(checkpoint::Element::F32,
                              reinterpret_cast<const uint8_t *>(found->second.data() + begin),
                              checkpoint::elementOf(type.dtype), to, there);
  const auto size = static_cast<int64_t>(dtypeBytes(type.dtype));
  std::fill_n(to + there * size, (count * row - there) * size, uint8_t{0});
  if (first + count == type.shape[0])
    tensors_.erase(found);
  return Status::ok();
}

} // namespace shardc::save
