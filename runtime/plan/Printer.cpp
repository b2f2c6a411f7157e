// Prints numbers, names, types and places, single ops, and the labels of ops in messages.
#include "runtime/plan/Text.h"

#include <cmath>
#include <iterator>

#include "runtime/plan/PrinterImpl.h"

namespace shardc::plan {
namespace {

constexpr size_t kBytesOfOp = 256; ///< estimated length of an op's line

} // namespace

void Writer::integer(int64_t value) {
  fmt::format_int digits(value);
  out_.append(digits.data(), digits.size());
}

void Writer::real(double value) {
  if (!std::isfinite(value)) {
    text(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return;
  }
  size_t begin = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  std::string_view written(out_.data() + begin, out_.size() - begin);
  if (written.find_first_of(".e") == std::string_view::npos)
    text(".0");
}

void Writer::quoted(std::string_view s) {
  text("\"");
  for (char c : s) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out_.push_back('\\');
      out_.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(out_), "\\x{:02x}", byte);
    } else {
      out_.push_back(c);
    }
  }
  text("\"");
}

void Writer::name(std::string_view s) {
  if (isPlainName(s))
    text(s);
  else
    quoted(s);
}

void Writer::value(const Segment &segment, ValueId id) {
  text("%");
  nameOf(segment.values, id);
}

void Writer::offset(const Place &place) {
  integer(place.offset);
  if (place.coef == 0)
    return;
  text(place.coef < 0 ? " - " : " + ");
  // Written as unsigned: the smallest integer has no positive counterpart.
  uint64_t magnitude = static_cast<uint64_t>(place.coef);
  fmt::format_int digits(place.coef < 0 ? 0 - magnitude : magnitude);
  out_.append(digits.data(), digits.size());
  text("*");
  nameOf(plan_.groups, place.group);
}

void Writer::place(const Place &place) {
  text(toString(place.arena));
  text(" ");
  offset(place);
  if (place.slots == 1)
    return;
  text(" slots ");
  integer(place.slots);
  text(" stride ");
  integer(place.stride);
  shift(place.shift);
}

void Writer::signedTerm(int64_t value) {
  if (value == 0)
    return;
  text(value < 0 ? " - " : " + ");
  integer(value < 0 ? -value : value);
}

void Writer::shift(int64_t value) {
  if (value == 0)
    return;
  text(" mb");
  signedTerm(value);
}

void Writer::type(const Type &type) {
  text(dtypeName(type.dtype));
  shape(type);
}

void Writer::shape(const Type &type) {
  text("[");
  for (size_t d = 0; d < type.rank && d < type.shape.size(); ++d) {
    if (d > 0)
      text(",");
    integer(type.shape[d]);
  }
  text("]");
}

void Writer::jobValue(const JobValue &value) {
  if (const bool *b = std::get_if<bool>(&value))
    text(*b ? "true" : "false");
  else if (const int64_t *i = std::get_if<int64_t>(&value))
    integer(*i);
  else if (const double *f = std::get_if<double>(&value))
    real(*f);
  else if (const std::string *s = std::get_if<std::string>(&value))
    quoted(*s);
  else {
    text("[");
    std::string_view separator = "";
    for (const std::string &item : std::get<std::vector<std::string>>(value)) {
      text(separator);
      quoted(item);
      separator = ", ";
    }
    text("]");
  }
}

std::string print(const Plan &plan, std::string_view page) {
  Writer writer(plan);
  size_t ops = 0;
  for (const Role &role : plan.roles)
    for (const Segment &segment : role.segments)
      ops += segment.ops.size();
  writer.reserve(kBytesOfOp * ops + page.size());
  writer.head();
  writer.text(page);
  size_t bodyAt = writer.size();
  writer.tables();
  for (const Role &role : plan.roles)
    writer.role(role);
  writer.sources();
  writer.hash(bodyAt);
  return writer.take();
}

std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex) {
  Writer writer(plan);
  writer.op(segment, segment.ops[opIndex]);
  return writer.take();
}

std::string printJobValue(const JobValue &value) {
  static const Plan kEmpty;
  Writer writer(kEmpty);
  writer.jobValue(value);
  return writer.take();
}

std::string printType(const Type &type) {
  static const Plan kEmpty;
  Writer writer(kEmpty);
  writer.type(type);
  return writer.take();
}

std::string printPlace(const Plan &plan, const Place &place) {
  if (!place.placed)
    return "nowhere";
  Writer writer(plan);
  writer.place(place);
  return writer.take();
}

std::string opLabel(const Plan &plan, const Segment &segment, const Op &op) {
  std::string label(opInfo(op).name);
  const std::vector<ValueId> &values = op.results.empty() ? op.operands : op.results;
  if (!values.empty()) // ops without results, such as sends, show their operand
    label += fmt::format(" %{}", segment.values[values[0]].name);
  if (op.loc != kNone)
    label += fmt::format(" ({}:{})", plan.locs[op.loc].file, plan.locs[op.loc].line);
  return printable(label);
}

std::vector<std::string> opLabels(const Plan &plan, const Segment &segment) {
  std::vector<std::string> labels;
  labels.reserve(segment.ops.size());
  for (const Op &op : segment.ops)
    labels.push_back(fmt::format("{}: {}", printable(segment.name), opLabel(plan, segment, op)));
  return labels;
}

} // namespace shardc::plan
