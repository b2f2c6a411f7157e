#include "runtime/generate/Generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "kernels/host/Convert.h"
#include "kernels/host/Registry.h"
#include "runtime/base/Nf4.h"
#include "runtime/base/Philox.h"
#include "runtime/exec/CallShape.h"
#include "runtime/plan/OpInfo.h"

namespace shardc::generate {

using kernels::Call;
using kernels::Tensor;
using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

/// The bytes of a value, initially zero.
struct Generator::Buffer {
  Type type;
  std::unique_ptr<std::byte[]> bytes;

  explicit Buffer(const Type &type)
      : type(type),
        bytes(new std::byte[static_cast<size_t>(std::max<int64_t>(type.bytes(), 1))]()) {}
  Tensor tensor() const {
    Tensor tensor = exec::tensorOf(type);
    tensor.data = bytes.get();
    return tensor;
  }
};

/// The forward body of a plan, with the data that its scores need.
struct Generator::Body {
  const plan::Segment &segment;
  const plan::Role &role;
  size_t loss = 0;            ///< the op that computes the loss from the scores
  std::vector<bool> isNeeded; ///< by op
  std::vector<size_t> last;   ///< by value: the last op that needs it

  static Result<Body> of(const plan::Plan &plan) {
    const plan::Role &role = plan.roles.front();
    Body body{role.segments.front(), role, 0, {}, {}};
    const std::vector<Op> &ops = body.segment.ops;
    while (body.loss < ops.size() && ops[body.loss].kind != OpKind::CrossEntropy)
      ++body.loss;
    if (body.loss == ops.size() || plan.worldSize() != 1)
      return makeStatus(StatusCode::InvalidInput,
                        "the plan has no scores of one rank from which a token could be chosen");
    body.isNeeded.resize(ops.size());
    body.last.resize(body.segment.values.size(), 0);
    std::vector<bool> isWanted(body.segment.values.size());
    isWanted[ops[body.loss].operands[0]] = true;
    body.last[ops[body.loss].operands[0]] = body.loss;
    for (size_t i = body.loss; i-- > 0;) {
      body.isNeeded[i] =
          std::ranges::any_of(ops[i].results, [&](ValueId v) { return isWanted[v]; });
      if (!body.isNeeded[i])
        continue;
      for (ValueId operand : ops[i].operands) {
        isWanted[operand] = true;
        body.last[operand] = std::max(body.last[operand], i);
      }
    }
    return body;
  }

