// The plan: what every role of a job executes, on which stream, over which bytes. The one contract
// between compiler and runtime; see docs/plan.md for its text form and its rules.
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

/// How much is known; each level adds to the one before.
enum class Level : uint8_t { Logical, Sharded, Scheduled, Placed };

enum class CellKind : uint8_t {
#define CELL_KIND(enumerator, word, of, host, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

enum class Optimizer : uint8_t {
#define OPTIMIZER(enumerator, word, op, rate, gbs) enumerator,
#include "runtime/plan/Optimizers.def"
};

enum class UnitKind : uint8_t {
#define UNIT_KIND(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

enum class GroupKind : uint8_t {
#define GROUP_KIND(enumerator, word, division, doc) enumerator,
#include "runtime/plan/Kinds.def"
};
inline constexpr size_t kGroupKindCount = 0
#define GROUP_KIND(enumerator, word, division, doc) +1
#include "runtime/plan/Kinds.def"
    ;

enum class StreamKind : uint8_t {
#define STREAM_KIND(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

enum class SegmentKind : uint8_t {
#define SEGMENT_KIND(enumerator, word, form, phase, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// What a product with the attributes trans_a and trans_b is; other ops are Forward.
enum class ProductRole : uint8_t {
#define PRODUCT_ROLE(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

/// What an op is part of.
enum class Phase : uint8_t {
#define PHASE(enumerator, word, doc) enumerator,
#include "runtime/plan/Kinds.def"
};

enum class AttrKey : uint8_t {
#define ATTR_BOOL(field, default_, doc) field,
#define ATTR_INT(field, default_, least, most, doc) field,
#define ATTR_FLOAT(field, default_, doc) field,
#include "runtime/base/Attrs.def"
};

/// One attribute; which member counts follows from the key's row in Attrs.def (bool and enum are
/// ints).
struct Attr {
  AttrKey key;
  union {
    int64_t i;
    double f;
  };
};

/// A queue of one rank, by its index in Plan::streams; ops of one stream run in order.
using StreamId = uint8_t;
inline constexpr StreamId kComputeStream = 0; ///< of ops that name none
inline constexpr std::string_view kComputeStreamName = "compute";
inline constexpr size_t kStreamsMax = 16;

/// In which microbatches an op of a body takes effect.
struct Pred {
  enum class Kind : uint8_t { Always, First, NotFirst, Last, NotLast, Within };
  Kind kind = Kind::Always;
  int64_t begin = 0, last = 0; ///< Within: from the one number to the other, both included
  /// And again every `period` numbers, more than there are from begin to last, up to `until`; 0:
  /// once.
  int64_t period = 0, until = 0;
  bool operator==(const Pred &) const = default;

  static const Pred Always, First, NotFirst, Last, NotLast;
  static constexpr Pred within(int64_t begin, int64_t last) { return {Kind::Within, begin, last}; }
  static constexpr Pred every(int64_t period, int64_t begin, int64_t last, int64_t until) {
    return {Kind::Within, begin, last, period, until};
  }

  /// Of Within: whether it names the number.
  constexpr bool names(int64_t number) const {
    if (number < begin || number > end())
      return false;
    return (period > 0 ? (number - begin) % period : number - begin) <= last - begin;
  }
  /// Of Within: the last number that it may name.
  constexpr int64_t end() const { return period > 0 ? until : last; }
};
inline constexpr Pred Pred::Always{Kind::Always};
inline constexpr Pred Pred::First{Kind::First};
inline constexpr Pred Pred::NotFirst{Kind::NotFirst};
inline constexpr Pred Pred::Last{Kind::Last};
inline constexpr Pred Pred::NotLast{Kind::NotLast};

/// Which microbatches a body stands for: those that execute like number `microbatch` of `count`.
/// VariantTable in Variants.h says which these are.
struct Variant {
  int64_t microbatch = 0, count = 1;
  bool isFirst() const { return microbatch == 0; }
  bool isLast() const { return microbatch == count - 1; }
  bool operator==(const Variant &) const = default;
  auto operator<=>(const Variant &) const = default;

