// Parses the tables before the roles: needs, job, mesh, groups, channels, blocks, parameters.
#include <algorithm>

#include "runtime/plan/Optimizers.h"
#include "runtime/plan/ParserImpl.h"

namespace shardc::plan {

bool Parser::needs() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    std::string_view key;
    if (!in_.word(key, "a key of 'needs'"))
      return false;
    size_t at = in_.last();
    if (!in_.expect('='))
      return false;
    std::string_view backend;
    bool ok = true;
    if (key == "backend") {
      ok = in_.name(backend, "backend");
      plan_.needsBackend = backend;
    } else if (key == "gpu") {
      ok = in_.string(plan_.needsGpu, "GPU name");
    } else if (key == "device_bytes") {
      ok = in_.integer(plan_.deviceBytes, "device_bytes", 0, limits::kBytesMax);
    } else if (key == "multiprocessors") {
      int64_t count = 0;
      ok = in_.integer(count, "multiprocessors", 0, limits::kMultiprocessorsMax);
      plan_.multiprocessors = static_cast<int32_t>(count);
    } else {
      return in_.fail(at, "plan-name",
                      "unknown key '{}' in 'needs'; it has backend, gpu, device_bytes and "
                      "multiprocessors",
                      key.substr(0, 64));
    }
    if (!ok)
      return false;
  }
  return true;
}

bool Parser::job() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}'))
    if (!jobEntry())
      return false;
  return true;
}

bool Parser::jobEntry() {
  std::string_view path;
  if (!room(plan_.job.environment, limits::kVariablesMax, "variables") ||
      !in_.name(path, "option path") || !jobs_.add(in_, path, 0, "option"))
    return false;
  size_t pathAt = in_.last();
  if (!in_.expect('='))
    return false;
  size_t valueAt = in_.next();
  JobValue value;
  if (!jobValue(value))
    return false;
  Job::Fault fault = plan_.job.set(path, value);
  std::string text = describeFault(fault, path, value);
  switch (fault) {
  case Job::Fault::None:
    return true;
  case Job::Fault::Unknown:
    return in_.fail(pathAt, "plan-name", "{}", text);
  case Job::Fault::Type:
    return in_.fail(valueAt, "plan-syntax", "{}", text);
  case Job::Fault::Word:
    return in_.fail(valueAt, "plan-name", "{}", text);
  case Job::Fault::Range:
    return in_.fail(valueAt, "plan-limit", "{}", text);
  }
  return false;
}

bool Parser::jobValue(JobValue &out) {
  if (in_.peek() == '"') {
    std::string text;
    bool ok = in_.string(text, "option value");
    out = std::move(text);
    return ok;
  }
  if (in_.takeIf('[')) {
    std::vector<std::string> items;
    while (!in_.takeIf(']')) {
      if (!room(items, limits::kJobListMax, "list items") || (!items.empty() && !in_.expect(',')))
        return false;
      if (!in_.string(items.emplace_back(), "list item"))
        return false;
    }
    out = std::move(items);
    return true;
  }
  std::string_view word = in_.peekWord();
  if (word == "true" || word == "false") {
    out = word == "true";
    return in_.word(word, "option value");
  }
  bool isInteger = !word.empty() && word.find_first_not_of("0123456789-") == std::string_view::npos;
  if (isInteger) {
    int64_t number = 0;
    bool ok = in_.integer(number, "option value", INT64_MIN, INT64_MAX);
    out = number;
    return ok;
  }
  double number = 0;
  bool ok = in_.real(number, "option value");
  out = number;
  return ok;
}

bool Parser::mesh() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    std::string_view name;
    MeshAxis axis;
    if (!room(plan_.mesh, limits::kMeshAxesMax, "mesh axes") || !in_.name(name, "mesh axis") ||
        !axes_.add(in_, name, static_cast<uint32_t>(plan_.mesh.size()), "mesh axis") ||
        !in_.expect('=') ||
        !in_.integer(axis.size, "size of a mesh axis", 1, limits::kWorldSizeMax))
      return false;
    axis.name = name;
    plan_.mesh.push_back(std::move(axis));
    // The product is checked after each axis, so that 8 sizes below 2^20 cannot overflow it.
    if (plan_.worldSize() > limits::kWorldSizeMax)
      return in_.fail(in_.last(), "plan-limit", "the mesh has {} ranks; the limit is {}",
                      plan_.worldSize(), limits::kWorldSizeMax);
  }
  return true;
}

bool Parser::groups() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}'))
    if (!group())
      return false;
  return true;
}

