// Each value is one file of raw bytes. The index is written at the end of the run, so an index that
// exists is complete.
#include "runtime/run/Dump.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
namespace {

constexpr size_t kFilesMax = 100'000;

nlohmann::json shapeOf(const plan::Type &type) {
  nlohmann::json shape = nlohmann::json::array();
  for (int d = 0; d < type.rank; ++d)
    shape.push_back(type.shape[d]);
  return shape;
}

/// Converts a name of the plan to a part of a file name. Names may contain a slash.
std::string fileName(std::string_view name) {
  std::string out;
  for (char c : name)
    out += plan::isWordChar(c) || c == '@' ? std::string(1, c)
                                           : fmt::format("%{:02x}", static_cast<uint8_t>(c));
  return out;
}

/// The tensors to which the elements of a rank's piece of a block belong. If parts consist of
/// partial rows, `columns` elements are contiguous, and the next ones are `stride` elements further
/// in the tensor.
nlohmann::json partsOf(const plan::Plan &plan, int32_t block, int64_t begin, int64_t numel,
                       int64_t rank) {
  nlohmann::json parts = nlohmann::json::array();
  exec::GroupIndices indices(plan, rank);
  for (const exec::ParamPiece &part : exec::paramPieces(plan, block, begin, numel))
    for (const exec::TensorBox &box : exec::tensorBoxes(plan, part, indices)) {
      nlohmann::json &each = parts.emplace_back();
      each = {{"param", plan.params[part.param].tensorName(box.number)},
              {"begin", box.begin},
              {"end", box.end},
              {"global_begin", box.globalBegin}};
      if (box.columns > 0)
        each.update({{"columns", box.columns}, {"stride", box.stride}});
    }
  return parts;
}

} // namespace

Result<DumpSpec> DumpSpec::parse(std::string_view text) {
  DumpSpec spec;
  size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size())
    return makeStatus(report::DumpRefused, "'{}' is not of the form SEGMENT:VALUE or SEGMENT:@CELL",
                      text);
  spec.segment = text.substr(0, colon);
  std::string_view name = text.substr(colon + 1);
  spec.isCell = name.front() == '@';
  if (name.front() == '@' || name.front() == '%')
    name.remove_prefix(1);
  spec.isPrefix = !name.empty() && name.back() == '*';
  if (spec.isPrefix)
    name.remove_suffix(1);
  spec.name = name;
  return spec;
}

bool DumpSpec::matches(std::string_view candidate) const {
  return isPrefix ? candidate.starts_with(name) : candidate == name;
}

Result<std::unique_ptr<Dumper>> Dumper::create(exec::Executable &executable, std::string folder,
                                               std::vector<DumpSpec> specs) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return makeStatus(StatusCode::Io, "cannot create folder '{}': {}", folder, error.message());
  std::unique_ptr<Dumper> dumper(new Dumper(executable, std::move(folder), std::move(specs)));
  RETURN_IF_ERROR(dumper->checkSpecs());
  dumper->findBlocks();
  return dumper;
}

