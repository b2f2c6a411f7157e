// Words of enumerators, attributes of ops, groups by kind, parts of blocks, and other facts that
// follow from the structs of a plan alone.
#include "runtime/plan/Plan.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/Status.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/Limits.h"

namespace shardc::plan {

Plan::Plan() = default;
Plan::Plan(const Plan &) = default;
Plan::Plan(Plan &&) noexcept = default;
Plan &Plan::operator=(const Plan &) = default;
Plan &Plan::operator=(Plan &&) noexcept = default;
Plan::~Plan() = default;

namespace {

/// Names of a small enumeration, in the order of its enumerators.
template <size_t N> using Names = std::array<std::string_view, N>;

constexpr Names<4> kLevelNames = {"logical", "sharded", "scheduled", "placed"};
constexpr Names<5> kPredNames = {"always", "first", "not_first", "last", "not_last"};
constexpr Names<4> kTransportNames = {"nccl", "window", "ce", "exchange"};
constexpr Names<4> kArenaNames = {"state", "work", "sym", "host"};
constexpr Names<kBesideCount> kBesideNames = {"communicators", "landings", "workspaces"};
constexpr Names<kPurposeCount> kPurposeNames = {
    "params", "grads", "master_params", "optimizer_state", "activations",
    "comm",   "data",  "step",          "save_staging",    "save_copies"};
constexpr Names<5> kUnitKindNames = {
#define UNIT_KIND(enumerator, word, doc) word,
#include "runtime/plan/Kinds.def"
};
constexpr Names<14> kStreamKindNames = {
#define STREAM_KIND(enumerator, word, doc) word,
#include "runtime/plan/Kinds.def"
};
constexpr Names<3> kProductRoleNames = {
#define PRODUCT_ROLE(enumerator, word, doc) word,
#include "runtime/plan/Kinds.def"
};
constexpr Names<4> kPhaseNames = {
#define PHASE(enumerator, word, doc) word,
#include "runtime/plan/Kinds.def"
};
constexpr Names<4> kSourceKindNames = {"base", "recipe", "overlay", "setting"};
constexpr Names<7> kInitNames = {"zeros",       "ones",    "normal",   "constant",
                                 "log_uniform", "uniform", "step_bias"};

constexpr CellKindInfo kCellKinds[] = {
#define CELL_KIND(enumerator, word, of, host, doc)                                                 \
  {word, CellKindInfo::of, CellKindInfo::host, doc},
#include "runtime/plan/Kinds.def"
};

constexpr GroupKindInfo kGroupKinds[] = {
#define GROUP_KIND(enumerator, word, division, doc) {word, GroupKindInfo::division, doc},
#include "runtime/plan/Kinds.def"
};

constexpr SegmentKindInfo kSegmentKinds[] = {
#define SEGMENT_KIND(enumerator, word, form, phase, doc)                                           \
  {word, SegmentKindInfo::form, Phase::phase, doc},
#include "runtime/plan/Kinds.def"
};

/// Finds the kind whose row has the word.
template <typename E, typename Row, size_t N>
std::optional<E> parseKind(const Row (&rows)[N], std::string_view word) {
  const Row *found = std::ranges::find(rows, word, &Row::word);
  return found == std::end(rows) ? std::nullopt
                                 : std::optional(static_cast<E>(found - std::begin(rows)));
}

template <typename E, size_t N>
std::optional<E> parseEnum(const Names<N> &names, std::string_view text) {
  for (size_t i = 0; i < N; ++i)
    if (names[i] == text)
      return static_cast<E>(i);
  return std::nullopt;
}

Attr &slotFor(Op &op, AttrKey key) {
  SHARDC_CHECK(opInfo(op).attrs.has(key), "'{}' has no attribute '{}'", opInfo(op).name,
               attrInfo(key).name);
  auto at = std::lower_bound(op.attrs.begin(), op.attrs.end(), key,
                             [](const Attr &attr, AttrKey k) { return attr.key < k; });
  if (at == op.attrs.end() || at->key != key) {
    at = op.attrs.insert(at, Attr{});
    at->key = key;
  }
  return *at;
}

void eraseAttr(Op &op, AttrKey key) {
  std::erase_if(op.attrs, [key](const Attr &attr) { return attr.key == key; });
}

/// Bounds that rows of Attrs.def name.
constexpr int64_t kLeast = INT64_MIN, kMost = INT64_MAX, kElements = limits::kElementsMax,
                  kExtent = limits::kExtentMax, kChannels = int64_t{1} << 30,
                  kRanks = limits::kWorldSizeMax;

} // namespace

constexpr std::array<AttrInfo, kAttrCount> kAttrInfos = {{
#define ATTR_BOOL(field, default_, doc) {#field, AttrInfo::Bool, "", default_ ? 1.0 : 0.0},
#define ATTR_INT(field, default_, least, most, doc)                                                \
  {#field, AttrInfo::Int, "", static_cast<double>(default_), least, most},
#define ATTR_FLOAT(field, default_, doc) {#field, AttrInfo::Float, "", default_},
#define ATTR_ENUM(field, default_, names, doc)                                                     \
  {#field, AttrInfo::Enum, names, static_cast<double>(default_)},
#include "runtime/base/Attrs.def"
}};

/// The words of an enumeration in both directions.
#define WORDS(type, parse, names)                                                                  \
  std::string_view toString(type x) { return names[static_cast<size_t>(x)]; }                      \
  std::optional<type> parse(std::string_view text) { return parseEnum<type>(names, text); }
WORDS(Level, parseLevel, kLevelNames)
WORDS(Transport, parseTransport, kTransportNames)
WORDS(Arena, parseArena, kArenaNames)
WORDS(Beside, parseBeside, kBesideNames)
WORDS(Purpose, parsePurpose, kPurposeNames)
WORDS(UnitKind, parseUnitKind, kUnitKindNames)
WORDS(StreamKind, parseStreamKind, kStreamKindNames)
WORDS(ProductRole, parseProductRole, kProductRoleNames)
WORDS(Phase, parsePhase, kPhaseNames)
WORDS(Source::Kind, parseSourceKind, kSourceKindNames)
WORDS(InitKind, parseInitKind, kInitNames)
#undef WORDS

std::string toString(const Pred &x) {
  if (x.hasNumbers())
    return fmt::format("{} {} to {}", x.kind == Pred::Kind::Within ? "mb" : "not_mb", x.begin,
                       x.last) +
           (x.period > 0 ? fmt::format(" every {} to {}", x.period, x.until) : "");
  return std::string(kPredNames[static_cast<size_t>(x.kind)]);
}
std::string toString(const Variant &x) {
  if (x == Variant::First || x == Variant::Middle || x == Variant::Last || x == Variant::Only)
    return x == Variant::Middle ? "middle"
           : x == Variant::Only ? "only"
           : x.isFirst()        ? "first"
                                : "last";
  return fmt::format("like {} of {}", x.microbatch, x.count);
}

const CellKindInfo &cellKindInfo(CellKind kind) { return kCellKinds[static_cast<size_t>(kind)]; }
std::optional<CellKind> parseCellKind(std::string_view word) {
  return parseKind<CellKind>(kCellKinds, word);
}
const SegmentKindInfo &segmentKindInfo(SegmentKind kind) {
  return kSegmentKinds[static_cast<size_t>(kind)];
}
std::optional<SegmentKind> parseSegmentKind(std::string_view word) {
  return parseKind<SegmentKind>(kSegmentKinds, word);
}
const GroupKindInfo &groupKindInfo(GroupKind kind) {
  return kGroupKinds[static_cast<size_t>(kind)];
}
std::optional<GroupKind> parseGroupKind(std::string_view word) {
  return parseKind<GroupKind>(kGroupKinds, word);
}
std::optional<Pred> parsePred(std::string_view text) {
  std::optional<Pred::Kind> kind = parseEnum<Pred::Kind>(kPredNames, text);
  return kind ? std::optional(Pred{*kind}) : std::nullopt;
}

Type Type::of(DType dtype, std::initializer_list<int64_t> shape) {
  Type type;
  type.dtype = dtype;
  for (int64_t extent : shape)
    type.shape[type.rank++] = extent;
  return type;
}

double Op::getFloat(AttrKey key) const {
  for (const Attr &attr : attrs)
    if (attr.key == key)
      return attr.f;
  return attrInfo(key).defaultValue;
}

std::optional<AttrKey> missingAttr(const Op &op) {
  AttrSet missing = opInfo(op).needed;
  for (const Attr &attr : op.attrs)
    missing.remove(attr.key);
  return missing.first();
}

std::vector<AttrKey> attrKeys(AttrSet attrs) {
  std::vector<AttrKey> keys;
  while (std::optional<AttrKey> key = attrs.first()) {
    keys.push_back(*key);
    attrs.remove(*key);
  }
  return keys;
}

std::string attrNames(const AttrSet &attrs) {
  std::vector<std::string_view> names;
  for (AttrKey key : attrKeys(attrs))
    names.push_back(attrInfo(key).name);
  if (names.size() < 2)
    return names.empty() ? "none" : std::string(names[0]);
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

Op &Op::set(AttrKey key, int64_t value) {
  SHARDC_CHECK(attrInfo(key).type != AttrInfo::Float, "attribute '{}' takes a float",
               attrInfo(key).name);
  if (value == static_cast<int64_t>(attrInfo(key).defaultValue))
    eraseAttr(*this, key);
  else
    slotFor(*this, key).i = value;
  return *this;
}

Op &Op::set(AttrKey key, double value) {
  SHARDC_CHECK(attrInfo(key).type == AttrInfo::Float, "attribute '{}' takes no float",
               attrInfo(key).name);
  if (value == attrInfo(key).defaultValue)
    eraseAttr(*this, key);
  else
    slotFor(*this, key).f = value;
  return *this;
}

CollectiveKind collectiveKindOf(const Op &collective) {
  const OpInfo &info = opInfo(collective);
  SHARDC_CHECK(info.collective.has_value(), "'{}' is no collective", info.name);
  return info.collective->kind;
}

ProductRole impliedRole(const Op &op) {
  if (!isLayerProduct(op.kind) || op.getBool(AttrKey::trans_b))
    return ProductRole::Forward;
  return op.getBool(AttrKey::trans_a) ? ProductRole::WeightGradient : ProductRole::InputGradient;
}

ValueId wholeOf(const Op &collective) {
  CollectiveKind kind = collectiveKindOf(collective);
  bool isOperand = isSum(kind) || kind == CollectiveKind::Send;
  return isOperand ? collective.operands[0] : collective.results[0];
}

std::optional<BlockPart> partOf(const Block &block, int64_t numel) {
  if (numel == block.numel)
    return BlockPart{numel, -1};
  if (numel == block.shard)
    return BlockPart{numel, block.group};
  if (numel == block.stateShard)
    return BlockPart{numel, block.stateGroup};
  return std::nullopt;
}

Type numbersOf(Type type) {
  if (isRecord(type.dtype)) {
    type.shape[type.rank - 1u] *= numbersIn(type.dtype);
    type.dtype = DType::F32;
  }
  return type;
}

int64_t Param::rowSize() const {
  if (isStacked())
    return stackedRow;
  return type.rank <= 1 ? 1 : type.numel() / std::max<int64_t>(type.shape[0], 1);
}

Type Param::tensorType() const {
  Type tensor = numbersOf(wholeType());
  if (isStacked()) {
    std::rotate(tensor.shape.begin(), tensor.shape.begin() + 1, tensor.shape.end());
    tensor.shape.back() = 0;
    --tensor.rank;
  }
  return tensor;
}

std::string Param::tensorName(int64_t number) const {
  return isStacked() ? name + std::to_string(number) : name;
}

int64_t Plan::worldSize() const {
  int64_t size = 1;
  for (const MeshAxis &axis : mesh)
    size *= axis.size;
  return size;
}

int64_t Plan::groupSize(int group) const {
  int64_t size = 1;
  if (group < 0)
    return size;
  for (uint16_t axis : groups[static_cast<size_t>(group)].axes)
    size *= mesh[axis].size;
  return size;
}

std::vector<uint16_t> axesOfTokens(const Plan &plan) {
  std::vector<uint16_t> axes;
  for (GroupKind kind : {GroupKind::Data, GroupKind::Context})
    if (int16_t group = groupOfKind(plan, kind); group >= 0) {
      const std::vector<uint16_t> &more = plan.groups[static_cast<size_t>(group)].axes;
      axes.insert(axes.end(), more.begin(), more.end());
    }
  return axes;
}

} // namespace shardc::plan