bool Parser::group() {
  std::string_view name;
  Group group;
  if (!room(plan_.groups, limits::kGroupsMax, "groups") || !in_.name(name, "group") ||
      !groups_.add(in_, name, static_cast<uint32_t>(plan_.groups.size()), "group") ||
      !groupKinds(name) || !in_.expect('=') || !in_.expect('['))
    return false;
  group.name = name;
  while (!in_.takeIf(']')) {
    uint32_t axis = 0;
    if ((!group.axes.empty() && !in_.expect(',')) || !lookUp(axes_, axis, "mesh axis"))
      return false;
    if (std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end())
      return in_.fail(in_.last(), "plan-name", "mesh axis '{}' appears twice in group '{}'",
                      plan_.mesh[axis].name, name);
    group.axes.push_back(static_cast<uint16_t>(axis));
  }
  plan_.groups.push_back(std::move(group));
  return true;
}

bool Parser::groupKinds(std::string_view name) {
  while (in_.peek() != '=') {
    std::string_view word;
    if (!in_.word(word, "group kind or '='"))
      return false;
    std::optional<GroupKind> kind = parseGroupKind(word);
    if (!kind || *kind == GroupKind::Data)
      return in_.fail(in_.last(), "plan-name", "unknown group kind '{}'", word.substr(0, 64));
    int16_t &group = plan_.kindGroup(*kind);
    if (group >= 0)
      return in_.fail(in_.last(), "plan-name", "groups '{}' and '{}' are both of the kind '{}'",
                      plan_.groups[static_cast<size_t>(group)].name, name, word);
    group = static_cast<int16_t>(plan_.groups.size());
  }
  return true;
}

bool Parser::data() {
  if (groupOfKind(plan_, GroupKind::Data) >= 0)
    return in_.fail(in_.last(), "plan-name", "'data' appears twice");
  return groupOf(plan_.kindGroup(GroupKind::Data));
}

bool Parser::groupOf(int16_t &out) {
  uint32_t index = 0;
  if (!lookUp(groups_, index, "group"))
    return false;
  out = static_cast<int16_t>(index);
  return true;
}

bool Parser::stream() {
  std::string_view name;
  if (!room(plan_.streams, static_cast<int64_t>(kStreamsMax), "streams") ||
      !in_.name(name, "stream") ||
      !streams_.add(in_, name, static_cast<uint32_t>(plan_.streams.size()), "stream"))
    return false;
  Stream stream{std::string(name)};
  bool ok = endsHere() || enumerator(stream.kind, parseStreamKind, "stream kind");
  plan_.streams.push_back(std::move(stream));
  return ok;
}

bool Parser::channel() {
  std::string_view name;
  Channel channel;
  uint32_t group = 0, stream = kComputeStream;
  if (!room(plan_.channels, limits::kChannelsMax, "channels") || !in_.name(name, "channel") ||
      !channels_.add(in_, name, static_cast<uint32_t>(plan_.channels.size()), "channel") ||
      !in_.expect(std::string_view("group")) || !lookUp(groups_, group, "group"))
    return false;
  channel.name = name;
  channel.group = static_cast<int16_t>(group);
  if (in_.takeIf(std::string_view("pair")) && !pair(channel))
    return false;
  if (in_.takeIf(std::string_view("via")) &&
      !enumerator(channel.transport, parseTransport, "transport"))
    return false;
  int64_t multiprocessors = 0;
  if (in_.takeIf(std::string_view("multiprocessors")) &&
      !in_.integer(multiprocessors, "multiprocessors", 0, limits::kMultiprocessorsMax))
    return false;
  channel.multiprocessors = static_cast<int32_t>(multiprocessors);
  if (in_.takeIf(std::string_view("stream")) && !lookUp(streams_, stream, "stream"))
    return false;
  channel.stream = static_cast<StreamId>(stream);
  plan_.channels.push_back(std::move(channel));
  return true;
}

bool Parser::pair(Channel &channel) {
  int64_t last = plan_.groupSize(channel.group) - 1;
  for (int32_t &member : channel.pair) {
    int64_t index = 0;
    if (!in_.integer(index, "index in the group", 0, last))
      return false;
    member = static_cast<int32_t>(index);
  }
  return channel.pair[0] != channel.pair[1] ||
         in_.fail(in_.last(), "plan-limit", "the members of a pair need to differ");
}

bool Parser::part(int64_t &numel, int16_t &group) {
  return in_.integer(numel, "elements of a shard", 0, limits::kElementsMax) &&
         (!in_.takeIf(std::string_view("over")) || groupOf(group));
}

