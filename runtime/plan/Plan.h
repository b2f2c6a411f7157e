// The plan: what each role of a job executes, on which stream and at which addresses. It is the
// only contract between compiler and runtime; docs/plan.md describes its text form and its rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/DType.h"
#include "runtime/plan/Job.h"
#include "runtime/plan/OpInfo.h"

namespace shardc::plan {

/// Version of the text form; a file of another version is refused.
inline constexpr int64_t kFormatVersion = 2;

/// How far a plan is compiled. Each level adds information to the previous one.
enum class Level : uint8_t { Logical, Sharded, Scheduled, Placed };

/// What a cell holds, and how the host uses it.
enum class CellKind : uint8_t {
#define CELL_KIND(enumerator, word, of, host, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// The optimizers, each with its op and its state per element: see Optimizers.h.
enum class Optimizer : uint8_t {
#define OPTIMIZER(enumerator, word, op, rate, gbs) enumerator,
#include "runtime/plan/Optimizers.def"
};

/// The part of the model whose parameters a unit has.
enum class UnitKind : uint8_t {
#define UNIT_KIND(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// What a group of ranks is for. Passes find groups by kind, not by name.
enum class GroupKind : uint8_t {
#define GROUP_KIND(enumerator, word, division, doc) enumerator,
#include "runtime/plan/Kinds.def"
};
inline constexpr size_t kGroupKindCount = 0
#define GROUP_KIND(enumerator, word, division, doc) +1
#include "runtime/plan/Kinds.def"
    ;

/// What a stream executes.
enum class StreamKind : uint8_t {
#define STREAM_KIND(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// What a segment is for. The kind determines its form and the default phase of its ops.
enum class SegmentKind : uint8_t {
#define SEGMENT_KIND(enumerator, word, form, phase, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// Which of a layer's three matrix products the op computes, as its transposes imply. Ops that are
/// not products are Forward.
enum class ProductRole : uint8_t {
#define PRODUCT_ROLE(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// The pass of a training step to which an op belongs.
enum class Phase : uint8_t {
#define PHASE(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// One attribute. Its row in Attrs.def says which member is used (Bool and Enum use the integer).
struct Attr {
  AttrKey key;
  union {
    int64_t i;
    double f;
  };
};

/// A stream of one rank: an index in Plan::streams. Ops of one stream run in order.
using StreamId = uint8_t;
inline constexpr StreamId kComputeStream = 0; ///< the default stream
inline constexpr std::string_view kComputeStreamName = "compute";
inline constexpr size_t kStreamsMax = 16;

/// The microbatches in which an op of a body segment is executed.
struct Pred {
  enum class Kind : uint8_t { Always, First, NotFirst, Last, NotLast, Within, NotWithin };
  Kind kind = Kind::Always;
  int64_t begin = 0, last = 0; ///< for Within, NotWithin: first and last number, both included
  /// For Within: repeats every `period` numbers (more than last - begin) up to `until`; 0: once.
  int64_t period = 0, until = 0;
  bool operator==(const Pred &) const = default;

  static const Pred Always, First, NotFirst, Last, NotLast;
  static constexpr Pred within(int64_t begin, int64_t last) { return {Kind::Within, begin, last}; }
  static constexpr Pred notWithin(int64_t begin, int64_t last) {
    return {Kind::NotWithin, begin, last};
  }
  static constexpr Pred every(int64_t period, int64_t begin, int64_t last, int64_t until) {
    return {Kind::Within, begin, last, period, until};
  }

  /// Whether the predicate names numbers.
  constexpr bool hasNumbers() const { return kind == Kind::Within || kind == Kind::NotWithin; }
  /// For Within, NotWithin: whether the interval contains the number.
  constexpr bool names(int64_t number) const {
    if (number < begin || number > end())
      return false;
    return (period > 0 ? (number - begin) % period : number - begin) <= last - begin;
  }
  /// For Within: the largest number that it may contain.
  constexpr int64_t end() const { return period > 0 ? until : last; }
};
inline constexpr Pred Pred::Always{Kind::Always};
inline constexpr Pred Pred::First{Kind::First};
inline constexpr Pred Pred::NotFirst{Kind::NotFirst};
inline constexpr Pred Pred::Last{Kind::Last};
inline constexpr Pred Pred::NotLast{Kind::NotLast};

/// A representative microbatch of a body segment: number `microbatch` of `count`. VariantTable in
/// Variants.h defines which microbatches execute alike.
struct Variant {
  int64_t microbatch = 0, count = 1;
  bool isFirst() const { return microbatch == 0; }
  bool isLast() const { return microbatch == count - 1; }
  bool operator==(const Variant &) const = default;
  auto operator<=>(const Variant &) const = default;