  bool isUsed(ValueId value) const { return last[value] > 0; }
  const Type &typeOf(ValueId value) const { return segment.values[value].type; }
};

Generator::Generator() = default;
Generator::~Generator() = default;

Status Generator::load(const plan::Plan &plan, const ReadTensor &read) {
  ASSIGN_OR_RETURN(Body body, Body::of(plan));
  for (const plan::Segment::Boundary &in : body.segment.ins) {
    const plan::Cell &cell = body.role.cells[in.cell];
    if (!body.isUsed(in.value) || cell.kind == plan::CellKind::EvalFeed)
      continue;
    auto buffer = std::make_shared<Buffer>(cell.type);
    weights_[cell.name] = buffer;
    if (cell.kind == plan::CellKind::Param) {
      const plan::Param &param = plan.params[static_cast<size_t>(cell.of)];
      const Type type = param.tensorType();
      std::vector<float> numbers; // of which blocks of 4 bits are made
      if (cell.type.dtype == DType::NF4x64)
        numbers.resize(static_cast<size_t>(type.numel() * param.tensorCount()));
      std::byte *to =
          numbers.empty() ? buffer->bytes.get() : reinterpret_cast<std::byte *>(numbers.data());
      for (int64_t i = 0; i < param.tensorCount(); ++i)
        RETURN_IF_ERROR(read(param.tensorName(i), type, to + i * type.bytes()));
      auto *blocks = reinterpret_cast<Nf4Block *>(buffer->bytes.get());
      for (size_t i = 0; i < numbers.size(); i += Nf4Block::kNumbers)
        *blocks++ = toNf4(&numbers[i]);
    } else if (cell.kind == plan::CellKind::ExpertBias) { // a row for each layer with experts
      int64_t row = 0;
      constexpr int64_t kBytes = sizeof(float);
      constexpr std::string_view kRouter = "router.weight";
      for (const plan::Param &param : plan.params)
        if (param.name.ends_with(kRouter) && row < cell.type.shape[0]) {
          std::string stem = param.name.substr(0, param.name.size() - kRouter.size());
          RETURN_IF_ERROR(read(stem + "router.expert_bias",
                               Type::of(DType::F32, {param.type.shape[0]}),
                               buffer->bytes.get() + row++ * cell.type.shape[1] * kBytes));
        }
    }
  }
  return Status::ok();
}

Result<std::vector<float>> Generator::scores(const plan::Plan &plan,
                                             std::span<const int32_t> tokens) {
  ASSIGN_OR_RETURN(Body body, Body::of(plan));
  ASSIGN_OR_RETURN(Values values, follow(body, tokens));
  return scoresOf(body.segment.ops[body.loss], values, std::ssize(tokens) - 1);
}

Result<std::vector<double>> Generator::logProbabilities(const plan::Plan &plan,
                                                        std::span<const int32_t> tokens) {
  beginText();
  ASSIGN_OR_RETURN(Body body, Body::of(plan));
  ASSIGN_OR_RETURN(Values values, follow(body, tokens.first(tokens.size() - 1)));
  std::vector<double> found;
  for (size_t i = 1; i < tokens.size(); ++i) {
    ASSIGN_OR_RETURN(std::vector<float> scores,
                     scoresOf(body.segment.ops[body.loss], values, static_cast<int64_t>(i) - 1));
    const double largest = static_cast<double>(*std::ranges::max_element(scores));
    double sum = 0;
    for (float score : scores)
      sum += std::exp(static_cast<double>(score) - largest);
    auto token = static_cast<size_t>(tokens[i]);
    if (token >= scores.size())
      return makeStatus(StatusCode::InvalidInput, "token {} is not in the vocabulary of {}",
                        tokens[i], scores.size());
    found.push_back(static_cast<double>(scores[token]) - largest - std::log(sum));
  }
  return found;
}

void Generator::beginText() {
  kept_.clear();
  position_ = 0;
}

Result<Generator::Values> Generator::follow(const Body &body, std::span<const int32_t> tokens) {
  Values values(body.segment.values.size());
  for (const plan::Segment::Boundary &in : body.segment.ins)
    if (auto found = weights_.find(body.role.cells[in.cell].name); found != weights_.end())
      values[in.value] = found->second;
  size_t attention = 0;
  for (size_t i = 0; i < body.loss; ++i) {
    const Op &op = body.segment.ops[i];
    if (!body.isNeeded[i])
      continue;
    if (op.kind == OpKind::BatchLoad) {
      loadBatch(body, op, tokens, values);
    } else {
      for (ValueId result : op.results)
        values[result] = std::make_shared<Buffer>(body.typeOf(result));
      RETURN_IF_ERROR(op.kind == OpKind::Attention ? attend(body, op, values, attention++)
                                                   : run(body, op, values));
    }
    for (ValueId operand : op.operands)
      if (body.last[operand] == i)
        values[operand].reset();
  }
  position_ += static_cast<int64_t>(tokens.size());
  return values;
}

/// Loads a batch of one sample with one document, at the positions after those so far.
void Generator::loadBatch(const Body &body, const Op &op, std::span<const int32_t> tokens,
                          Values &values) const {
  for (ValueId result : op.results)
    values[result] = std::make_shared<Buffer>(body.typeOf(result));
  constexpr OpKind kOp = OpKind::BatchLoad;
  auto words = [&](size_t result) {
    return reinterpret_cast<int32_t *>(values[op.results[result]]->bytes.get());
  };
  std::ranges::copy(tokens, words(plan::resultIndex<kOp>("tokens")));
  for (size_t i = 0; i < tokens.size(); ++i)
    words(plan::resultIndex<kOp>("positions"))[i] =
        static_cast<int32_t>(position_ + static_cast<int64_t>(i));
}

namespace {

Status refused(const Op &op, const char *reason) {
  return makeStatus(StatusCode::InvalidInput, "the host's kernel of '{}' refuses its operands: {}",
                    plan::opInfo(op).name, reason);
}

/// Runs the call with scratch memory.
Status runKernel(const Op &op, std::string_view name, Call &call,
                 std::vector<std::byte> &workspace) {
  const kernels::Kernel *kernel = kernels::findHostKernel(name);
  if (kernel == nullptr)
    return makeStatus(StatusCode::InvalidInput, "the host has no kernel of '{}'", name);
  if (const char *reason = kernel->accepts(call))
    return refused(op, reason);
  size_t bytes = kernel->workspaceBytes != nullptr ? kernel->workspaceBytes(call) : 0;
  if (workspace.size() < bytes)
    workspace.resize(bytes);
  call.workspace = workspace.data(), call.workspaceBytes = bytes;
  kernel->run(call);
  return Status::ok();
}

/// Whether the op has an operand for its rows' positions in the sequence, but the plan does not
/// provide it: the op then counts rows from the beginning of the sequence.
bool lacksPositions(const Op &op) {
  std::string_view rest = plan::opInfo(op).operands;
  for (size_t i = 0; i < op.operands.size(); ++i)
    rest.remove_prefix(rest.find(' ') == std::string_view::npos ? rest.size() : rest.find(' ') + 1);
  return rest.starts_with("positions?");
}

} // namespace

Status Generator::run(const Body &body, const Op &op, Values &values) {
  if (op.kind == OpKind::View) {
    const Type &type = body.typeOf(op.results[0]);
    const std::byte *from = values[op.operands[0]]->bytes.get() +
                            op.getInt(Key::offset) * static_cast<int64_t>(dtypeBytes(type.dtype));
    std::memcpy(values[op.results[0]]->bytes.get(), from, static_cast<size_t>(type.bytes()));
    return Status::ok();
  }
  Call call;
  call.attrs = exec::attrsOf(op);
  for (ValueId operand : op.operands)
    call.in[call.inCount++] = values[operand]->tensor();
  std::vector<int32_t> positions;
  if (lacksPositions(op)) {
    const Type &first = body.typeOf(op.operands[0]);
    for (int64_t i = 0; i < first.shape[1]; ++i)
      positions.push_back(static_cast<int32_t>(position_ + i));
    Tensor &added = call.in[call.inCount++];
    added = exec::tensorOf(Type::of(DType::I32, {1, first.shape[1]}));
    added.data = positions.data();
  }
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result]->tensor();
  return runKernel(op, plan::opInfo(op).name, call, workspace_);
}