/// The names of all segments without duplicates; roles may have segments with the same name.
std::string Dumper::segmentNames() const {
  std::vector<std::string_view> names;
  for (uint32_t s = 0; s < executable_.segmentCount(); ++s)
    if (std::ranges::find(names, executable_.segment(s).name) == names.end())
      names.push_back(executable_.segment(s).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool Dumper::isThere(const DumpSpec &spec) const {
  auto isMeant = [&](const auto &named) { return spec.matches(named.name); };
  for (uint32_t s = 0; s < executable_.segmentCount(); ++s) {
    const plan::Segment &segment = executable_.segment(s);
    if (segment.name == spec.segment &&
        (spec.isCell ? std::ranges::any_of(executable_.roleOfSegment(s).cells, isMeant)
                     : std::ranges::any_of(segment.values, isMeant)))
      return true;
  }
  return false;
}

Status Dumper::checkSpecs() const {
  for (const DumpSpec &spec : specs_)
    if (!isThere(spec))
      return makeStatus(report::DumpRefused,
                        "nothing to dump is called {}{}{} in segment '{}'; segments are {}",
                        spec.isCell ? '@' : '%', spec.name, spec.isPrefix ? "*" : "", spec.segment,
                        segmentNames());
  return Status::ok();
}

/// Finds the blocks of cells and values. Cells and ops name the blocks to which they belong.
void Dumper::findBlocks() {
  for (const plan::Role &role : executable_.plan().roles) {
    std::vector<int32_t> &ofCells = blockOfCell_[&role];
    for (const plan::Cell &cell : role.cells)
      ofCells.push_back(plan::cellKindInfo(cell.kind).of == plan::CellKindInfo::Block ? cell.of
                                                                                      : -1);
    for (const plan::Segment &segment : role.segments)
      blockOfValue_.push_back(blocksOf(segment, ofCells));
  }
}

/// The block of each value of a segment; -1 for values without a block. Also adds to `ofCells` the
/// blocks of cells that follow from ops of this segment.
std::vector<int32_t> Dumper::blocksOf(const plan::Segment &segment,
                                      std::vector<int32_t> &ofCells) const {
  std::vector<int32_t> blocks(segment.values.size(), -1);
  for (const auto *boundaries : {&segment.ins, &segment.outs})
    for (const plan::Segment::Boundary &boundary : *boundaries)
      blocks[boundary.value] = ofCells[boundary.cell];
  for (const plan::Op &op : segment.ops) {
    auto note = [&](plan::ValueId value, size_t index) {
      if (blocks[value] < 0 && segment.values[value].type.rank == 1)
        blocks[value] =
            exec::blockOf(executable_.plan(), op, index, segment.values[value].type.numel());
    };
    for (size_t i = 0; i < op.operands.size(); ++i)
      note(op.operands[i], i);
    for (plan::ValueId result : op.results)
      note(result, 0);
  }
  for (const auto *boundaries : {&segment.ins, &segment.outs})
    for (const plan::Segment::Boundary &boundary : *boundaries)
      if (blocks[boundary.value] >= 0)
        ofCells[boundary.cell] = blocks[boundary.value];
  return blocks;
}

bool Dumper::wants(const std::string &segment, const std::string &name, bool isCell) const {
  for (const DumpSpec &spec : specs_)
    if (spec.segment == segment && spec.isCell == isCell && spec.matches(name))
      return true;
  return false;
}

/// Writes the op's results that were asked for; after the last op, the cells too.
Status Dumper::afterOp(const Position &position) {
  const plan::Segment &segment = executable_.segment(position.segment);
  const plan::Op &op = segment.ops[position.op];
  bool isAlias = plan::opInfo(op).traits == plan::OpTraits::Alias;
  if (isAlias || executable_.bound(position.segment, position.instance)->ops[position.op].kind !=
                     exec::BoundOp::Nothing)
    for (plan::ValueId id : op.results) {
      const plan::Value &value = segment.values[id];
      if (wants(segment.name, value.name, false))
        RETURN_IF_ERROR(write(position, value.name, value.place, value.type,
                              blockOfValue_[position.segment][id]));
    }
  return position.op + 1 == segment.ops.size() ? writeCells(position) : Status::ok();
}

Status Dumper::beforeSegment(const Position &position) {
  const plan::Segment &segment = executable_.segment(position.segment);
  for (const plan::Segment::Boundary &in : segment.ins) {
    const plan::Value &value = segment.values[in.value];
    if (wants(segment.name, value.name, false))
      RETURN_IF_ERROR(write(position, value.name, value.place, value.type,
                            blockOfValue_[position.segment][in.value]));
  }
  return Status::ok();
}

Status Dumper::writeCells(const Position &position) {
  const plan::Role &role = executable_.roleOfSegment(position.segment);
  for (size_t c = 0; c < role.cells.size(); ++c)
    if (wants(executable_.segment(position.segment).name, role.cells[c].name, true))
      RETURN_IF_ERROR(write(position, "@" + role.cells[c].name, role.cells[c].place,
                            role.cells[c].type, blockOfCell_.at(&role)[c]));
  return Status::ok();
}

Status Dumper::write(const Position &position, const std::string &name, const plan::Place &place,
                     const plan::Type &type, int32_t block) {
  const std::string &segment = executable_.segment(position.segment).name;
  for (size_t rank : executable_.ranksOf(position.segment)) {
    if (written_.size() >= kFilesMax)
      return makeStatus(StatusCode::Exhausted, "more than {} values to dump", kFilesMax);
    const exec::Arenas &arenas = executable_.arenas(rank);
    ASSIGN_OR_RETURN(uint8_t * address,
                     arenas.resolve(place, type.bytes(), name, position.instance.slot));
    std::string bytes(static_cast<size_t>(type.bytes()), '\0');
    RETURN_IF_ERROR(executable_.readBeside(rank, address, type.bytes(), bytes.data()));
    Written entry;
    entry.file = fmt::format("{}.{}.{}.rank{}.bin", fileName(segment), position.params.microbatch,
                             fileName(name), executable_.worldRank(rank));
    entry.segment = segment;
    entry.name = name;
    entry.step = step_;
    entry.microbatch = position.params.microbatch;
    entry.rank = executable_.worldRank(rank);
    entry.type = type;
    entry.block = block;
    entry.begin = block < 0 ? -1
                            : exec::pieceBegin(executable_.plan().blocks[block], type.numel(),
                                               arenas.indices());
    RETURN_IF_ERROR(replaceFile(folder_ + "/" + entry.file, bytes));
    written_.push_back(std::move(entry));
  }
  return Status::ok();
}

/// Writes index.json. A process with only some of the ranks writes index.rankR.json instead, where
/// R is its first rank. Values that are shards of a block also list which elements of which
/// parameters they hold.
Status Dumper::finish() const {
  if (written_.empty())
    return Status::ok();
  const plan::Plan &plan = executable_.plan();
  nlohmann::json index;
  index["step"] = written_.front().step;
  index["params"] = nlohmann::json::array();
  for (const plan::Param &param : plan.params)
    for (int64_t number = 0; number < param.tensorCount(); ++number)
      index["params"].push_back({{"name", param.tensorName(number)},
                                 {"dtype", std::string(dtypeName(param.type.dtype))},
                                 {"shape", shapeOf(param.tensorType())}});
  for (const Written &entry : written_) {
    nlohmann::json tensor = {{"file", entry.file},
                             {"segment", entry.segment},
                             {"microbatch", entry.microbatch},
                             {"name", entry.name},
                             {"rank", entry.rank},
                             {"dtype", std::string(dtypeName(entry.type.dtype))},
                             {"shape", shapeOf(entry.type)}};
    if (entry.begin >= 0) {
      tensor["block"] = plan.blocks[entry.block].name;
      tensor["parts"] = partsOf(plan, entry.block, entry.begin, entry.type.numel(), entry.rank);
    }
    index["tensors"].push_back(std::move(tensor));
  }
  bool isAlone = executable_.rankCount() == static_cast<size_t>(executable_.plan().worldSize());
  std::string name =
      isAlone ? "index.json" : fmt::format("index.rank{}.json", executable_.worldRank(0));
  return replaceFile(folder_ + "/" + name, toText(index, 1) + "\n");
}

} // namespace shardc::run