  /// Those of bodies that tell only the first and the last microbatch from others. Only is both.
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
  }
  return true;
}

using ChannelId = int16_t; ///< index in Plan::channels
inline constexpr ChannelId kNoChannel = -1;
/// How a collective travels on GPUs: kernels of NCCL, its kernels between windows, copy engines,
/// or everybody's version of a part by its sends and receives, added in rank order.
enum class Transport : uint8_t { Nccl, Window, Ce, Exchange };
enum class Arena : uint8_t { State, Work, Sym, Host };
inline constexpr int kArenaCount = 4;
/// What a rank has of its device beside the arenas, as far as its role decides it.
enum class Beside : uint8_t { Communicators, Landings, Workspaces };
inline constexpr int kBesideCount = 3;

/// What bytes are for, in summaries.
enum class Purpose : uint8_t {
  Params,
  Grads,
  MasterParams,
  OptimizerState,
  Activations,
  Comm,
  Data,
  Step,
  SaveStaging, ///< what of a save is copied on the device first
  SaveCopies   ///< on the host, of saves in the background
};
inline constexpr int kPurposeCount = 10;

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

/// One row of Kinds.def.
struct CellKindInfo {
  std::string_view word;
  enum Of : uint8_t { Nothing, Block, Param } of;
  enum Host : uint8_t { None, Writes, Reads, Saves } host; ///< what the host does with the content
  std::string_view doc;
};
const CellKindInfo &cellKindInfo(CellKind kind);
std::optional<CellKind> parseCellKind(std::string_view);

struct GroupKindInfo {
  std::string_view word;
  /// Groups of kinds of one division share no axis; Both belongs to each of the two.
  enum Division : uint8_t { Dense, Experts, Both, Inside } division;
  std::string_view doc;
};
const GroupKindInfo &groupKindInfo(GroupKind kind);
std::optional<GroupKind> parseGroupKind(std::string_view);

struct SegmentKindInfo {
  std::string_view word;
  enum Form : uint8_t { Any, Body, Straight, Background } form;
  Phase phase; ///< of ops that say no other one
  std::string_view doc;
};
const SegmentKindInfo &segmentKindInfo(SegmentKind kind);
std::optional<SegmentKind> parseSegmentKind(std::string_view);

struct AttrInfo {
  std::string_view name;
  enum Type : uint8_t { Bool, Int, Float, Enum } type;
  std::string_view enumerators; ///< "a|b|c" for Enum
  double defaultValue;
  int64_t least = 0, most = 0; ///< for Int: what compiler and verifier let pass
};
std::optional<AttrKey> parseAttrKey(std::string_view name);
inline constexpr int kAttrCount = 0
#define ATTR_BOOL(field, default_, doc) +1
#define ATTR_INT(field, default_, least, most, doc) +1
#define ATTR_FLOAT(field, default_, doc) +1
#include "runtime/base/Attrs.def"
    ;
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
  int64_t bytes() const { return numel() * dtypeBytes(dtype); }
  bool operator==(const Type &) const = default;
};

/// Where a value or cell lies: at `arena + offset + coef · index(group)` bytes, in a ring
/// `slot · stride` bytes on, where slot is the microbatch plus `shift`, modulo `slots`.
struct Place {
  bool placed = false;
  Arena arena = Arena::Work;
  int64_t offset = 0;
  int64_t coef = 0;
  int16_t group = -1; ///< index in Plan::groups; -1 where coef is 0
  int32_t slots = 1;  ///< of the ring that it lies in; 1: in none
  int64_t stride = 0; ///< bytes from a slot to the next
  int64_t shift = 0;  ///< from the microbatch under way to the one that the slot is for
  bool operator==(const Place &) const = default;