/// Adds the keys and values of these tokens to the kept ones, and computes attention of their
/// queries to all kept tokens.
Status Generator::attend(const Body &body, const Op &op, Values &values, size_t number) {
  constexpr OpKind kOp = OpKind::Attention;
  if (kept_.size() <= number)
    kept_.resize(number + 1);
  Kept &kept = kept_[number];
  auto keep = [&](ValueId value, std::vector<std::byte> &to) {
    const Buffer &own = *values[value];
    to.insert(to.end(), own.bytes.get(), own.bytes.get() + own.type.bytes());
    Tensor all = own.tensor();
    all.shape[1] += position_;
    all.data = to.data();
    return all;
  };
  ValueId q = plan::operandNamed<kOp>(op, "q");
  int64_t rows = body.typeOf(q).shape[1], keys = position_ + rows;
  std::vector<int32_t> places(static_cast<size_t>(keys)), zeros(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    places[i] = static_cast<int32_t>(i);
  int64_t sample = 0;
  auto wordsOf = [](int64_t count, void *data) {
    Tensor words = exec::tensorOf(Type::of(DType::I32, {1, count}));
    words.data = data;
    return words;
  };
  Tensor samples = exec::tensorOf(Type::of(DType::I64, {1}));
  samples.data = &sample;
  Call call;
  call.attrs = exec::attrsOf(op);
  for (const Tensor &operand :
       {values[q]->tensor(), keep(plan::operandNamed<kOp>(op, "k"), kept.keys),
        keep(plan::operandNamed<kOp>(op, "v"), kept.values),
        wordsOf(rows, places.data() + position_), wordsOf(keys, places.data()),
        wordsOf(rows, zeros.data()), wordsOf(keys, zeros.data()), samples})
    call.in[call.inCount++] = operand;
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result]->tensor();
  return runKernel(op, plan::opInfo(OpKind::AttentionPart).name, call, workspace_);
}