bool Parser::endsHere() { return in_.peekWord().empty() || constructOf(in_.peekWord()) != nullptr; }

bool Parser::unit() {
  std::string_view name;
  if (!room(plan_.units, limits::kUnitsMax, "units") || !in_.name(name, "unit") ||
      !units_.add(in_, name, static_cast<uint32_t>(plan_.units.size()), "unit"))
    return false;
  Unit unit{std::string(name)};
  bool ok = endsHere() || enumerator(unit.kind, parseUnitKind, "unit kind");
  plan_.units.push_back(std::move(unit));
  return ok;
}

bool Parser::paramClass() {
  std::string_view name;
  if (!room(plan_.classes, limits::kClassesMax, "classes") || !in_.name(name, "class") ||
      !classes_.add(in_, name, static_cast<uint32_t>(plan_.classes.size()), "class"))
    return false;
  ParamClass made{std::string(name), !in_.takeIf(std::string_view("frozen")), std::nullopt};
  bool ok = !in_.takeIf(std::string_view("by")) ||
            enumerator(made.optimizer.emplace(), findOptimizer, "optimizer");
  plan_.classes.push_back(std::move(made));
  return ok;
}

bool Parser::block() {
  std::string_view name;
  Block block;
  if (!room(plan_.blocks, limits::kBlocksMax, "blocks") || !in_.name(name, "block") ||
      !blocks_.add(in_, name, static_cast<uint32_t>(plan_.blocks.size()), "block"))
    return false;
  block.name = name;
  if (in_.takeIf(std::string_view("unit"))) {
    uint32_t index = 0;
    if (!lookUp(units_, index, "unit"))
      return false;
    block.unit = static_cast<int32_t>(index);
  }
  bool ok = in_.expect(std::string_view("numel")) &&
            in_.integer(block.numel, "elements of a block", 0, limits::kElementsMax) &&
            in_.expect(std::string_view("shard")) && part(block.shard, block.group);
  bool isOther = ok && in_.takeIf(std::string_view("state"));
  if (isOther)
    ok = part(block.stateShard, block.stateGroup);
  else
    block.stateShard = block.shard, block.stateGroup = block.group;
  if (ok && in_.takeIf(std::string_view("sum")))
    ok = in_.expect(std::string_view("over")) && groupOf(block.sumGroup);
  if (ok && in_.takeIf(std::string_view("as"))) {
    uint32_t index = 0;
    ok = lookUp(classes_, index, "class");
    block.paramClass = static_cast<int16_t>(index);
  }
  plan_.blocks.push_back(std::move(block));
  return ok;
}

bool Parser::param() {
  Param param;
  std::string_view name;
  if (!room(plan_.params, limits::kParamsMax, "parameters") || !in_.name(name, "parameter") ||
      !params_.add(in_, name, static_cast<uint32_t>(plan_.params.size()), "parameter"))
    return false;
  param.name = name;
  if (!in_.expect(':') || !type(param.type) || !paramParts(param) || !paramClauses(param))
    return false;
  plan_.params.push_back(std::move(param));
  return true;
}

bool Parser::paramParts(Param &param) {
  if (in_.takeIf(std::string_view("stacked")) &&
      !(in_.expect(std::string_view("row")) &&
        in_.integer(param.stackedRow, "elements of a row", 1, limits::kElementsMax)))
    return false;
  if (in_.takeIf(std::string_view("of"))) {
    param.whole.dtype = param.type.dtype;
    if (!shape(param.whole, in_.next()) || !in_.expect(std::string_view("split")) || !split(param))
      return false;
  }
  while (in_.takeIf(std::string_view("split")))
    if (!split(param))
      return false;
  return (!in_.takeIf(std::string_view("copies")) || copies(param)) &&
         (!in_.takeIf(std::string_view("turns")) || turns(param));
}

bool Parser::turns(Param &param) {
  if (!in_.expect('['))
    return false;
  do {
    if (!room(param.turns, limits::kTurnsMax, "turns of rows") ||
        !in_.integer(param.turns.emplace_back(), "rows of a turn", -limits::kExtentMax,
                     limits::kExtentMax))
      return false;
  } while (in_.takeIf(','));
  return in_.expect(']');
}