  /// The slot that it is in for a microbatch.
  int64_t slotOf(int64_t microbatch) const {
    int64_t slot = (microbatch + shift) % slots;
    return slot < 0 ? slot + slots : slot;
  }
  /// Without the part that moves with an index.
  int64_t offsetFor(int64_t microbatch) const {
    return slots == 1 ? offset : offset + slotOf(microbatch) * stride;
  }
};

struct Value {
  std::string name; ///< without the leading %; unique in its segment
  Type type;
  Purpose purpose = Purpose::Activations;
  Place place;
  uint32_t def = kNone; ///< index of the defining op, kNone for a live-in value
  uint8_t defResult = 0;
  /// Value of the segment, i32[slots, runs], that says which of its rows are there: its first
  /// dimension is the bound, and consists of equal slots; each slot begins with so many rows for
  /// each run, one run behind the other. kNone: all rows are there.
  ValueId counts = kNone;
};

/// A buffer that holds a value where segments meet. Every live-in value is a cell's content. A ring
/// holds one value for each microbatch in flight: that of number n in slot n modulo `slots`.
struct Cell {
  std::string name; ///< without the leading @; unique in its role
  CellKind kind = CellKind::Buffer;
  int32_t of = -1; ///< index in Plan::blocks or Plan::params, as the kind says
  Type type;       ///< of a slot
  int32_t slots = 1;
  Arena arena = Arena::State;
  Purpose purpose = Purpose::Params;
  Place place; ///< of the first slot

  bool isRing() const { return slots > 1; }
  /// From its first byte to its last, with all slots.
  int64_t bytes() const {
    return isRing() ? (slots - 1) * place.stride + type.bytes() : type.bytes();
  }
};

/// Ties a result to a value whose buffer it takes over.
struct Tie {
  enum Kind : uint8_t {
    Acc, ///< result = value + contribution where `pred` holds, else contribution alone
    Else ///< result = value, untouched, where the op's own predicate does not hold
  } kind;
  uint8_t result;
  ValueId value;
  Pred pred = Pred::Always;
};

/// An operand of an op that takes a list of blocks.
struct ListedBlock {
  int32_t block = -1; ///< index in Plan::blocks
  int64_t copies = 1; ///< ranks that count the same elements of it
  bool operator==(const ListedBlock &) const = default;
};

struct Op {
  OpKind kind;
  Epilogue epilogue = Epilogue::None; ///< works on what the op makes, which is not written
  StreamId stream = kComputeStream;
  Pred pred = Pred::Always;
  ChannelId channel = kNoChannel; ///< for collectives, once it is chosen
  Phase phase = Phase::Other;
  ProductRole role = ProductRole::Forward;
  bool isRecomputed = false; ///< makes a value of the forward pass once more
  /// Index in Plan::groups: of collectives that of the channel, of views that move theirs.
  int16_t group = -1;
  int32_t unit = -1;    ///< index in Plan::units, for what works on one unit
  uint32_t loc = kNone; ///< index in Plan::locs: the recipe line that caused it
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  std::vector<Attr> attrs;         ///< sorted by key; defaults are left out
  std::vector<ListedBlock> blocks; ///< of BlockUse::List: by operand
  std::vector<Tie> ties;
  std::vector<uint32_t> waits; ///< indices of earlier ops on other streams that must have ended