  /// Variants of a body that only distinguishes the first and the last microbatch. Only is both
  /// first and last.
  static const Variant First, Middle, Last, Only;
};
inline constexpr Variant Variant::First{0, 3};
inline constexpr Variant Variant::Middle{1, 3};
inline constexpr Variant Variant::Last{2, 3};
inline constexpr Variant Variant::Only{0, 1};

/// True if the predicate holds in the variant.
inline bool holds(const Pred &pred, const Variant &variant) {
  switch (pred.kind) {
  case Pred::Kind::Always:
    return true;
  case Pred::Kind::First:
    return variant.isFirst();
  case Pred::Kind::NotFirst:
    return !variant.isFirst();
  case Pred::Kind::Last:
    return variant.isLast();
  case Pred::Kind::NotLast:
    return !variant.isLast();
  case Pred::Kind::Within:
    return pred.names(variant.microbatch);
  case Pred::Kind::NotWithin:
    return !pred.names(variant.microbatch);
  }
  return true;
}

using ChannelId = int16_t; ///< index in Plan::channels
inline constexpr ChannelId kNoChannel = -1;
/// How GPUs execute a collective: with NCCL's ordinary kernels, with NCCL's kernels on registered
/// windows, with copy engines, or as an exchange in which members send each other their versions
/// and add them in rank order.
enum class Transport : uint8_t { Nccl, Window, Ce, Exchange };
/// A rank's allocations. State: what the start of a run or a load fills. Work: all other device
/// memory. Sym: device memory that peers access. Host: pinned host memory.
enum class Arena : uint8_t { State, Work, Sym, Host };
inline constexpr int kArenaCount = 4;
/// Device memory of a rank outside of the arenas that the role determines.
enum class Beside : uint8_t { Communicators, ReceiveBuffers, Workspaces };
inline constexpr int kBesideCount = 3;

/// Purpose of memory, for summaries.
enum class Purpose : uint8_t {
  Params,
  Grads,
  MasterParams,
  OptimizerState,
  Activations,
  Comm,
  Data,
  Step,
  SaveStaging, ///< state that is staged on the device for a save
  SaveCopies   ///< host copies for asynchronous saves
};
inline constexpr int kPurposeCount = 10;

/// The words of plan text. A parse function returns nothing for a word that is not of its kind.
std::string_view toString(Level);
std::string toString(const Pred &);
std::string_view toString(Transport);
std::string_view toString(Arena);
std::string_view toString(Beside);
std::string_view toString(Purpose);
std::string toString(const Variant &);
std::string_view toString(UnitKind);
std::string_view toString(StreamKind);
std::string_view toString(ProductRole);
std::string_view toString(Phase);
std::optional<Level> parseLevel(std::string_view);
std::optional<Pred> parsePred(std::string_view);
std::optional<Transport> parseTransport(std::string_view);
std::optional<Arena> parseArena(std::string_view);
std::optional<Beside> parseBeside(std::string_view);
std::optional<Purpose> parsePurpose(std::string_view);
std::optional<UnitKind> parseUnitKind(std::string_view);
std::optional<StreamKind> parseStreamKind(std::string_view);
std::optional<ProductRole> parseProductRole(std::string_view);
std::optional<Phase> parsePhase(std::string_view);

/// One CELL_KIND row of Kinds.def.
struct CellKindInfo {
  std::string_view word;
  enum Of : uint8_t { Nothing, Block, Param } of;          ///< what Cell::of indexes
  enum Host : uint8_t { None, Writes, Reads, Saves } host; ///< how the host uses the cell
  std::string_view doc;
};
const CellKindInfo &cellKindInfo(CellKind kind);
std::optional<CellKind> parseCellKind(std::string_view);

/// One GROUP_KIND row of Kinds.def.
struct GroupKindInfo {
  std::string_view word;
  /// Kinds of group of one division share no mesh axis; Both belongs to both divisions.
  enum Division : uint8_t { Dense, Experts, Both, Inside } division;
  std::string_view doc;
};
const GroupKindInfo &groupKindInfo(GroupKind kind);
std::optional<GroupKind> parseGroupKind(std::string_view);

/// One SEGMENT_KIND row of Kinds.def.
struct SegmentKindInfo {
  std::string_view word;
  enum Form : uint8_t { Any, Body, Straight, Background } form;
  Phase phase; ///< default phase of the segment's ops
  std::string_view doc;
};
const SegmentKindInfo &segmentKindInfo(SegmentKind kind);
std::optional<SegmentKind> parseSegmentKind(std::string_view);

/// One row of Attrs.def.
struct AttrInfo {
  std::string_view name;
  enum Type : uint8_t { Bool, Int, Float, Enum } type;
  std::string_view enumerators; ///< "a|b|c" for Enum
  double defaultValue;
  int64_t least = 0, most = 0; ///< for Int: the accepted range
};
extern const std::array<AttrInfo, kAttrCount> kAttrInfos; ///< by key
inline const AttrInfo &attrInfo(AttrKey key) { return kAttrInfos[static_cast<size_t>(key)]; }

using ValueId = uint32_t; ///< index in Segment::values
inline constexpr uint32_t kNone = 0xffffffffu;

/// Element type and extents; rank 0 is not used, a scalar is [1].
struct Type {
  DType dtype = DType::F32;
  uint8_t rank = 0;
  std::array<int64_t, 4> shape{};

