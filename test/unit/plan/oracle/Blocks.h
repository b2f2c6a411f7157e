// Tracks which parameter block the bytes under a label belong to, from ops that work on blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

class Blocks {
public:
  /// Labels of a value; each covers `each` elements.
  struct Part {
    std::vector<uint64_t> labels;
    int64_t each;
  };

  /// Labels below `firstFree` do not belong to values.
  explicit Blocks(uint64_t firstFree) : firstFree_(firstFree) {}

  /// The block of the first label that has a block; -1 if none has.
  int32_t of(std::span<const uint64_t> labels) const;
  /// The element of their block at which the labels begin. Each label covers `each` elements. Empty
  /// if no label has a known element.
  std::optional<int64_t> beginOf(std::span<const uint64_t> labels, int64_t each) const;
  /// Assigns the labels to the block, from element `begin` on if that is known. False if a label
  /// belongs to another block, or to other elements.
  bool give(std::span<const uint64_t> labels, int32_t block, std::optional<int64_t> begin,
            int64_t each);
  /// Records that `to` holds the same block as `from`, `moved` elements later. False if `to` is
  /// already used as another block. If the block of `from` is not known yet, `settle` decides.
  bool keep(Part from, Part to, int64_t moved);
  /// Decides the cases that `keep` left open, because an op after `keep` may name the block of an
  /// earlier value. False if a value is used as two blocks.
  bool settle();

private:
  struct Kept {
    Part from, to;
    int64_t moved;
  };
  bool handOn(const Part &from, const Part &to, int64_t moved);

  struct Piece {
    int32_t block;
    std::optional<int64_t> begin;
  };
  uint64_t firstFree_;
  std::unordered_map<uint64_t, Piece> pieceOf_;
  std::vector<Kept> later_; ///< values whose block is not known yet
};

/// Values that the op takes as a block, or makes as one, with that block.
std::vector<std::pair<ValueId, int32_t>> blocksNamed(const Plan &plan, const Segment &segment,
                                                     const Op &op);
/// Number of operands of an optimizer before its step state: gradient, master weights, moments.
size_t stateOperandOf(const Op &update);
/// Master weights in two cells: remainders in u16, and this rank's weights.
struct HalfCells {
  uint32_t lower, upper;
  int32_t block;
};
std::vector<HalfCells> halvesOf(const Role &role);
/// Whether the cell has a type that state of a block may have: f32, or halves of f32.
bool hasTypeOfState(const Plan &plan, const Role &role, const Cell &cell);
/// Whether the block's class is trained.
bool isTrainedBlock(const Plan &plan, int32_t block);
/// Describes a gradient or state of a block that is not trained, or a write to its weights; empty
/// if there is none.
std::string findFrozen(const Plan &plan);
/// Describes an update by another optimizer than the block's class names, or of parts of Muon's
/// matrices; empty if there is none.
std::string findCutMatrix(const Plan &plan);
/// Whether saves read the cell: the optimizer's weights of a block, its moments, the step state.
bool isSaved(const Role &role, const Cell &cell);
/// The block whose weights, gradients or state the cell holds; -1 if it holds none of a block.
int32_t blockOf(const Cell &cell);
/// Whether `blocks` are the blocks with state in the role. A block that another role also has may
/// be missing: findNormBreak checks whether one of the roles counts it.
bool isNormOf(const Plan &plan, const Role &role, const std::set<int32_t> &blocks);
/// Ranks that have the block's state.
std::vector<int64_t> ranksWith(const Plan &plan, int32_t block);

/// For each 16 bytes of a value that begins with element `begin` of the block: whether no parameter
/// has a part in them. All false if the value holds no part of the block.
std::vector<bool> paddingOf(const Plan &plan, int32_t block, const Type &type,
                            std::optional<int64_t> begin);
/// Whether some of the elements from `begin` on belong to no parameter.
bool hasGap(const Plan &plan, int32_t block, int64_t begin, int64_t numel);
/// Offsets of padding in a value of this type, if it is a part of a block as on rank 0.
std::vector<int64_t> paddingIn(const Plan &plan, const Type &type);
/// Pairs of a result and an operand that hold the same block.
std::vector<std::pair<ValueId, ValueId>> blocksKept(const Op &op);

} // namespace shardc::plan::oracle
