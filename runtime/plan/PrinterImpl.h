// The plan printer's one class, spread over three files: numbers, names and places (Printer.cpp),
// tables (PrintTables.cpp), roles and ops (PrintRoles.cpp). Nothing else includes this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Appends to one buffer and does not allocate per token.
class Writer {
public:
  /// The plan must outlive the writer. It may be invalid: an index that is out of its table is
  /// printed as `?` with its number.
  explicit Writer(const Plan &plan) : plan_(plan) {}

  /// Writes the first line, with zeros in place of the hash.
  void head();
  /// Writes the hash of everything from `bodyAt` on into the first line. Call it after all else is
  /// written.
  void hash(size_t bodyAt);
  size_t size() const { return out_.size(); }
  /// Each of these appends one part of the text, in the form that the parser reads.
  void tables();
  /// Prints the source texts and the specification.
  void sources();
  void role(const Role &role);
  /// Prints the predicted bytes outside of arenas; negative values are unknown and left out.
  void beside(const Role &role);
  /// The inverse of Parser::op, with the clauses in the same order, so that a plan that is parsed
  /// and printed again has the same text.
  void op(const Segment &segment, const Op &op);
  void jobValue(const JobValue &value);
  void type(const Type &type);
  void shape(const Type &type);
  void place(const Place &place);
  void text(std::string_view s) { out_ += s; }
  void reserve(size_t bytes) { out_.reserve(bytes); }
  /// Moves the text out. The writer cannot be used afterwards.
  std::string take() { return std::move(out_); }

private:
  void integer(int64_t value);
  /// The shortest text that parses to the same number and does not look like an integer.
  void real(double value);
  /// Control characters become `\xNN`; quotes and backslashes get a backslash.
  void quoted(std::string_view s);
  /// `{`, the text in quoted pieces of at most `pieceMax` bytes, one per line, and `}`. A piece
  /// ends with each line of the text.
  void pieces(std::string_view rest, size_t pieceMax);
  void name(std::string_view s);
  /// The name of entry `index` of a table whose entries have names.
  template <typename T> void nameOf(const std::vector<T> &table, int64_t index);
  void value(const Segment &segment, ValueId id);
  /// `rows %n` if not all rows of the value are valid.
  void countedRows(const Segment &segment, const Value &of);
  void offset(const Place &place);
  /// Prints ` + 3` or ` - 3`; nothing for 0.
  void signedTerm(int64_t value);
  void shift(int64_t value);
  /// Prints ` mb 3`, ` mb i + 3` or ` mb 2*i - 1`.
  void microbatch(const MicrobatchNumber &number);
  /// Attributes with their default values are not printed.
  void attrs(const Op &op);
  void attr(const Attr &attr);
  /// Prints blocks grouped by their number of copies. Blocks are implied, and not printed, if they
  /// are the first blocks of the plan and have equal numbers of copies.
  void blocks(const Op &op);
  /// Prints only what readers cannot infer: a role other than the op's usual one, and a group other
  /// than that of the channel.
  void clauses(const Op &op);
  /// Prints `acc(RESULT = value if PREDICATE)`, or `else(...)`.
  void ties(const Segment &segment, const Op &op);
  /// An op is named by its first result, or by `#` and its index if it has none.
  void waits(const Segment &segment, const Op &op);
  void results(const Segment &segment, const Op &op);
  /// The inverse of Parser::cell. Whatever has its default value is not printed.
  void cell(const Cell &cell);
  /// Prints `segment NAME KIND body before NAME { ... }`: the cells that it reads, the ops, and the
  /// cells that it writes.
  void segment(const Role &role, const Segment &segment);
  /// The value's type and purpose are printed only if they differ from the cell's.
  void boundaryIn(const Role &role, const Segment &segment, const Segment::Boundary &in);
  /// Prints `where { axis = FIRST to LAST }`: the coordinates of the role's ranks.
  void where(const Role &role);
  /// Prints the nodes of a program, one per line. `steps`, `every` and `loop` contain nodes, with
  /// more indentation.
  void program(const Role &role, const std::vector<ProgramNode> &nodes, int depth);
  /// Prints `param "name" : type ... block NAME at OFFSET ... init KIND`.
  void param(const Param &param);
  /// Prints how a parameter is divided and copied: `of [whole shape] split DIM over GROUP parts N
  /// copies [groups] turns [numbers]`.
  void paramParts(const Param &param);
  void needs();
  /// Prints `mesh { axis = size ... }`, `groups { name KIND = [axes] ... }`, and the group that
  /// divides the data.
  void meshAndGroups();
  /// Prints streams and channels, without clauses whose values are the defaults. Stream 0, which
  /// computes, always exists and is not printed.
  void channels();
  void part(std::string_view what, int64_t numel, int16_t group);

  const Plan &plan_;
  std::string out_;
  size_t hashAt_ = 0; ///< where the first line has its hash
};

template <typename T> void Writer::nameOf(const std::vector<T> &table, int64_t index) {
  if (index >= 0 && static_cast<size_t>(index) < table.size()) {
    name(table[static_cast<size_t>(index)].name);
  } else { // an invalid plan can be printed, but not parsed
    text("?");
    integer(index);
  }
}

} // namespace shardc::plan