  int64_t getInt(AttrKey key) const {
    for (const Attr &attr : attrs)
      if (attr.key == key)
        return attr.i;
    return static_cast<int64_t>(attrInfo(key).defaultValue);
  }
  double getFloat(AttrKey key) const;
  bool getBool(AttrKey key) const { return getInt(key) != 0; }
  Op &set(AttrKey key, int64_t value); ///< also for bool and enum
  Op &set(AttrKey key, double value);
};

/// What is known of it with its epilogue.
inline const OpInfo &opInfo(const Op &op) { return opInfo(op.kind, op.epilogue); }

/// The operand, or the result, that the op's row calls so; a name that it lacks does not compile.
template <OpKind kind>
ValueId operandNamed(const Op &op, names::NameOf<kind, names::kOperands> name) {
  return op.operands[name.index];
}
template <OpKind kind>
ValueId resultNamed(const Op &op, names::NameOf<kind, names::kResults> name) {
  return op.results[name.index];
}

inline bool isAlone(const Op &op, OpKind kind) {
  return op.kind == kind && op.epilogue == Epilogue::None;
}

/// Operand whose buffer a result takes over by the op's row; -1 if none's, or one that is not
/// there.
inline int inPlaceOperand(const Op &op, size_t result) {
  const OpInfo &info = opInfo(op);
  int operand = result < info.inPlace.size() ? info.inPlace[result] : -1;
  return operand < static_cast<int>(op.operands.size()) ? operand : -1;
}
/// The role of a product whose text names none, by what its factors are transposed to. Only the
/// text form takes this for granted.
ProductRole impliedRole(const Op &op);
/// How members of its group take part in a collective op.
CollectiveKind collectiveKindOf(const Op &collective);
/// Whether it is one side of a transfer between two ranks.
inline bool isPointToPoint(const Op &op) {
  const OpInfo &info = opInfo(op);
  return info.collective && shardc::isPointToPoint(info.collective->kind);
}
/// The value of a collective that no member has before or after it alone: what is gathered, or what
/// is summed.
ValueId wholeOf(const Op &collective);

/// A straight line of ops; all have ended when it ends.
struct Segment {
  struct Boundary {
    ValueId value;
    uint32_t cell; ///< index in Role::cells
    /// For an `out`: the content may be overwritten before it is read.
    bool mayDrop = false;
    /// Of a ring: from the microbatch under way to the one that the value is of.
    int64_t shift = 0;
  };
  std::string name;
  SegmentKind kind = SegmentKind::Other;
  bool body = false; ///< runs once per microbatch
  /// Set: a background segment, in no program. It may start where a step has ended, and has ended
  /// before this segment, by index, begins; it is unordered with all that runs between. If that one
  /// is itself a background segment, it starts when that one has ended, and has ended before that
  /// one begins again; it is unordered with all of the program.
  uint32_t before = kNone;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Boundary> ins;  ///< values that are cells' contents at the start
  std::vector<Boundary> outs; ///< values that are cells' contents at the end
};

/// A microbatch number: `coef · i + base`, where i counts the turns of the innermost loop from 0
/// on.
struct MicrobatchNumber {
  int64_t coef = 0, base = 0;
  int64_t at(int64_t turn) const { return coef * turn + base; }
  bool operator==(const MicrobatchNumber &) const = default;
};

/// How segments follow each other.
struct ProgramNode {
  enum Kind : uint8_t {
    Start, ///< once, where no checkpoint is loaded
    Run,   ///< `count` times, a body for microbatches 0 to count - 1; or once for `microbatch`
    Steps, ///< children, `count` times
    Every, ///< children, after each `count`-th step
    Loop   ///< children, `count` times inside of a step
  } kind;
  uint32_t segment = kNone;
  int64_t count = 1;
  std::vector<ProgramNode> children;
  std::optional<MicrobatchNumber> microbatch; ///< that a run of a body is for
};

/// Coordinates `begin` to `end` - 1 on one axis of the mesh.
struct AxisRange {
  uint16_t axis;
  int64_t begin, end;
};

/// What ranks of the same kind execute.
struct Role {
  std::string name;
  std::string why;              ///< what distinguishes it from the other roles
  std::vector<AxisRange> where; ///< the ranks that have it; every rank if empty
  std::array<int64_t, kArenaCount> arenaBytes{};
  /// Predicted for the plan's device; -1 where it is not.
  std::array<int64_t, kBesideCount> besideBytes{-1, -1, -1};
  std::vector<Cell> cells;
  std::vector<Segment> segments;
  std::vector<ProgramNode> program;

  int64_t beside(Beside what) const { return besideBytes[static_cast<size_t>(what)]; }
};

struct MeshAxis {
  std::string name;
  int64_t size;
};

/// The ranks that differ in these axes only. A rank's index in its group counts along the last axis
/// first.
struct Group {
  std::string name;
  std::vector<uint16_t> axes;
};

/// A queue of each rank; the first one is that of ops that name none.
struct Stream {
  std::string name;
  StreamKind kind = StreamKind::Other;
};

/// A communicator of a group, or of two of its members: its collectives are matched in order, and
/// travel alike.
struct Channel {
  std::string name;
  int16_t group = -1; ///< index in Plan::groups
  Transport transport = Transport::Nccl;
  /// Of the device, that its kernels may take while they run; 0 where it has no kernels.
  int32_t multiprocessors = 0;
  StreamId stream = kComputeStream; ///< on which its collectives run
  /// Its members by their index in the group; -1: all. Only such a channel has sends.
  std::array<int32_t, 2> pair{-1, -1};