  static Type of(DType dtype, std::initializer_list<int64_t> shape);
  int64_t numel() const {
    int64_t n = 1;
    for (uint8_t d = 0; d < rank; ++d)
      n *= shape[d];
    return n;
  }
  /// Size in memory; values have no gaps between elements.
  int64_t bytes() const { return numel() * dtypeBytes(dtype); }
  bool operator==(const Type &) const = default;
};

/// The type of the numbers that elements encode: f32 where an element is a record of many
/// (isRecord).
Type numbersOf(Type type);

/// Address of a value or cell: byte `offset + coef · index(group)` of `arena`. In a ring, `slot ·
/// stride` is added, where slot is (microbatch + `shift`) modulo `slots`.
struct Place {
  bool placed = false;
  Arena arena = Arena::Work;
  int64_t offset = 0;
  int64_t coef = 0;
  int16_t group = -1; ///< index in Plan::groups; -1 where coef is 0
  int32_t slots = 1;  ///< slots of its ring; 1: not in a ring
  int64_t stride = 0; ///< bytes between slots
  int64_t shift = 0;  ///< offset between the current microbatch and the slot's microbatch
  bool operator==(const Place &) const = default;

  /// The slot for a microbatch.
  int64_t slotOf(int64_t microbatch) const {
    int64_t slot = (microbatch + shift) % slots;
    return slot < 0 ? slot + slots : slot;
  }
  /// The offset for a microbatch, without the part that depends on a rank's index.
  int64_t offsetFor(int64_t microbatch) const {
    return slots == 1 ? offset : offset + slotOf(microbatch) * stride;
  }
};

/// The result of one op, or the content of a cell at the start of the segment (a live-in). It has
/// no meaning outside its segment.
struct Value {
  std::string name; ///< without the leading %; unique in its segment
  Type type;
  Purpose purpose = Purpose::Activations;
  Place place;
  uint32_t def = kNone;  ///< index of the defining op, kNone for a live-in value
  uint8_t defResult = 0; ///< which of its results it is
  /// A value i32[slots, groups] that says which rows are valid: the first dimension is an upper
  /// bound, divided into equal slots, and each slot begins with the given number of rows for each
  /// group (such as the rows of an expert), group after group. kNone: all rows are valid.
  ValueId counts = kNone;
};

/// A buffer through which segments pass values. Every live-in value of a segment is a cell's
/// content. A ring holds one value per microbatch in flight: microbatch n uses slot n modulo
/// `slots`.
struct Cell {
  std::string name; ///< without the leading @; unique in its role
  CellKind kind = CellKind::Buffer;
  int32_t of = -1; ///< index in Plan::blocks or Plan::params, depending on the kind
  Type type;       ///< type of one slot
  int32_t slots = 1;
  Arena arena = Arena::State;
  Purpose purpose = Purpose::Params;
  Place place; ///< of slot 0