bool Parser::split(Param &param) {
  Split split;
  int64_t dim = 0;
  if (!room(param.splits, param.type.rank, "splits of a parameter") ||
      !in_.integer(dim, "dimension of a parameter", 0, param.type.rank - 1) ||
      !in_.expect(std::string_view("over")) || !groupOf(split.group) ||
      (in_.takeIf(std::string_view("parts")) &&
       !in_.integer(split.parts, "parts of a dimension", 1, limits::kExtentMax)))
    return false;
  split.dim = static_cast<uint8_t>(dim);
  param.splits.push_back(split);
  return true;
}

bool Parser::copies(Param &param) {
  if (!in_.expect('['))
    return false;
  do {
    if (!room(param.copies, limits::kGroupsMax, "groups of copies") ||
        !groupOf(param.copies.emplace_back()))
      return false;
  } while (in_.takeIf(','));
  return in_.expect(']');
}

bool Parser::paramClauses(Param &param) {
  if (in_.takeIf(std::string_view("block"))) {
    uint32_t index = 0;
    if (!lookUp(blocks_, index, "block") || !in_.expect(std::string_view("at")) ||
        !in_.integer(param.offset, "offset of a parameter", 0, limits::kElementsMax))
      return false;
    param.block = static_cast<int32_t>(index);
  }
  if (in_.takeIf(std::string_view("lr")) && !in_.real(param.lrMult, "learning-rate multiplier"))
    return false;
  if (in_.takeIf(std::string_view("wd")) && !in_.real(param.wdMult, "weight-decay multiplier"))
    return false;
  param.isDecoupled = in_.takeIf(std::string_view("decoupled"));
  return paramInit(param);
}

bool Parser::paramInit(Param &param) {
  if (!in_.expect(std::string_view("init")) ||
      !enumerator(param.init, parseInitKind, "initialisation"))
    return false;
  if (param.init == InitKind::Constant)
    return in_.real(param.initStd, "initial value");
  return param.init != InitKind::Normal || in_.real(param.initStd, "standard deviation");
}

bool Parser::loc() {
  Loc loc;
  int64_t index = 0, line = 0, column = 0;
  if (!room(plan_.locs, limits::kLocsMax, "recipe locations"))
    return false;
  auto expected = static_cast<int64_t>(plan_.locs.size());
  if (!in_.integer(index, "index of a recipe location", expected, expected) ||
      !in_.string(loc.file, "recipe file") || !in_.integer(line, "line", 0, INT32_MAX) ||
      !in_.integer(column, "column", 0, INT32_MAX))
    return false;
  loc.line = static_cast<int32_t>(line);
  loc.column = static_cast<int32_t>(column);
  plan_.locs.push_back(std::move(loc));
  return true;
}

bool Parser::pieces(std::string &out, std::string_view what) {
  if (!in_.expect('{'))
    return false;
  std::string piece;
  while (!in_.takeIf('}')) {
    if (!in_.string(piece, what))
      return false;
    out += piece;
    if (static_cast<int64_t>(out.size()) > limits::kSourceBytesMax)
      return in_.fail(in_.last(), "plan-limit", "the {} has more than {} bytes", what,
                      limits::kSourceBytesMax);
  }
  return true;
}

bool Parser::source() {
  Source source{};
  if (!room(plan_.sources, limits::kSourcesMax, "sources") ||
      !enumerator(source.kind, parseSourceKind, "kind of a source") ||
      !in_.string(source.name, "name of a source") || !pieces(source.text, "text of a source"))
    return false;
  plan_.sources.push_back(std::move(source));
  return true;
}

bool Parser::specification() {
  return plan_.specification.empty()
             ? pieces(plan_.specification, "specification")
             : in_.fail(in_.last(), "plan-syntax", "the plan has a second specification");
}

bool Parser::type(Type &out) {
  size_t at = in_.next();
  return enumerator(out.dtype, parseDType, "element type") && shape(out, at);
}

bool Parser::shape(Type &out, size_t at) {
  if (!in_.expect('['))
    return false;
  out.rank = 0;
  int64_t elementsMax = limits::kBytesMax / dtypeBytes(out.dtype);
  int64_t elements = 1;
  do {
    if (out.rank == out.shape.size())
      return in_.fail(in_.next(), "plan-limit", "a type has at most {} dimensions",
                      out.shape.size());
    int64_t &extent = out.shape[out.rank++];
    if (!in_.integer(extent, "extent of a dimension", 1, limits::kExtentMax))
      return false;
    if (elements > elementsMax / extent)
      return in_.fail(at, "plan-limit", "the type has more than {} bytes", limits::kBytesMax);
    elements *= extent;
  } while (in_.takeIf(','));
  return in_.expect(']');
}

} // namespace shardc::plan