Result<std::vector<float>> Generator::scoresOf(const Op &loss, const Values &values, int64_t at) {
  const Tensor logits = values[loss.operands[0]]->tensor();
  int64_t columns = logits.cols(), real = loss.getInt(Key::valid_cols);
  std::vector<float> row(static_cast<size_t>(columns));
  const float *first = kernels::host::readF32(logits, at * columns, columns, row.data());
  std::vector<float> scores(first, first + (real > 0 ? std::min(real, columns) : columns));
  auto cap = static_cast<float>(loss.getFloat(Key::soft_cap));
  for (float &score : scores) {
    score = cap > 0 ? cap * std::tanh(score / cap) : score;
    if (!std::isfinite(score))
      return makeStatus(StatusCode::InvalidInput,
                        "the scores of the token at position {} are not finite", position_);
  }
  return scores;
}

namespace {

/// The scores behind the prompt.
Result<std::vector<float>> readPrompt(Generator &generator, std::span<const int32_t> prompt,
                                      const Continuation &how) {
  if (how.ofRows && prompt.size() > 1)
    return generator.scores(how.ofRows(std::ssize(prompt)), prompt);
  std::vector<float> scores;
  for (size_t i = 0; i < prompt.size(); ++i) {
    ASSIGN_OR_RETURN(scores, generator.scores(how.one, prompt.subspan(i, 1)));
  }
  return scores;
}

Status checkPrompt(std::span<const int32_t> prompt, const plan::Plan &plan) {
  const int64_t vocabulary = plan.job.model.vocabSize;
  if (prompt.empty())
    return makeStatus(StatusCode::InvalidInput, "the prompt has no token");
  for (int32_t token : prompt)
    if (vocabulary > 0 && token >= vocabulary)
      return makeStatus(StatusCode::InvalidInput, "token {} is not in the vocabulary of {}", token,
                        vocabulary);
  return Status::ok();
}

Status checkLength(int64_t tokens, const plan::Plan &plan) {
  const int64_t most = plan.job.model.maxPositionEmbeddings;
  if (most > 0 && tokens > most)
    return makeStatus(StatusCode::InvalidInput,
                      "the text is longer than the {} positions that the model knows", most);
  return Status::ok();
}

} // namespace

Result<std::vector<int32_t>> continueText(Generator &generator, std::span<const int32_t> prompt,
                                          const Continuation &how) {
  RETURN_IF_ERROR(checkPrompt(prompt, how.one));
  RETURN_IF_ERROR(checkLength(std::ssize(prompt), how.one));
  generator.beginText();
  std::vector<int32_t> made;
  ASSIGN_OR_RETURN(std::vector<float> scores, readPrompt(generator, prompt, how));
  while (std::ssize(made) < how.tokensMax) {
    int32_t token = chooseToken(scores, how.temperature, how.seed, generator.position());
    if (std::ranges::find(how.ends, token) != how.ends.end())
      break;
    made.push_back(token);
    const bool isLast = std::ssize(made) == how.tokensMax;
    if (how.made)
      RETURN_IF_ERROR(how.made(made, isLast));
    if (isLast)
      break;
    RETURN_IF_ERROR(checkLength(generator.position() + 1, how.one));
    ASSIGN_OR_RETURN(scores, generator.scores(how.one, std::span(&made.back(), 1)));
  }
  return made;
}

int32_t chooseToken(std::span<const float> scores, double temperature, int64_t seed,
                    int64_t position) {
  auto best = std::ranges::max_element(scores) - scores.begin();
  if (temperature <= 0)
    return static_cast<int32_t>(best);
  const double largest = scores[static_cast<size_t>(best)];
  auto share = [&](float score) { return std::exp((score - largest) / temperature); };
  double whole = 0, sum = 0;
  for (float score : scores)
    whole += share(score);
  double drawn = whole * uniformAt(streamKey(static_cast<uint64_t>(seed), "generate"),
                                   static_cast<uint64_t>(position));
  for (size_t i = 0; i < scores.size(); ++i)
    if (sum += share(scores[i]); drawn < sum)
      return static_cast<int32_t>(i);
  return static_cast<int32_t>(best); // if rounding prevented a choice
}

} // namespace shardc::generate