  bool isRing() const { return slots > 1; }
  /// Size in bytes, including all slots.
  int64_t bytes() const {
    return isRing() ? (slots - 1) * place.stride + type.bytes() : type.bytes();
  }
};

/// Makes a result reuse the buffer of a value.
struct Tie {
  enum Kind : uint8_t {
    Acc, ///< result = value + contribution where `pred` holds, else contribution alone
    Else ///< result = value, untouched, where the op's own predicate does not hold
  } kind;
  uint8_t result; ///< index of the result
  ValueId value;  ///< the earlier value, which must have the same type
  Pred pred = Pred::Always;
};

/// A block whose shard is an operand of an op with a list of operands.
struct ListedBlock {
  int32_t block = -1; ///< index in Plan::blocks
  int64_t copies = 1; ///< ranks that hold the same elements and count them
  bool operator==(const ListedBlock &) const = default;
};

/// One op of a segment. Its row in Ops.def says what operands, results and attributes mean.
struct Op {
  OpKind kind;
  StreamId stream = kComputeStream;
  Pred pred = Pred::Always;
  ChannelId channel = kNoChannel; ///< for collectives, once chosen
  Phase phase = Phase::Other;
  ProductRole role = ProductRole::Forward;
  bool isRecomputed = false; ///< recomputes a value of the forward pass
  /// Index in Plan::groups: for a collective the channel's group, for a view the group whose index
  /// its offset depends on.
  int16_t group = -1;
  int32_t unit = -1;    ///< index in Plan::units, if it works on one unit
  uint32_t loc = kNone; ///< index in Plan::locs: the recipe line that caused it
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  std::vector<Attr> attrs;         ///< sorted by key; defaults are left out
  std::vector<ListedBlock> blocks; ///< for BlockUse::List: one per operand
  std::vector<Tie> ties;
  std::vector<uint32_t> waits; ///< earlier ops, on other streams, that must complete first

  /// The attribute's value; its default in Attrs.def if the op does not have it.
  int64_t getInt(AttrKey key) const {
    for (const Attr &attr : attrs)
      if (attr.key == key)
        return attr.i;
    return static_cast<int64_t>(attrInfo(key).defaultValue);
  }
  double getFloat(AttrKey key) const;
  bool getBool(AttrKey key) const { return getInt(key) != 0; }
  /// Sets an attribute, or removes it if `value` is its default. Float attributes take a double,
  /// all others an integer; anything else, and an attribute that the op does not have, is a bug and
  /// ends the program.
  Op &set(AttrKey key, int64_t value);
  Op &set(AttrKey key, double value);
};

inline const OpInfo &opInfo(const Op &op) { return opInfo(op.kind); }

/// An attribute that the op needs and lacks.
std::optional<AttrKey> missingAttr(const Op &op);
/// The attributes of the set, in the order in which an op stores them.
std::vector<AttrKey> attrKeys(AttrSet attrs);
/// The names of the attributes, for messages: "eps and zero_centered", or "none".
std::string attrNames(const AttrSet &attrs);

/// The operand or result with this name in the op's row; a name that the row lacks does not
/// compile.
template <OpKind kind> ValueId operandNamed(const Op &op, names::NameOf<kind, false> name) {
  return op.operands[name.index];
}
template <OpKind kind> ValueId resultNamed(const Op &op, names::NameOf<kind, true> name) {
  return op.results[name.index];
}

/// Whether the op opens records of numbers in 4 bits.
constexpr bool isDequantize(OpKind kind) {
  return kind == OpKind::Dequantize || kind == OpKind::DequantizeNested;
}

/// The operand that a result reuses in place according to the op's row; -1 if there is none or it
/// is absent.
inline int inPlaceOperand(const Op &op, size_t result) {
  const OpInfo &info = opInfo(op);
  int operand = result < info.inPlace.size() ? info.inPlace[result] : -1;
  return operand < static_cast<int>(op.operands.size()) ? operand : -1;
}
/// The role of a product whose text names none, implied by its transposes. Only the text form
/// relies on this.
ProductRole impliedRole(const Op &op);
/// How the members of its group take part in a collective.
CollectiveKind collectiveKindOf(const Op &collective);
/// Whether it is a send or a receive.
inline bool isPointToPoint(const Op &op) {
  const OpInfo &info = opInfo(op);
  return info.collective && shardc::isPointToPoint(info.collective->kind);
}
/// The full-size value of a collective: the gathered result, or the operand that is reduced.
ValueId wholeOf(const Op &collective);

/// A sequence of ops without control flow. All of its ops have completed when it ends.
struct Segment {
  /// Connects a value with the cell whose content it is.
  struct Boundary {
    ValueId value;
    uint32_t cell; ///< index in Role::cells
    /// For an `out`: the content may be overwritten without having been read.
    bool mayDrop = false;
    /// For a ring: offset from the current microbatch to the value's microbatch.
    int64_t shift = 0;
  };
  std::string name;
  SegmentKind kind = SegmentKind::Other;
  bool body = false; ///< runs once per microbatch
  /// Of a steady segment: distance to the microbatch of the ops of the backward pass.
  int64_t shift = 0;
  /// If set, this is a background segment, which no program names. It may start when a step has
  /// ended, must complete before segment `before` begins, and is unordered with everything in
  /// between. If `before` is itself a background segment, this one completes before that one
  /// starts; both are unordered with the program.
  uint32_t before = kNone;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Boundary> ins;  ///< values that are cells' contents at the start
  std::vector<Boundary> outs; ///< values that are cells' contents at the end
};

/// A microbatch number: `coef · i + base`, where i is the iteration of the innermost loop, from 0
/// on.
struct MicrobatchNumber {
  int64_t coef = 0, base = 0;
  int64_t at(int64_t iteration) const { return coef * iteration + base; }
  bool operator==(const MicrobatchNumber &) const = default;
};

/// One node of a role's program, which orders the segments.
struct ProgramNode {
  enum Kind : uint8_t {
    Start, ///< once, if no checkpoint is loaded
    Run,   ///< `count` times (a body for microbatches 0 to count - 1), or once for `microbatch`
    Steps, ///< children, `count` times
    Every, ///< children, after each `count`-th step
    Loop   ///< children, `count` times within a step
  } kind;
  uint32_t segment = kNone;
  int64_t count = 1;
  std::vector<ProgramNode> children;
  std::optional<MicrobatchNumber> microbatch; ///< the microbatch of a body's run
};

/// Coordinates in [begin, end) on one axis of the mesh.
struct AxisRange {
  uint16_t axis;
  int64_t begin, end;
};

/// The program of all ranks that execute the same, for example of a pipeline stage.
struct Role {
  std::string name;
  std::string why;                               ///< the difference from other roles, for readers
  std::vector<AxisRange> where;                  ///< the coordinates of its ranks; empty: all ranks
  std::array<int64_t, kArenaCount> arenaBytes{}; ///< by arena, of one rank; placed plans only
  /// Predicted bytes on the plan's device; -1 if not predicted.
  std::array<int64_t, kBesideCount> besideBytes{-1, -1, -1};
  std::vector<Cell> cells;
  std::vector<Segment> segments;
  std::vector<ProgramNode> program;

