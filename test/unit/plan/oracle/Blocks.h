// Which parameter block the bytes under a label belong to, as ops that work on blocks say it.
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
  /// Labels of a value, of which each has so many elements.
  struct Part {
    std::vector<uint64_t> labels;
    int64_t each;
  };

  /// Labels below `firstFree` are no values'.
  explicit Blocks(uint64_t firstFree) : firstFree_(firstFree) {}

  /// The block of the first label that has one; -1 if none has.
  int32_t of(std::span<const uint64_t> labels) const;
  /// The element of their block with which the labels begin, of which each has `each`; nothing if
  /// none of them has been given a place.
  std::optional<int64_t> beginOf(std::span<const uint64_t> labels, int64_t each) const;
  /// Gives the labels to the block, from an element on if that is known; false if one of them is
  /// another block's, or other elements.
  bool give(std::span<const uint64_t> labels, int32_t block, std::optional<int64_t> begin,
            int64_t each);
  /// `to` holds the same block as `from`, and begins `moved` elements later; false if it is taken
  /// for another one. Where no block is known of `from`, `settle` follows.
  bool keep(Part from, Part to, int64_t moved);
  /// An op may say which block it works on after its operand has been handed on, and of what that
  /// was made. False if one block is taken for another.
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
  std::vector<Kept> later_; ///< of which no block is known
};

/// Values that the op takes for a block, or makes one, with that block.
std::vector<std::pair<ValueId, int32_t>> blocksNamed(const Plan &plan, const Segment &segment,
                                                     const Op &op);
/// Operands of an optimizer before its step state: the gradient, master weights, moments.
size_t stateOperandOf(const Op &update);
/// Master weights in two cells: remainders in u16, and beside them this rank's weights.
struct HalfCells {
  uint32_t lower, upper;
  int32_t block;
};
std::vector<HalfCells> halvesOf(const Role &role);
/// Whether state of a block may be so: f32, or halves of that.
bool hasTypeOfState(const Plan &plan, const Role &role, const Cell &cell);
/// Whether the block is of a class that is trained.
bool isTrainedBlock(const Plan &plan, int32_t block);
/// What has a gradient or state of a block that is not trained, or writes its weights; empty if
/// nothing does.
std::string findFrozen(const Plan &plan);
/// What updates a block otherwise than its class says, or matrices of Muon in parts; empty if
/// nothing does.
std::string findCutMatrix(const Plan &plan);
/// True for a cell that saves read: the weights that the optimizer has of a block, its moments, the
/// step state.
bool isSaved(const Role &role, const Cell &cell);
/// The block whose weights, gradients or state the cell holds; -1 if it holds nothing of a block.
int32_t blockOf(const Cell &cell);
/// Whether these are the blocks whose state the role has. Those that another role has as well may
/// be left out: findNormBreak says whether one of both counts them.
bool isNormOf(const Plan &plan, const Role &role, const std::set<int32_t> &blocks);
/// Ranks with the block's state.
std::vector<int64_t> ranksWith(const Plan &plan, int32_t block);

/// For each 16 bytes of a value that begins with the element of the block, whether no parameter has
/// any of them; all false if it holds no part of the block.
std::vector<bool> paddingOf(const Plan &plan, int32_t block, const Type &type,
                            std::optional<int64_t> begin);
/// Whether so many elements of the block, from one on, are not all parameters'.
bool hasGap(const Plan &plan, int32_t block, int64_t begin, int64_t numel);
/// Where a value of the type has padding, if it is a part of a block as rank 0 has it.
std::vector<int64_t> paddingIn(const Plan &plan, const Type &type);
/// Pairs of result and operand that hold the same block.
std::vector<std::pair<ValueId, ValueId>> blocksKept(const Op &op);

} // namespace shardc::plan::oracle
