// Prints the tables before the roles: needs, job, mesh, groups, channels, blocks, parameters.
#include <algorithm>
#include <iterator>

#include "runtime/plan/Limits.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/PrinterImpl.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

void Writer::head() {
  text("shardc.plan ");
  integer(kFormatVersion);
  text(" ");
  text(toString(plan_.level));
  text(" ");
  quoted(plan_.name);
  text(" hash ");
  hashAt_ = out_.size();
  fmt::format_to(std::back_inserter(out_), "{:0{}x}\n", 0, kHashDigits);
}

void Writer::hash(size_t bodyAt) {
  fmt::format_to(out_.begin() + static_cast<std::ptrdiff_t>(hashAt_), "{:0{}x}",
                 textHash(std::string_view(out_).substr(bodyAt)), kHashDigits);
}

void Writer::needs() {
  text("needs { backend = ");
  name(plan_.needsBackend);
  text("  gpu = ");
  quoted(plan_.needsGpu);
  text("  device_bytes = ");
  integer(plan_.deviceBytes);
  if (plan_.multiprocessors != 0) {
    text("  multiprocessors = ");
    integer(plan_.multiprocessors);
  }
  text(" }\njob {\n");
  for (const auto &[path, value] : plan_.job.entries()) {
    text("  ");
    name(path);
    text(" = ");
    jobValue(value);
    text("\n");
  }
  text("}\n");
}

void Writer::meshAndGroups() {
  text("mesh {");
  for (const MeshAxis &axis : plan_.mesh) {
    text(" ");
    name(axis.name);
    text(" = ");
    integer(axis.size);
  }
  text(" }\ngroups {");
  for (const Group &group : plan_.groups) {
    text(" ");
    name(group.name);
    for (size_t kind = 0; kind < kGroupKindCount; ++kind)
      if (static_cast<GroupKind>(kind) != GroupKind::Data &&
          plan_.kindGroups[kind] == &group - plan_.groups.data()) {
        text(" ");
        text(groupKindInfo(static_cast<GroupKind>(kind)).word);
      }
    text(" = [");
    for (size_t i = 0; i < group.axes.size(); ++i) {
      if (i > 0)
        text(", ");
      nameOf(plan_.mesh, group.axes[i]);
    }
    text("]");
  }
  text(" }\n");
  if (int16_t group = groupOfKind(plan_, GroupKind::Data); group >= 0) {
    text("data ");
    nameOf(plan_.groups, group);
    text("\n");
  }
}

void Writer::channels() {
  for (size_t stream = 1; stream < plan_.streams.size(); ++stream) {
    text("stream ");
    name(plan_.streams[stream].name);
    if (StreamKind kind = plan_.streams[stream].kind; kind != StreamKind::Other) {
      text(" ");
      text(toString(kind));
    }
    text("\n");
  }
  for (const Channel &channel : plan_.channels) {
    text("channel ");
    name(channel.name);
    text(" group ");
    nameOf(plan_.groups, channel.group);
    if (channel.isPair()) {
      text(" pair ");
      integer(channel.pair[0]);
      text(" ");
      integer(channel.pair[1]);
    }
    if (channel.transport != Transport::Nccl) {
      text(" via ");
      text(toString(channel.transport));
    }
    if (channel.multiprocessors != 0) {
      text(" multiprocessors ");
      integer(channel.multiprocessors);
    }
    if (channel.stream != kComputeStream) {
      text(" stream ");
      nameOf(plan_.streams, channel.stream);
    }
    text("\n");
  }
}

void Writer::part(std::string_view what, int64_t numel, int16_t group) {
  text(what);
  integer(numel);
  if (group < 0)
    return;
  text(" over ");
  nameOf(plan_.groups, group);
}