  int64_t beside(Beside what) const { return besideBytes[static_cast<size_t>(what)]; }
};

/// An axis of the mesh of all ranks. Rank numbers follow the coordinates; the last axis varies
/// fastest.
struct MeshAxis {
  std::string name;
  int64_t size;
};

/// A process group: ranks that differ only along these axes. The last axis varies fastest in a
/// rank's index.
struct Group {
  std::string name;
  std::vector<uint16_t> axes;
};

/// A stream that each rank has; ops without a named stream use the first one.
struct Stream {
  std::string name;
  StreamKind kind = StreamKind::Other;
};

/// A communicator of a group or of two of its members. Its collectives are matched in order and all
/// use one transport.
struct Channel {
  std::string name;
  int16_t group = -1; ///< index in Plan::groups
  Transport transport = Transport::Nccl;
  /// Streaming multiprocessors that its kernels may occupy; 0 if it has no kernels.
  int32_t multiprocessors = 0;
  StreamId stream = kComputeStream; ///< the stream of its collectives
  /// The two members, by index in the group; -1: all members. Only channels of pairs have sends.
  std::array<int32_t, 2> pair{-1, -1};

  bool isPair() const { return pair[0] >= 0; }
};

/// Parameters that are gathered and reduced together (an FSDP unit): a layer, the embedding or the
/// head.
struct Unit {
  std::string name;
  UnitKind kind = UnitKind::Other;
};

/// Properties that blocks of parameters share. Class 0 has the job's settings; plans do not declare
/// it.
struct ParamClass {
  std::string name;
  bool isTrained = true;
  std::optional<Optimizer> optimizer; ///< nothing: the optimizer of the job
  bool operator==(const ParamClass &) const = default;
};
inline constexpr std::string_view kJobClassName = "job";

/// One flat buffer of a unit: `numel` elements including padding. The ranks of two groups may shard
/// it: a rank with index i in a group has `part` elements from i · part on. The axes of
/// `stateGroup` begin with those of `group`, so a rank's shard of the optimizer state is inside its
/// shard of the weights.
struct Block {
  std::string name;
  int32_t unit = -1;
  int64_t numel = 0;
  int64_t shard = 0;       ///< numel / ranks of `group` if it is all-gathered, else numel
  int16_t group = -1;      ///< index in Plan::groups; -1: one rank
  int64_t stateShard = 0;  ///< numel / ranks of `stateGroup` if the state is sharded, else numel
  int16_t stateGroup = -1; ///< ranks that share the optimizer state: `group` or a larger group
  /// The group over which its gradients are summed; -1: all ranks with other tokens.
  int16_t sumGroup = -1;
  int16_t paramClass = 0; ///< index in Plan::classes
};

/// The part of a block that a value holds: `numel` elements from numel · index(group) on.
struct BlockPart {
  int64_t numel = 0;
  int16_t group = -1; ///< -1: the whole block
  bool operator==(const BlockPart &) const = default;
};
/// Which part of the block a value with `numel` elements is; nothing if no part has this size.
std::optional<BlockPart> partOf(const Block &block, int64_t numel);

/// Initial values of a parameter. All but Zeros and Ones use Param::initStd.
enum class InitKind : uint8_t { Zeros, Ones, Normal, Constant, LogUniform, Uniform, StepBias };
std::string_view toString(InitKind);
std::optional<InitKind> parseInitKind(std::string_view);

/// Shards one dimension of a parameter over the ranks of a group. The dimension consists of `parts`
/// equal parts (such as gate and up projection); each is divided into as many pieces as the group
/// has ranks, and rank i has piece i of each.
struct Split {
  uint8_t dim = 0;
  int16_t group = -1; ///< index in Plan::groups
  int64_t parts = 1;
  bool operator==(const Split &) const = default;
};

/// One row of the parameter table, under Megatron-Core's name.
struct Param {
  std::string name;
  Type type; ///< this rank's part, in the type in which the model computes
  /// If positive, the parameter is a stack of tensors along its first dimension, such as the
  /// experts of a layer, which checkpoints number behind its name. The value is the number of
  /// elements in a row of one tensor.
  int64_t stackedRow = 0;
  Type whole;                ///< the unsharded type, once splits are applied; rank 0 otherwise
  std::vector<Split> splits; ///< one per sharded dimension
  /// Groups that replicate this parameter although they shard others: only the rank with index 0
  /// counts it in norms.
  std::vector<int16_t> copies;
  /// Row counts of interleaved matrices, repeated over all rows, such as the queries, keys and
  /// values of each group of heads; empty: one matrix. 0 is an equal share of the rows, such as the
  /// half of the gate; a negative count makes each turn a matrix of its own, such as a head.
  /// Optimizers that update whole matrices need this.
  std::vector<int64_t> turns;
  int32_t block = -1;
  int64_t offset = 0; ///< index of its first element in the block
  double lrMult = 1, wdMult = 1;
  bool isDecoupled = false; ///< whether it uses the learning rate optimizer.decoupled_lr
  InitKind init = InitKind::Zeros;
  /// Standard deviation of `normal`, value of `constant`, largest absolute value of `uniform`; of
  /// `log_uniform`, logarithms of uniform numbers, the end of their range, which begins with 1; of
  /// `step_bias`, whose softplus is a number with a uniform logarithm, the largest such number, a
  /// hundred times the smallest one.
  double initStd = 0;