  bool isPair() const { return pair[0] >= 0; }
};

/// Parameters that are gathered and reduced together: a layer, the embedding, the head.
struct Unit {
  std::string name;
  UnitKind kind = UnitKind::Other;
};

/// What blocks of parameters have in common. Class 0 is the job's; plans do not declare it.
struct ParamClass {
  std::string name;
  bool isTrained = true;
  std::optional<Optimizer> optimizer; ///< nothing: the job's
  bool operator==(const ParamClass &) const = default;
};
inline constexpr std::string_view kJobClassName = "job";

/// One flat buffer of a unit: `numel` elements with padding, of which the ranks of two groups may
/// hold parts. A rank with index i in a group has the elements from i · part on. The axes of
/// `stateGroup` begin with those of `group`, so that a rank's part over `stateGroup` lies inside of
/// its part over `group`.
struct Block {
  std::string name;
  int32_t unit = -1;
  int64_t numel = 0;
  int64_t shard = 0;       ///< numel / ranks of `group` if gathers make the block whole, else numel
  int16_t group = -1;      ///< index in Plan::groups; -1: of one rank
  int64_t stateShard = 0;  ///< numel / ranks of `stateGroup` if state is divided, else numel
  int16_t stateGroup = -1; ///< who owns the optimizer's state: the same as `group`, or more ranks
  /// The ranks whose gradients of it are added; -1: all that have other tokens.
  int16_t sumGroup = -1;
  int16_t paramClass = 0; ///< index in Plan::classes
};

/// Which elements of a block a value has: `numel` of them, from numel · index(group) on.
struct BlockPart {
  int64_t numel = 0;
  int16_t group = -1; ///< -1: the whole block
  bool operator==(const BlockPart &) const = default;
};
/// The part of the block that a value of so many elements is; nothing if it is none.
std::optional<BlockPart> partOf(const Block &block, int64_t numel);

enum class InitKind : uint8_t { Zeros, Ones, Normal };
std::string_view toString(InitKind);
std::optional<InitKind> parseInitKind(std::string_view);

/// A dimension of a parameter that is cut among the ranks of a group. The dimension consists of
/// `parts` equal parts, each of which is cut into as many pieces as the group has ranks; the rank
/// with index i has the i-th piece of each.
struct Split {
  uint8_t dim = 0;
  int16_t group = -1; ///< index in Plan::groups
  int64_t parts = 1;
  bool operator==(const Split &) const = default;
};

/// One row of the global parameter table, under Megatron-Core's name.
struct Param {
  std::string name;
  Type type; ///< of the weight as the model computes with it: this rank's elements
  /// More than 0: the first dimension counts tensors that have the name of the parameter and their
  /// number behind it, the experts of a layer. Then this is the elements of one of their rows.
  int64_t stackedRow = 0;
  Type whole;                ///< of all elements where splits are made; rank 0 otherwise
  std::vector<Split> splits; ///< one for each dimension that is cut
  /// Groups whose ranks all have the same elements, in which others have parts of a split
  /// parameter: the rank with index 0 counts them in norms.
  std::vector<int16_t> copies;
  /// Its rows are of several matrices, so many of each in turn, over and over, as queries, keys and
  /// values of groups are; empty: it is one matrix. What updates whole matrices asks this.
  std::vector<int64_t> turns;
  int32_t block = -1;
  int64_t offset = 0; ///< first element in its block
  double lrMult = 1, wdMult = 1;
  bool isDecoupled = false; ///< its learning rate is the job's optimizer.decoupled_lr
  InitKind init = InitKind::Zeros;
  double initStd = 0;