/// Prints one line per class, unit, block, parameter and source location. Class 0 has no line,
/// since all blocks are in it unless they name another.
void Writer::tables() {
  needs();
  meshAndGroups();
  channels();
  for (size_t i = 1; i < plan_.classes.size(); ++i) {
    text("class ");
    name(plan_.classes[i].name);
    if (!plan_.classes[i].isTrained)
      text(" frozen");
    if (const std::optional<Optimizer> &own = plan_.classes[i].optimizer) {
      text(" by ");
      text(optimizerInfo(*own).word);
    }
    text("\n");
  }
  for (const Unit &unit : plan_.units) {
    text("unit ");
    name(unit.name);
    if (unit.kind != UnitKind::Other) {
      text(" ");
      text(toString(unit.kind));
    }
    text("\n");
  }
  for (const Block &block : plan_.blocks) {
    text("block ");
    name(block.name);
    if (block.unit >= 0) {
      text(" unit ");
      nameOf(plan_.units, block.unit);
    }
    text(" numel ");
    integer(block.numel);
    part(" shard ", block.shard, block.group);
    if (block.stateShard != block.shard || block.stateGroup != block.group)
      part(" state ", block.stateShard, block.stateGroup);
    if (block.sumGroup >= 0) {
      text(" sum over ");
      nameOf(plan_.groups, block.sumGroup);
    }
    if (block.paramClass != 0) {
      text(" as ");
      nameOf(plan_.classes, block.paramClass);
    }
    text("\n");
  }
  for (const Param &each : plan_.params)
    param(each);
  for (size_t i = 0; i < plan_.locs.size(); ++i) {
    text("loc ");
    integer(static_cast<int64_t>(i));
    text(" ");
    quoted(plan_.locs[i].file);
    text(" ");
    integer(plan_.locs[i].line);
    text(" ");
    integer(plan_.locs[i].column);
    text("\n");
  }
}

void Writer::pieces(std::string_view rest, size_t pieceMax) {
  text(" {\n");
  while (!rest.empty()) {
    size_t size = std::min({rest.find('\n'), rest.size() - 1, pieceMax - 1}) + 1;
    text("  ");
    quoted(rest.substr(0, size));
    text("\n");
    rest.remove_prefix(size);
  }
  text("}\n");
}

void Writer::sources() {
  for (const Source &source : plan_.sources) {
    text("source ");
    text(toString(source.kind));
    text(" ");
    quoted(source.name);
    pieces(source.text, limits::kStringBytesMax / 2);
  }
  constexpr size_t kColumns = 96;
  if (!plan_.specification.empty()) {
    text("specification");
    pieces(plan_.specification, kColumns);
  }
}

void Writer::paramParts(const Param &param) {
  if (param.isStacked()) {
    text(" stacked row ");
    integer(param.stackedRow);
  }
  if (!param.splits.empty() && !param.isUncut()) {
    text(" of ");
    shape(param.whole);
  }
  for (const Split &split : param.splits) {
    text(" split ");
    integer(split.dim);
    text(" over ");
    nameOf(plan_.groups, split.group);
    if (split.parts != 1) {
      text(" parts ");
      integer(split.parts);
    }
  }
  for (size_t i = 0; i < param.copies.size(); ++i) {
    text(i == 0 ? " copies [" : ", ");
    nameOf(plan_.groups, param.copies[i]);
  }
  if (!param.copies.empty())
    text("]");
  for (size_t i = 0; i < param.turns.size(); ++i) {
    text(i == 0 ? " turns [" : ", ");
    integer(param.turns[i]);
  }
  if (!param.turns.empty())
    text("]");
}

void Writer::param(const Param &param) {
  text("param ");
  quoted(param.name);
  text(" : ");
  type(param.type);
  paramParts(param);
  if (param.block >= 0) {
    text(" block ");
    nameOf(plan_.blocks, param.block);
    text(" at ");
    integer(param.offset);
  }
  if (param.lrMult != 1) {
    text(" lr ");
    real(param.lrMult);
  }
  if (param.wdMult != 1) {
    text(" wd ");
    real(param.wdMult);
  }
  if (param.isDecoupled)
    text(" decoupled");
  text(" init ");
  text(toString(param.init));
  if (param.init == InitKind::Normal || param.init == InitKind::Constant) {
    text(" ");
    real(param.initStd);
  }
  text("\n");
}

} // namespace shardc::plan