  /// Elements per row of this rank's part; shard boundaries lie between rows.
  int64_t rowSize() const;
  bool isStacked() const { return stackedRow > 0; }
  /// The dimension that counts rows: the one after the stack's dimension.
  uint8_t rowDim() const { return isStacked() ? 1 : 0; }
  /// The type of the unsharded parameter.
  const Type &wholeType() const { return whole.rank == 0 ? type : whole; }
  /// Whether its splits are not yet applied, so that `type` is unsharded. Only in logical plans.
  bool isUncut() const { return !splits.empty() && whole.rank == 0; }
  /// Number of tensors in checkpoints: one, or one for each entry of a stack.
  int64_t tensorCount() const { return isStacked() ? wholeType().shape[0] : 1; }
  /// The name of tensor `number` in checkpoints: the parameter's, for a stack followed by the
  /// number.
  std::string tensorName(int64_t number) const;
  /// The type of one such tensor, unsharded, with numbers in place of records.
  Type tensorType() const;
};

/// A place in a recipe, for messages.
struct Loc {
  std::string file; ///< relative to the recipe's folder
  int32_t line = 0, column = 0;
};

/// A source text of the plan. Execution does not depend on it; checkpoints store it.
struct Source {
  enum Kind : uint8_t {
    Base,    ///< a recipe that another recipe extends
    Recipe,  ///< the recipe named on the command line
    Overlay, ///< an overlay
    Setting  ///< a `path=value` from the command line
  } kind;
  std::string name; ///< a file's path, relative to the common folder of all sources
  std::string text;
  bool operator==(const Source &) const = default;
};
std::string_view toString(Source::Kind);
std::optional<Source::Kind> parseSourceKind(std::string_view);

/// A whole plan. Its parts refer to each other by index, not by pointer, so a copy is independent
/// of the original. Nothing is checked here; verify() in runtime/verify checks a plan.
struct Plan {
  Plan();
  Plan(const Plan &);
  Plan(Plan &&) noexcept;
  Plan &operator=(const Plan &);
  Plan &operator=(Plan &&) noexcept;
  ~Plan(); // defined in one file, since these functions copy and free all parts of a plan