  /// Elements of one row of this rank's part: shards cut between rows only.
  int64_t rowSize() const;
  bool isStacked() const { return stackedRow > 0; }
  /// The dimension that counts rows.
  uint8_t rowDim() const { return isStacked() ? 1 : 0; }
  /// Of the elements of all ranks together.
  const Type &wholeType() const { return whole.rank == 0 ? type : whole; }
  /// Its splits are still to be made: `type` is that of all elements. Only in logical plans.
  bool isUncut() const { return !splits.empty() && whole.rank == 0; }
  /// What checkpoints have of it: the tensors of a stack, or one of its own name.
  int64_t tensorCount() const { return isStacked() ? wholeType().shape[0] : 1; }
  std::string tensorName(int64_t number) const;
  /// With the elements of all ranks.
  Type tensorType() const;
};

struct Loc {
  std::string file; ///< relative to the recipe's folder
  int32_t line = 0, column = 0;
};

/// A text that the plan was compiled from. Nothing of a run depends on it; checkpoints keep it.
struct Source {
  enum Kind : uint8_t {
    Base,    ///< a recipe that another one extends
    Recipe,  ///< the one that the command named
    Overlay, ///< laid over it
    Setting  ///< `path=value` of the command line
  } kind;
  std::string name; ///< of a file, relative to the folder that all of them share
  std::string text;
  bool operator==(const Source &) const = default;
};
std::string_view toString(Source::Kind);
std::optional<Source::Kind> parseSourceKind(std::string_view);

struct Plan {
  Plan();
  Plan(const Plan &);
  Plan(Plan &&) noexcept;
  Plan &operator=(const Plan &);
  Plan &operator=(Plan &&) noexcept;
  ~Plan(); // with the others in one file: all that a plan consists of is copied and freed in them

  Level level = Level::Logical;
  std::string name;
  std::string needsBackend = "host"; ///< host or cuda
  std::string needsGpu;              ///< name in the device table, empty for host
  int64_t deviceBytes = 0;           ///< memory of the device; the arenas must fit
  int32_t multiprocessors = 0;       ///< of the device; 0: kernels of channels take none
  Job job;                           ///< effective options
  std::vector<MeshAxis> mesh;
  std::vector<Group> groups;
  /// By kind an index in `groups`; -1: the plan has no group of the kind.
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
  std::vector<Source> sources; ///< from the weakest to the strongest

  int16_t &kindGroup(GroupKind kind) { return kindGroups[static_cast<size_t>(kind)]; }
  int64_t worldSize() const;
  /// 1 for group -1.
  int64_t groupSize(int group) const;
  /// Ranks that take part in a collective: two where its channel is of a pair.
  int64_t membersOf(const Op &collective) const {
    bool isOfPair =
        collective.channel >= 0 && channels[static_cast<size_t>(collective.channel)].isPair();
    return isOfPair ? 2 : groupSize(collective.group);
  }
  const ParamClass &classOf(const Block &block) const {
    return classes[static_cast<size_t>(block.paramClass)];
  }
  /// How a collective travels; as NCCL's kernels while it has no channel.
  Transport transportOf(const Op &op) const {
    return op.channel < 0 ? Transport::Nccl : channels[static_cast<size_t>(op.channel)].transport;
  }
  /// The stream of an op that names none: once ops are scheduled, that of its channel.
  StreamId defaultStream(const Op &op) const {
    bool isOfChannel = level >= Level::Scheduled && op.channel >= 0 &&
                       static_cast<size_t>(op.channel) < channels.size();
    return isOfChannel ? channels[static_cast<size_t>(op.channel)].stream : kComputeStream;
  }
};

/// The plan's group of the kind, an index in Plan::groups; -1 if it has none.
inline int16_t groupOfKind(const Plan &plan, GroupKind kind) {
  return plan.kindGroups[static_cast<size_t>(kind)];
}
/// The axes along which ranks have other tokens: other samples, or other slices of the same ones.
std::vector<uint16_t> axesOfTokens(const Plan &plan);

} // namespace shardc::plan
