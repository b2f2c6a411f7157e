// The text form of plans, once for both directions: `Io` is Reader, or Writer for const plans. The
// comment of each function shows the text, without a first word that is already taken. Nothing but
// Parser.cpp and Printer.cpp includes this.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/FormOfOps.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/NameKind.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

// Words of enumerations that have no others.
inline std::string_view toString(CellKind kind) { return cellKindInfo(kind).word; }
inline std::string_view toString(SegmentKind kind) { return segmentKindInfo(kind).word; }
inline std::string_view toString(Optimizer optimizer) { return optimizerInfo(optimizer).word; }
inline constexpr std::string_view kNodeWords[] = {"start", "run", "steps", "every", "loop"};
inline std::string_view toString(ProgramNode::Kind kind) { return kNodeWords[kind]; }
inline std::optional<ProgramNode::Kind> parseNodeKind(std::string_view word) {
  const auto *at = std::ranges::find(kNodeWords, word);
  bool isKind = at != std::end(kNodeWords);
  return isKind ? std::optional(ProgramNode::Kind(at - kNodeWords)) : std::nullopt;
}

template <typename Io> class Form : public FormOfOps<Io> {
  using Base = FormOfOps<Io>;
  using Base::io_, Base::plan_, Base::segment_, Base::has, Base::group, Base::bracketed,
      Base::offset, Base::stride, Base::shift, Base::countedRows;

  template <typename T> using MaybeConst = typename Base::template MaybeConst<T>;
  template <typename T> using Ref = MaybeConst<T> &;

public:
  Form(Io &io, Ref<Plan> plan) : Base(io, plan) {}

  /// All constructs below the first line.
  void constructs() {
    if constexpr (Io::kReads)
      while (!io_.atEnd())
        oneOf(kConstructs, "");
    else
      for (const Construct &each : kConstructs)
        (this->*each.fields)();
  }

private:
  // ---- helpers ----
  struct Construct {
    std::string_view word;
    void (Form::*fields)();
  };
  /// Reads the construct whose first word is next; otherwise records an error. `end` may also be
  /// next, for the message.
  void oneOf(std::span<const Construct> all, std::string_view end) {
    auto found = std::ranges::find(all, io_.peekWord(), &Construct::word);
    if (found != all.end()) {
      io_.takeIf(found->word);
      return (this->*found->fields)();
    }
    std::vector<std::string_view> words;
    for (const Construct &each : all)
      words.push_back(each.word);
    if (!end.empty())
      words.push_back(end);
    io_.fail(io_.next(), "plan-syntax", "expected {} or {}, found {}",
             fmt::join(words.begin(), words.end() - 1, ", "), words.back(), io_.found());
  }
  void begin(std::string_view word, int indent = 0) {
    if constexpr (!Io::kReads) {
      io_.line(indent);
      io_.token(word);
    }
  }
  /// Lines that begin with the word, from entry `first` of the table on; one of them when reading.
  void lines(std::string_view word, auto &table, int64_t max, std::string_view plural, auto fields,
             size_t first = 0, int indent = 0) {
    if constexpr (Io::kReads)
      io_.append(table, max, plural, [&](auto &it) { (this->*fields)(it); });
    else
      for (size_t i = first; i < table.size(); ++i) {
        begin(word, indent);
        (this->*fields)(table[i]);
      }
  }
  /// The same for entries with names.
  void named(std::string_view word, auto &table, NameKind names, auto fields, size_t first = 0) {
    lines(word, table, info(names).max, info(names).plural, fields, first);
  }
  void declare(NameKind names, auto &table, auto &it) { io_.declare(names, table, it.name); }

  // ---- tables ----
  /// `needs { backend = cuda gpu = "H100" ... }`: what a machine must have to run the plan.
  void needs() {
    begin("needs");
    io_.sign('{');
    auto key = [&](std::string_view word, bool isThere = true) {
      bool has = io_.clause(word, isThere);
      if (has)
        io_.sign('=');
      return has;
    };
    io_.inAnyOrder([&] {
      if (key("backend"))
        io_.named(plan_.needsBackend, "backend");
      io_.gap();
      if (key("gpu"))
        io_.quoted(plan_.needsGpu, "GPU name");
      io_.gap();
      if (key("device_bytes"))
        io_.integer(plan_.deviceBytes, "device_bytes", 0, limits::kBytesMax);
      if (plan_.multiprocessors != 0)
        io_.gap();
      if (key("multiprocessors", plan_.multiprocessors != 0))
        io_.integer(plan_.multiprocessors, "multiprocessors", 0, limits::kMultiprocessorsMax);
    });
    if (std::string_view word = io_.peekWord(); !word.empty())
      io_.fail(io_.next(), "plan-name",
               "unknown key '{}' in 'needs'; it has backend, gpu, device_bytes and multiprocessors",
               word.substr(0, 64));
    io_.sign('}');
  }

  /// `job { path = value ... }`
  void job() {
    begin("job");
    io_.sign('{');
    io_.job(plan_.job);
    io_.line(0);
    io_.sign('}');
  }

  /// `mesh { data = 4 tensor = 2 }`. The product of the sizes is at most limits::kWorldSizeMax.
  void mesh() {
    begin("mesh");
    io_.sign('{');
    io_.each(plan_.mesh, '}', info(NameKind::Axis).max, info(NameKind::Axis).plural, [&](auto &it) {
      declare(NameKind::Axis, plan_.mesh, it);
      io_.sign('=');
      io_.integer(it.size, "size of a mesh axis", 1, limits::kWorldSizeMax);
      // The product is checked after each axis, so that 8 sizes below 2^20 cannot overflow it.
      if (int64_t ranks = Io::kReads ? plan_.worldSize() * it.size : 1;
          ranks > limits::kWorldSizeMax)
        io_.fail(io_.last(), "plan-limit", "the mesh has {} ranks; the limit is {}", ranks,
                 limits::kWorldSizeMax);
    });
    io_.sign('}');
  }

  /// `groups { NAME KIND ... = [axis, ...] ... }`
  void groups() {
    begin("groups");
    io_.sign('{');
    io_.each(
        plan_.groups, '}', info(NameKind::Group).max, info(NameKind::Group).plural, [&](auto &it) {
          declare(NameKind::Group, plan_.groups, it);
          io_.groupKinds(plan_, it);
          io_.sign('=');
          io_.sign('[');
          if (!io_.isNext(']', it.axes.empty()))
            io_.separated(it.axes, INT64_MAX, "axes", [&](auto &axis) {
              io_.ref(NameKind::Axis, plan_.mesh, axis);
              if (Io::kReads && !io_.failed() && std::ranges::find(it.axes, axis) != it.axes.end())
                io_.fail(io_.last(), "plan-name", "mesh axis '{}' appears twice in group '{}'",
                         plan_.mesh[axis].name, it.name);
            });
          io_.sign(']');
        });
    io_.sign('}');
  }

  /// `data NAME`: the group of kind Data, named after all groups.
  void data() {
    Ref<int16_t> data = plan_.kindGroups[static_cast<size_t>(GroupKind::Data)];
    if (!Io::kReads && data < 0)
      return;
    if (data >= 0)
      io_.fail(io_.last(), "plan-name", "'data' appears twice");
    begin("data");
    group(data);
  }

  /// `stream NAME KIND`; without a kind, it is Other. Stream 0 always exists and is not declared.
  void streams() { named("stream", plan_.streams, NameKind::Stream, &Form::stream, 1); }
  void stream(Ref<Stream> it) {
    declare(NameKind::Stream, plan_.streams, it);
    if (has(it.kind != StreamKind::Other, isKindNext()))
      io_.oneOf(it.kind, parseStreamKind, "stream kind");
  }
  /// `unit NAME KIND`; without a kind, it is Other.
  void units() { named("unit", plan_.units, NameKind::Unit, &Form::unit); }
  void unit(Ref<Unit> it) {
    declare(NameKind::Unit, plan_.units, it);
    if (has(it.kind != UnitKind::Other, isKindNext()))
      io_.oneOf(it.kind, parseUnitKind, "unit kind");
  }
  bool isKindNext() {
    std::string_view word = io_.peekWord();
    return !word.empty() &&
           std::ranges::find(kConstructs, word, &Construct::word) == std::end(kConstructs);
  }

  /// `channel gather group all via ce multiprocessors 0 stream gather`, or the same with `pair 0 1`
  /// after the group: the two members, as different indices in the group.
  void channels() { named("channel", plan_.channels, NameKind::Channel, &Form::channel); }
  void channel(Ref<Channel> it) {
    declare(NameKind::Channel, plan_.channels, it);
    io_.token("group");
    group(it.group);
    if (io_.clause("pair", it.isPair())) {
      int64_t size = Io::kReads ? plan_.groupSize(it.group) : 0;
      io_.integer(it.pair[0], "index in the group", 0, size - 1);
      io_.integer(it.pair[1], "index in the group", 0, size - 1);
      if (it.pair[0] == it.pair[1])
        io_.fail(io_.last(), "plan-limit", "the members of a pair need to differ");
    }
    if (io_.clause("via", it.transport != Transport::Nccl))
      io_.oneOf(it.transport, parseTransport, "transport");
    if (io_.clause("multiprocessors", it.multiprocessors != 0))
      io_.integer(it.multiprocessors, "multiprocessors", 0, limits::kMultiprocessorsMax);
    if (io_.clause("stream", it.stream != kComputeStream))
      io_.ref(NameKind::Stream, plan_.streams, it.stream);
  }

  /// `class base frozen` or `class table by adam`: properties that blocks share. All blocks are in
  /// class 0, which is not declared, unless they name another.
  void classes() { named("class", plan_.classes, NameKind::Class, &Form::paramClass, 1); }
  void paramClass(Ref<ParamClass> it) {
    declare(NameKind::Class, plan_.classes, it);
    io_.set(it.isTrained, !io_.clause("frozen", !it.isTrained));
    if (!io_.clause("by", it.optimizer.has_value()))
      return;
    Optimizer own = it.optimizer.value_or(Optimizer{});
    io_.oneOf(own, findOptimizer, "optimizer");
    io_.set(it.optimizer, own);
  }

  /// `16 over data`: the number of elements of a block's part, and the group whose ranks divide the
  /// block. Without `over`, the group keeps its value.
  void part(Ref<int64_t> numel, Ref<int16_t> over) {
    io_.integer(numel, "elements of a shard", 0, limits::kElementsMax);
    if (io_.clause("over", over >= 0))
      group(over);
  }
  /// `block NAME unit U numel N shard PART state PART sum over G as CLASS`. `unit` is optional, as
  /// is all after the shard. Without `state`, the optimizer state is divided like the weights.
  void blocks() { named("block", plan_.blocks, NameKind::Block, &Form::block); }
  void block(Ref<Block> it) {
    declare(NameKind::Block, plan_.blocks, it);
    if (io_.clause("unit", it.unit >= 0))
      io_.ref(NameKind::Unit, plan_.units, it.unit);
    io_.token("numel");
    io_.integer(it.numel, "elements of a block", 0, limits::kElementsMax);
    io_.token("shard");
    part(it.shard, it.group);
    if (io_.clause("state", it.stateShard != it.shard || it.stateGroup != it.group)) {
      part(it.stateShard, it.stateGroup);
    } else {
      io_.set(it.stateShard, it.shard);
      io_.set(it.stateGroup, it.group);
    }
    if (io_.clause("sum", it.sumGroup >= 0)) {
      io_.token("over");
      group(it.sumGroup);
    }
    if (io_.clause("as", it.paramClass != 0))
      io_.ref(NameKind::Class, plan_.classes, it.paramClass);
  }

  /// `param "name" : TYPE`, how it is divided, then `block NAME at OFFSET lr X wd X decoupled init
  /// normal 0.02`. Only `init` is required.
  void params() { named("param", plan_.params, NameKind::Param, &Form::param); }
  void param(Ref<Param> it) {
    io_.declareQuoted(NameKind::Param, plan_.params, it.name);
    io_.sign(':');
    io_.type(it.type);
    paramParts(it);
    if (io_.clause("block", it.block >= 0)) {
      io_.ref(NameKind::Block, plan_.blocks, it.block);
      io_.token("at");
      io_.integer(it.offset, "offset of a parameter", 0, limits::kElementsMax);
    }
    if (io_.clause("lr", it.lrMult != 1))
      io_.real(it.lrMult, "learning-rate multiplier");
    if (io_.clause("wd", it.wdMult != 1))
      io_.real(it.wdMult, "weight-decay multiplier");
    io_.flag(it.isDecoupled, "decoupled");
    io_.token("init");
    io_.oneOf(it.init, parseInitKind, "initialisation");
    if (it.init != InitKind::Zeros && it.init != InitKind::Ones)
      io_.real(it.initStd, it.init == InitKind::Normal ? "standard deviation" : "initial value");
  }
  /// `stacked row 16 of [8,64,16] split 0 over ep split 1 over etp parts 2 copies [cp] turns [64,
  /// 16, 16]`: this rank's part of a parameter, and the rows of interleaved matrices. Without `of`,
  /// the splits are not yet applied.
  void paramParts(Ref<Param> it) {
    if (io_.clause("stacked", it.isStacked())) {
      io_.token("row");
      io_.integer(it.stackedRow, "elements of a row", 1, limits::kElementsMax);
    }
    if (io_.clause("of", !it.splits.empty() && !it.isUncut())) {
      io_.set(it.whole.dtype, it.type.dtype);
      io_.shape(it.whole);
      if (Io::kReads && io_.peekWord() != "split")
        io_.token("split");
    }
    io_.repeated(it.splits, "split", it.type.rank, "splits of a parameter", [&](auto &split) {
      io_.integer(split.dim, "dimension of a parameter", 0, it.type.rank - 1);
      io_.token("over");
      this->group(split.group);
      if (io_.clause("parts", split.parts != 1))
        io_.integer(split.parts, "parts of a dimension", 1, limits::kExtentMax);
    });
    if (io_.clause("copies", !it.copies.empty()))
      bracketed(it.copies, limits::kGroupsMax, "groups of copies",
                [&](auto &copies) { this->group(copies); });
    if (io_.clause("turns", !it.turns.empty()))
      bracketed(it.turns, limits::kTurnsMax, "turns of rows", [&](auto &turn) {
        io_.integer(turn, "rows of a turn", -limits::kExtentMax, limits::kExtentMax);
      });
  }

  /// `loc 3 "file" 12 5`. Indices count from 0 without gaps.
  void locs() { lines("loc", plan_.locs, limits::kLocsMax, "recipe locations", &Form::loc); }
  void loc(Ref<Loc> it) {
    int64_t index = Io::kReads ? std::ssize(plan_.locs) : &it - plan_.locs.data();
    io_.integer(index, "index of a recipe location", index, index);
    io_.quoted(it.file, "recipe file");
    io_.integer(it.line, "line", 0, INT32_MAX);
    io_.integer(it.column, "column", 0, INT32_MAX);
  }

  /// `source recipe "llama.recipe" { "a line\x0a" "another\x0a" }`: a source text in pieces.
  void sources() { lines("source", plan_.sources, limits::kSourcesMax, "sources", &Form::source); }
  void source(Ref<Source> it) {
    io_.oneOf(it.kind, parseSourceKind, "kind of a source");
    io_.quoted(it.name, "name of a source");
    io_.pieces(it.text, "text of a source", limits::kStringBytesMax / 2);
  }

  /// `specification { "eJzt..." "..." }`, once.
  void specification() {
    constexpr size_t kColumns = 96;
    if (!Io::kReads && plan_.specification.empty())
      return;
    if (!plan_.specification.empty())
      io_.fail(io_.last(), "plan-syntax", "the plan has a second specification");
    begin("specification");
    io_.pieces(plan_.specification, "specification", kColumns);
  }

  // ---- roles ----
  /// `role NAME "why" where { ... } { ... }`. Names of cells and segments belong to their role.
  void roles() { named("role", plan_.roles, NameKind::Role, &Form::role); }
  void role(Ref<Role> it) {
    static constexpr Construct kParts[] = {{"arenas", &Form::arenas},
                                           {"beside", &Form::beside},
                                           {"cell", &Form::cells},
                                           {"segment", &Form::segments},
                                           {"program", &Form::program}};
    role_ = &it;
    declare(NameKind::Role, plan_.roles, it);
    io_.quoted(it.why, "what distinguishes the role");
    if (io_.clause("where", !it.where.empty()))
      where();
    io_.sign('{');
    if constexpr (Io::kReads) {
      io_.beginRole();
      while (!io_.failed() && io_.peek() != '}')
        oneOf(kParts, "'}'");
    } else {
      for (const Construct &each : kParts)
        (this->*each.fields)();
    }
    io_.line(0);
    io_.sign('}');
  }

  /// `{ pp = 0 to 2 }`, both ends included.
  void where() {
    io_.sign('{');
    io_.each(role_->where, '}', limits::kMeshAxesMax, "axes of a role", [&](auto &it) {
      io_.ref(NameKind::Axis, plan_.mesh, it.axis);
      io_.sign('=');
      int64_t most = Io::kReads && !io_.failed() ? plan_.mesh[it.axis].size - 1 : 0;
      int64_t last = it.end - 1;
      io_.integer(it.begin, "first coordinate", 0, most);
      io_.token("to");
      io_.integer(last, "last coordinate", it.begin, most);
      io_.set(it.end, last + 1);
    });
    io_.sign('}');
  }

  /// `{ row = bytes ... }`. Rows below `least` are not written; rows that the text lacks keep their
  /// value.
  template <typename E>
  void byteTable(std::string_view word, auto &table, int64_t least, int gap,
                 std::optional<E> (*parse)(std::string_view), std::string_view what,
                 std::string_view bytes) {
    begin(word, 2);
    io_.sign('{');
    size_t next = 0;
    while (has(next < table.size(), !io_.failed() && io_.peek() != '}')) {
      E which = static_cast<E>(next++);
      if (!Io::kReads && table[next - 1] < least)
        continue;
      if (next > 1 && gap > 1)
        io_.gap();
      io_.oneOf(which, parse, what);
      io_.sign('=');
      io_.integer(table[static_cast<size_t>(which)], bytes, 0, limits::kBytesMax);
    }
    io_.sign('}');
  }
  /// `arenas { state = 4096 ... }`: not written if all are empty.
  void arenas() {
    if (Io::kReads || role_->arenaBytes != decltype(role_->arenaBytes){})
      byteTable("arenas", role_->arenaBytes, INT64_MIN, 2, parseArena, "arena",
                "bytes of an arena");
  }
  /// `beside { communicators = 4096 ... }`. Negative values are unknown and left out.
  void beside() {
    if (Io::kReads || std::ranges::any_of(role_->besideBytes, [](int64_t n) { return n >= 0; }))
      byteTable("beside", role_->besideBytes, 0, 1, parseBeside, "memory beside arenas",
                "bytes beside the arenas");
  }

  /// `cell @x weight of b slots 2 : f32[8] in work for params at 256 stride 64`. Kind, slots and
  /// place are optional. A role has at most one cell of each kind, except buffers, for a block or
  /// parameter.
  void cells() { lines("cell", role_->cells, limits::kCellsMax, "cells", &Form::cell, 0, 2); }
  void cell(Ref<Cell> it) {
    io_.sign('@');
    declare(NameKind::Cell, role_->cells, it);
    if (has(it.kind != CellKind::Buffer || it.of >= 0,
            io_.peek() != ':' && io_.peekWord() != "slots"))
      cellKind(it);
    if (io_.clause("slots", it.isRing()))
      io_.integer(it.slots, "slots of a ring", 2, limits::kSlotsMax);
    io_.sign(':');
    io_.type(it.type);
    io_.token("in");
    io_.oneOf(it.arena, parseArena, "arena");
    io_.token("for");
    io_.oneOf(it.purpose, parsePurpose, "purpose");
    if (!io_.clause("at", it.place.placed))
      return;
    if (!io_.oneOfIf(it.place.arena != it.arena, it.place.arena, parseArena))
      io_.set(it.place.arena, it.arena);
    offset(it.place);
    if (!it.isRing())
      return;
    io_.set(it.place.slots, it.slots);
    stride(it.place);
  }
  /// `weight of layers.0`
  void cellKind(Ref<Cell> it) {
    size_t at = io_.last();
    io_.oneOf(it.kind, parseCellKind, "cell kind");
    const CellKindInfo &info = cellKindInfo(it.kind);
    bool isOf = info.of != CellKindInfo::Nothing, isOfParam = info.of == CellKindInfo::Param;
    if (isOf && io_.peekWord() != "of")
      io_.fail(io_.next(), "plan-syntax", "a cell of kind '{}' is of a {}; expected 'of', found {}",
               info.word, isOfParam ? "parameter" : "block", io_.found());
    if (io_.clause("of", isOf || it.of >= 0)) {
      if (!isOf)
        io_.fail(io_.last(), "plan-syntax", "a cell of kind '{}' is of no block or parameter",
                 info.word);
      if (isOfParam)
        io_.ref(NameKind::Param, plan_.params, it.of);
      else
        io_.ref(NameKind::Block, plan_.blocks, it.of);
    }
    io_.checkOnly(plan_, *role_, it, at);
  }

  /// `program { NODE ... }`
  void program() {
    begin("program", 2);
    nodes(role_->program, 1);
  }
  /// Nodes in braces. `depth` counts the braces around them.
  void nodes(Ref<std::vector<ProgramNode>> all, int depth) {
    io_.sign('{');
    if (depth > limits::kNestingMax)
      io_.fail(io_.last(), "plan-limit", "program nodes are nested more than {} deep",
               limits::kNestingMax);
    io_.each(all, '}', INT64_MAX, "nodes", [&](auto &it) {
      io_.line(2 * depth + 2);
      node(it, depth);
    });
    io_.line(2 * depth);
    io_.sign('}');
  }
  /// `start SEGMENT`, `run SEGMENT`, `steps N { ... }`, `every N { ... }` or `loop N { ... }`.
  void node(Ref<ProgramNode> it, int depth) {
    io_.countNode();
    if (!parseNodeKind(io_.peekWord()))
      io_.fail(io_.next(), "plan-syntax", "expected {} or '}}', found {}",
               fmt::join(kNodeWords, ", "), io_.found());
    io_.oneOf(it.kind, parseNodeKind, "node");
    if (it.kind == ProgramNode::Start || it.kind == ProgramNode::Run)
      return run(it);
    bool isLoop = it.kind == ProgramNode::Loop;
    io_.integer(it.count, isLoop ? "number of iterations" : "number of steps", 1,
                limits::kCountMax);
    nodes(it.children, depth + 1);
  }
  /// `micro 4`, or `forward mb 2*i + 1`, after `run` or `start`.
  void run(Ref<ProgramNode> it) {
    io_.ref(NameKind::Segment, role_->segments, it.segment);
    bool isCounted = has(it.count != 1, io_.peek() >= '0' && io_.peek() <= '9');
    if (isCounted)
      io_.integer(it.count, "number of runs", 1, limits::kCountMax);
    if ((isCounted && Io::kReads) || !io_.clause("mb", it.microbatch.has_value()))
      return;
    MicrobatchNumber number = it.microbatch.value_or(MicrobatchNumber{});
    microbatch(number);
    io_.set(it.microbatch, number);
  }
  /// `3`, `i`, `i + 3`, `2*i - 1` or `-1*i + 5`.
  void microbatch(MicrobatchNumber &it) {
    if (io_.clause("i", it.coef == 1)) {
      it.coef = 1;
    } else {
      int64_t number = it.coef != 0 ? it.coef : it.base;
      bool isDescending = has(it.coef < 0, io_.peek() == '-');
      io_.integer(number, "microbatch", isDescending ? -limits::kMicrobatchesMax : 0,
                  limits::kMicrobatchesMax);
      if (isDescending)
        io_.sign('*');
      bool isFactor = isDescending || io_.clause('*', it.coef != 0);
      (isFactor ? it.coef : it.base) = number;
      if (!isFactor)
        return;
      io_.token("i");
    }
    io_.term(it.base, "microbatch", limits::kMicrobatchesMax);
  }

  // ---- segments and ops ----
  /// `segment NAME KIND body mb - 1 before OTHER { ... }`. Kind, `body`, `mb` and `before` are
  /// optional. Ops are after `in` and before `out` lines.
  void segments() {
    lines("segment", role_->segments, limits::kSegmentsMax, "segments", &Form::segment, 0, 2);
  }
  void segment(Ref<Segment> it) {
    segment_ = &it;
    declare(NameKind::Segment, role_->segments, it);
    std::string_view word = io_.peekWord();
    if (has(it.kind != SegmentKind::Other,
            !word.empty() && word != "body" && word != "mb" && word != "before"))
      io_.oneOf(it.kind, parseSegmentKind, "segment kind");
    io_.flag(it.body, "body");
    shift(it.shift);
    if (io_.clause("before", it.before != kNone))
      io_.ref(NameKind::Segment, role_->segments, it.before);
    io_.sign('{');
    if constexpr (Io::kReads) {
      io_.beginSegment();
      while (!io_.failed() && io_.peek() != '}')
        statement(it);
    } else {
      ins();
      for (const Op &each : it.ops) {
        io_.line(4);
        this->op(it, each);
      }
      outs();
    }
    io_.line(2);
    io_.sign('}');
  }
  void statement(Segment &segment) {
    bool isOp = io_.peek() == '%';
    if (!isOp && io_.takeIf("in")) {
      if (!segment.ops.empty() || !segment.outs.empty())
        io_.fail(io_.last(), "plan-syntax", "'in' lines need to come before the segment's ops");
      return ins();
    }
    if (!isOp && io_.takeIf("out"))
      return outs();
    if (!segment.outs.empty())
      io_.fail(io_.next(), "plan-syntax",
               "'out' lines need to come after the segment's ops, found {}", io_.found());
    io_.append(segment.ops, limits::kOpsMax, "ops in a segment",
               [&](Op &it) { this->op(segment, it); });
  }

  /// `in %x = @cell mb - 1 rows %n : type purpose at place`. Type and purpose are the cell's if
  /// left out.
  void ins() { lines("in", segment_->ins, INT64_MAX, "'in' lines", &Form::in, 0, 4); }
  void in(Ref<Segment::Boundary> it) {
    auto name = io_.nameOf(it.value);
    io_.resultName(*segment_, name);
    io_.sign('=');
    io_.sign('@');
    io_.ref(NameKind::Cell, role_->cells, it.cell);
    shift(it.shift);
    if (io_.failed() || (!Io::kReads && it.value >= segment_->values.size()) ||
        it.cell >= role_->cells.size())
      return;
    const Cell &cell = role_->cells[it.cell];
    auto &&value = io_.valueOf(*segment_, it.value);
    io_.set(value.type, cell.type);
    io_.set(value.purpose, cell.purpose);
    countedRows(value);
    if (io_.clause(':', value.type != cell.type || value.purpose != cell.purpose)) {
      io_.type(value.type);
      io_.oneOf(value.purpose, parsePurpose, "purpose");
    }
    if (io_.clause("at", value.place.placed))
      this->place(value.place);
    io_.define(*segment_, name, value, it.value);
  }
  /// `out @cell = %x mb + 1 droppable`
  void outs() { lines("out", segment_->outs, limits::kCellsMax, "'out' lines", &Form::out, 0, 4); }
  void out(Ref<Segment::Boundary> it) {
    io_.sign('@');
    io_.ref(NameKind::Cell, role_->cells, it.cell);
    io_.sign('=');
    io_.value(*segment_, it.value);
    shift(it.shift);
    io_.flag(it.mayDrop, "droppable");
  }

  static constexpr Construct kConstructs[] = {{"needs", &Form::needs},
                                              {"job", &Form::job},
                                              {"mesh", &Form::mesh},
                                              {"groups", &Form::groups},
                                              {"data", &Form::data},
                                              {"stream", &Form::streams},
                                              {"channel", &Form::channels},
                                              {"class", &Form::classes},
                                              {"unit", &Form::units},
                                              {"block", &Form::blocks},
                                              {"param", &Form::params},
                                              {"loc", &Form::locs},
                                              {"role", &Form::roles},
                                              {"source", &Form::sources},
                                              {"specification", &Form::specification}};

  MaybeConst<Role> *role_ = nullptr; ///< the current role
};

} // namespace shardc::plan
