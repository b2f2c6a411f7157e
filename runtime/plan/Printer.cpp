// Writes plans, single ops, and their labels in messages.
#include "runtime/plan/Text.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/base/Utf8.h"
#include "runtime/plan/Form.h"
#include "runtime/plan/Writer.h"

namespace shardc::plan {
namespace {

constexpr size_t kBytesOfOp = 256; ///< estimated length of an op's line

} // namespace

void Writer::sign(char c) {
  constexpr std::string_view kGluedBefore = ",])(*", kGluedAfter = "[(*%@#";
  if (kGluedBefore.find(c) != std::string_view::npos)
    isGlued_ = true;
  space();
  out_.push_back(c);
  isGlued_ = kGluedAfter.find(c) != std::string_view::npos;
}

void Writer::real(double value, std::string_view) {
  if (!std::isfinite(value))
    return token(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  space();
  size_t begin = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  if (out_.find_first_of(".e", begin) == std::string::npos)
    out_ += ".0";
}

void Writer::quoted(std::string_view text, std::string_view) {
  space();
  out_ += '"';
  while (!text.empty()) {
    const size_t length = controlLength(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    if (character[0] == '"' || character[0] == '\\')
      out_ += '\\';
    out_ += length > 0 && isUtf8(character) ? escapeControls(character) : std::string(character);
    text.remove_prefix(character.size());
  }
  out_ += '"';
}

void Writer::named(std::string_view name, std::string_view) {
  if (isPlainName(name))
    token(name);
  else
    quoted(name);
}

bool Writer::term(int64_t value, std::string_view, int64_t) {
  if (value == 0)
    return false;
  sign(value < 0 ? '-' : '+');
  // Written as unsigned: the smallest integer has no positive counterpart.
  auto magnitude = static_cast<uint64_t>(value);
  integer(value < 0 ? 0 - magnitude : magnitude);
  return true;
}

void Writer::head(const Plan &plan) {
  lines(fmt::format("shardc.plan {} {}", kFormatVersion, toString(plan.level)));
  isGlued_ = false;
  quoted(plan.name);
  token("hash ");
  hashAt_ = out_.size();
  out_ += std::string(kHashDigits, '0') + '\n';
}

void Writer::hash(size_t bodyAt) {
  fmt::format_to(out_.begin() + static_cast<std::ptrdiff_t>(hashAt_), "{:0{}x}",
                 textHash(std::string_view(out_).substr(bodyAt)), kHashDigits);
}

void Writer::job(const Job &job) {
  for (const auto &[path, value] : job.entries()) {
    line(2);
    named(path);
    sign('=');
    jobValue(value);
  }
}

void Writer::jobValue(const JobValue &value) {
  if (const bool *b = std::get_if<bool>(&value)) {
    token(*b ? "true" : "false");
  } else if (const int64_t *i = std::get_if<int64_t>(&value)) {
    integer(*i);
  } else if (const double *f = std::get_if<double>(&value)) {
    real(*f);
  } else if (const std::string *s = std::get_if<std::string>(&value)) {
    quoted(*s);
  } else {
    sign('[');
    separated(std::get<std::vector<std::string>>(value), 0, "",
              [&](const std::string &item) { quoted(item); });
    sign(']');
  }
}

void Writer::groupKinds(const Plan &plan, const Group &group) {
  for (size_t kind = 0; kind < kGroupKindCount; ++kind)
    if (static_cast<GroupKind>(kind) != GroupKind::Data &&
        plan.kindGroups[kind] == &group - plan.groups.data())
      token(groupKindInfo(static_cast<GroupKind>(kind)).word);
}

void Writer::pieces(std::string_view rest, std::string_view, size_t pieceMax) {
  sign('{');
  while (!rest.empty()) {
    size_t size = std::min({rest.find('\n'), rest.size() - 1, pieceMax - 1}) + 1;
    line(2);
    quoted(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  line(0);
  sign('}');
}

void Writer::type(const Type &type) {
  token(dtypeName(type.dtype));
  glue();
  shape(type);
}

void Writer::shape(const Type &type) {
  sign('[');
  for (size_t d = 0; d < type.rank && d < type.shape.size(); ++d) {
    if (d > 0)
      out_ += ',';
    glue();
    integer(type.shape[d]);
  }
  sign(']');
}

void Writer::enumerated(const AttrInfo &info, int64_t value) {
  std::string_view word = enumeratorName(info, value);
  if (!word.empty())
    return token(word);
  token("?");
  glue();
  integer(value);
}

std::string print(const Plan &plan, std::string_view page) {
  Writer writer;
  size_t ops = 0;
  for (const Role &role : plan.roles)
    for (const Segment &segment : role.segments)
      ops += segment.ops.size();
  writer.reserve(kBytesOfOp * ops + page.size());
  writer.head(plan);
  writer.lines(page);
  size_t bodyAt = writer.size();
  Form<Writer>(writer, plan).constructs();
  writer.line(0);
  writer.hash(bodyAt);
  return writer.take();
}

std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex) {
  Writer writer;
  Form<Writer>(writer, plan).op(segment, segment.ops[opIndex]);
  return writer.take();
}

std::string printJobValue(const JobValue &value) {
  Writer writer;
  writer.jobValue(value);
  return writer.take();
}

std::string printType(const Type &type) {
  Writer writer;
  writer.type(type);
  return writer.take();
}

std::string printPlace(const Plan &plan, const Place &place) {
  if (!place.placed)
    return "nowhere";
  Writer writer;
  Form<Writer>(writer, plan).place(place);
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