  Level level = Level::Logical;
  std::string name;
  std::string needsBackend = "host"; ///< host or cuda
  std::string needsGpu;              ///< name in the device table, empty for host
  int64_t deviceBytes = 0;           ///< memory of the device; the arenas must fit into it
  int32_t multiprocessors = 0; ///< multiprocessors of the device; 0 if kernels of channels use none
  Job job;                     ///< effective options
  std::vector<MeshAxis> mesh;
  std::vector<Group> groups;
  /// For each kind an index in `groups`; -1 if the plan has no such group.
  std::array<int16_t, kGroupKindCount> kindGroups = [] {
    std::array<int16_t, kGroupKindCount> none{};
    none.fill(-1);
    return none;
  }();
  std::vector<Stream> streams = {{std::string(kComputeStreamName), StreamKind::Compute}};
  std::vector<Channel> channels;
  std::vector<ParamClass> classes = {{std::string(kJobClassName)}};
  std::vector<Unit> units;
  std::vector<Block> blocks;
  std::vector<Param> params;
  std::vector<Loc> locs;
  std::vector<Role> roles;
  std::vector<Source> sources; ///< in ascending precedence
  /// The plan's specification, packed by spec::packed(); empty if the plan carries none. Execution
  /// does not depend on it.
  std::string specification;

  int16_t &kindGroup(GroupKind kind) { return kindGroups[static_cast<size_t>(kind)]; }
  /// Number of ranks of the job.
  int64_t worldSize() const;
  /// Number of ranks of an instance of the group; 1 for group -1.
  int64_t groupSize(int group) const;
  /// Ranks that take part in a collective: two if its channel connects a pair.
  int64_t membersOf(const Op &collective) const {
    bool isOfPair =
        collective.channel >= 0 && channels[static_cast<size_t>(collective.channel)].isPair();
    return isOfPair ? 2 : groupSize(collective.group);
  }
  const ParamClass &classOf(const Block &block) const {
    return classes[static_cast<size_t>(block.paramClass)];
  }
  /// The transport of a collective; Nccl if it has no channel yet.
  Transport transportOf(const Op &op) const {
    return op.channel < 0 ? Transport::Nccl : channels[static_cast<size_t>(op.channel)].transport;
  }
  /// The stream of an op that names none: after scheduling, that of its channel.
  StreamId defaultStream(const Op &op) const {
    bool isOfChannel = level >= Level::Scheduled && op.channel >= 0 &&
                       static_cast<size_t>(op.channel) < channels.size();
    return isOfChannel ? channels[static_cast<size_t>(op.channel)].stream : kComputeStream;
  }
};

/// The plan's group of this kind, as an index in Plan::groups; -1 if there is none.
inline int16_t groupOfKind(const Plan &plan, GroupKind kind) {
  return plan.kindGroups[static_cast<size_t>(kind)];
}
/// The mesh axes along which ranks process different tokens: different samples, or different slices
/// of the same samples.
std::vector<uint16_t> axesOfTokens(const Plan &plan);

} // namespace shardc::plan
