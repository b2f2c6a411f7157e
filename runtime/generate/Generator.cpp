#include "runtime/generate/Generator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "kernels/host/Convert.h"
#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
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

kernels::Tensor Generator::Value::tensor() const {
  Tensor tensor = exec::tensorOf(type);
  tensor.data = data.get();
  return tensor;
}

Result<std::unique_ptr<Generator>> Generator::create(hal::Backend &backend,
                                                     exec::FindKernel findKernel) {
  std::unique_ptr<Generator> generator(new Generator);
  ASSIGN_OR_RETURN(generator->work_, Work::create(backend, findKernel));
  return generator;
}

Result<std::unique_ptr<Generator>> Generator::onHost() {
  ASSIGN_OR_RETURN(std::unique_ptr<hal::Backend> host, host::makeBackend({.workers = 1}));
  ASSIGN_OR_RETURN(auto generator, create(*host, kernels::findHostKernel));
  generator->host_ = std::move(host);
  return generator;
}

Result<Generator::Value> Generator::make(const Type &type) {
  Value value{type, nullptr};
  ASSIGN_OR_RETURN(value.data, work_->take(type.bytes()));
  return value;
}

Status Generator::put(const Value &value, const void *data) {
  RETURN_IF_ERROR(work_->copy(value.data.get(), data, value.type.bytes()));
  return work_->wait();
}

namespace {

/// Reads the biases of experts: a row for each layer with experts.
Status readExpertBiases(const plan::Plan &plan, const Type &cell, const ReadTensor &read,
                        std::byte *to) {
  int64_t row = 0;
  constexpr int64_t kBytes = sizeof(float);
  constexpr std::string_view kRouter = "router.weight";
  for (const plan::Param &param : plan.params)
    if (param.name.ends_with(kRouter) && row < cell.shape[0]) {
      std::string stem = param.name.substr(0, param.name.size() - kRouter.size());
      const int64_t experts = param.type.shape[0];
      RETURN_IF_ERROR(read(stem + "router.expert_bias", Type::of(DType::F32, {experts}), 0, experts,
                           to + row++ * cell.shape[1] * kBytes));
    }
  return Status::ok();
}

} // namespace

Status Generator::load(const plan::Plan &plan, const ReadTensor &read, int threads) {
  ASSIGN_OR_RETURN(Body body, Body::of(plan));
  std::vector<Destination> destinations;
  for (const plan::Segment::Boundary &in : body.segment.ins) {
    const plan::Cell &cell = body.role.cells[in.cell];
    if (!body.isUsed(in.value) || cell.kind == plan::CellKind::EvalFeed)
      continue;
    ASSIGN_OR_RETURN(Value value, make(cell.type));
    if (cell.kind == plan::CellKind::Param) {
      destinations.push_back({&plan.params[static_cast<size_t>(cell.of)], cell.type, value.data});
    } else {
      std::vector<std::byte> bytes(static_cast<size_t>(cell.type.bytes()));
      if (cell.kind == plan::CellKind::ExpertBias)
        RETURN_IF_ERROR(readExpertBiases(plan, cell.type, read, bytes.data()));
      RETURN_IF_ERROR(put(value, bytes.data()));
    }
    weights_[cell.name] = std::move(value);
  }
  return loadWeights(*work_, destinations, read, threads);
}

Status Generator::followAll(
    std::span<const plan::Plan> plans, std::span<const int32_t> tokens,
    const std::function<Status(const Op &loss, const Values &values, size_t end)> &visit) {
  for (size_t at = 0; at < tokens.size();) {
    const size_t chosen = std::min<size_t>(plans.size(), std::bit_width(tokens.size() - at)) - 1;
    ASSIGN_OR_RETURN(Body body, Body::of(plans[chosen]));
    const size_t rows = size_t{1} << chosen;
    ASSIGN_OR_RETURN(Values values, follow(body, tokens.subspan(at, rows)));
    RETURN_IF_ERROR(visit(body.segment.ops[body.loss], values, at += rows));
    if (at < tokens.size())
      RETURN_IF_ERROR(work_->wait()); // for these tokens in loadBatch()'s memory
  }
  return Status::ok();
}

Result<std::vector<float>> Generator::scores(std::span<const plan::Plan> plans,
                                             std::span<const int32_t> tokens) {
  std::vector<float> last;
  RETURN_IF_ERROR(
      followAll(plans, tokens, [&](const Op &loss, const Values &values, size_t end) -> Status {
        if (end == tokens.size()) {
          ASSIGN_OR_RETURN(last, scoresOf(loss, values, -1));
        }
        return Status::ok();
      }));
  return last;
}

namespace {

Status checkTokens(std::span<const int32_t> tokens, const plan::Plan &plan) {
  const int64_t vocabulary = plan.job.model.vocabSize;
  if (tokens.empty())
    return makeStatus(StatusCode::InvalidInput, "the prompt has no token");
  for (int32_t token : tokens)
    if (token < 0 || (vocabulary > 0 && token >= vocabulary))
      return makeStatus(StatusCode::InvalidInput, "token {} is not in the vocabulary of {}", token,
                        vocabulary);
  return Status::ok();
}

Status checkLength(size_t tokens, const plan::Plan &plan) {
  const int64_t most = plan.job.model.maxPositionEmbeddings;
  if (most > 0 && std::cmp_greater(tokens, most))
    return makeStatus(StatusCode::InvalidInput,
                      "the text is longer than the {} positions that the model knows", most);
  return Status::ok();
}

Generator::ScoredToken scoreOf(const std::vector<float> &scores, int32_t token) {
  const auto largest = static_cast<double>(*std::ranges::max_element(scores));
  const double own = static_cast<double>(scores[static_cast<size_t>(token)]);
  double sum = 0;
  for (float score : scores)
    sum += std::exp(static_cast<double>(score) - largest);
  return {own - largest - std::log(sum), own == largest};
}

} // namespace

Result<std::vector<Generator::ScoredToken>> Generator::scoreAll(std::span<const plan::Plan> plans,
                                                                std::span<const int32_t> tokens) {
  RETURN_IF_ERROR(checkTokens(tokens, plans.front()));
  std::span<const int32_t> given = tokens.first(tokens.size() - 1);
  RETURN_IF_ERROR(checkLength(given.size(), plans.front()));
  beginText();
  std::vector<ScoredToken> found;
  RETURN_IF_ERROR(
      followAll(plans, given, [&](const Op &loss, const Values &values, size_t end) -> Status {
        for (auto row = std::ssize(found) - static_cast<int64_t>(end); row < 0; ++row) {
          ASSIGN_OR_RETURN(std::vector<float> scores, scoresOf(loss, values, row));
          found.push_back(scoreOf(scores, tokens[found.size() + 1]));
        }
        return Status::ok();
      }));
  return found;
}

void Generator::beginText() {
  kept_.clear();
  position_ = 0;
}

Result<Generator::Values> Generator::follow(const Body &body, std::span<const int32_t> tokens) {
  RETURN_IF_ERROR(preparePositions(std::ssize(tokens)));
  Values values(body.segment.values.size());
  for (const plan::Segment::Boundary &in : body.segment.ins)
    if (auto found = weights_.find(body.role.cells[in.cell].name); found != weights_.end())
      values[in.value] = found->second;
  size_t kept = 0;
  auto next = [&]() -> Kept & {
    kept_.resize(std::max(kept_.size(), kept + 1));
    return kept_[kept++];
  };
  for (size_t i = 0; i < body.loss; ++i) {
    const Op &op = body.segment.ops[i];
    if (!body.isNeeded[i])
      continue;
    if (op.kind != OpKind::View)
      for (ValueId result : op.results) {
        ASSIGN_OR_RETURN(values[result], make(body.typeOf(result)));
      }
    RETURN_IF_ERROR(op.kind == OpKind::BatchLoad   ? loadBatch(body, op, tokens, values)
                    : op.kind == OpKind::Attention ? attend(body, op, values, next())
                    : op.kind == OpKind::ShortConv || op.kind == OpKind::CausalConv
                        ? convolve(op, values, next())
                    : op.kind == OpKind::DeltaRule ? repeat(op, values, next())
                                                   : run(body, op, values));
    for (ValueId operand : op.operands)
      if (body.last[operand] == i)
        values[operand].data.reset();
  }
  position_ += std::ssize(tokens);
  return values;
}

/// Makes the positions of the next `rows` rows, and extends the cells that have one number for each
/// position.
Status Generator::preparePositions(int64_t rows) {
  constexpr int64_t kBytes = sizeof(int32_t), kPlacesMin = 256;
  if (int64_t needed = position_ + rows; needed > places_) {
    places_ = std::max({kPlacesMin, 2 * places_, needed});
    std::vector<int32_t> counting(static_cast<size_t>(places_));
    std::iota(counting.begin(), counting.end(), 0);
    ASSIGN_OR_RETURN(counting_, work_->take(places_ * kBytes));
    ASSIGN_OR_RETURN(zeros_, work_->take(places_ * kBytes));
    RETURN_IF_ERROR(work_->copy(counting_.get(), counting.data(), places_ * kBytes));
    RETURN_IF_ERROR(work_->fill(zeros_.get(), 0, places_ * kBytes));
    RETURN_IF_ERROR(work_->wait()); // for `counting`
  }
  ASSIGN_OR_RETURN(positions_, work_->take(rows * kBytes)); // aligned, unlike those in counting_
  return work_->copy(positions_.get(), counting_.get() + position_ * kBytes, rows * kBytes);
}

Status Generator::loadBatch(const Body &body, const Op &op, std::span<const int32_t> tokens,
                            Values &values) {
  constexpr OpKind kOp = OpKind::BatchLoad;
  const ValueId tokensId = op.results[plan::resultIndex<kOp>("tokens")],
                positionsId = op.results[plan::resultIndex<kOp>("positions")];
  const auto bytes = static_cast<int64_t>(tokens.size_bytes());
  // Earlier tokens were waited for, so nothing reads these bytes any more.
  ASSIGN_OR_RETURN(uint8_t * host, work_->hostBytes(bytes));
  std::memcpy(host, tokens.data(), tokens.size_bytes());
  for (ValueId result : op.results)
    if (result != tokensId && result != positionsId)
      RETURN_IF_ERROR(work_->fill(values[result].data.get(), 0, body.typeOf(result).bytes()));
  RETURN_IF_ERROR(work_->copy(values[tokensId].data.get(), host, bytes));
  return work_->copy(values[positionsId].data.get(), positions_.get(), bytes);
}

namespace {

/// Whether the op has an operand for its rows' positions in the sequence, but the plan does not
/// provide it: the op then counts rows from the beginning of the sequence.
bool lacksPositions(const Op &op) {
  std::string_view rest = plan::opInfo(op).operands;
  for (size_t i = 0; i < op.operands.size(); ++i)
    rest.remove_prefix(rest.find(' ') == std::string_view::npos ? rest.size() : rest.find(' ') + 1);
  return rest.starts_with("positions?");
}

Tensor wordsOf(int64_t count, const Block &data) {
  Tensor words = exec::tensorOf(Type::of(DType::I32, {1, count}));
  words.data = data.get();
  return words;
}

} // namespace

Status Generator::run(const Body &body, const Op &op, Values &values) {
  if (op.kind == OpKind::View) {
    const Type &type = body.typeOf(op.results[0]);
    const Block &from = values[op.operands[0]].data;
    values[op.results[0]] = {
        type, Block(from, from.get() + op.getInt(Key::offset) *
                                           static_cast<int64_t>(dtypeBytes(type.dtype)))};
    return Status::ok();
  }
  Call call;
  call.attrs = exec::attrsOf(op);
  for (ValueId operand : op.operands)
    call.in[call.inCount++] = values[operand].tensor();
  if (lacksPositions(op))
    call.in[call.inCount++] = wordsOf(body.typeOf(op.operands[0]).shape[1], positions_);
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result].tensor();
  return work_->run(plan::opInfo(op).name, call);
}

/// Appends keys and values of these tokens.
Status Generator::keep(const Value &value, Rows &rows) {
  const int64_t added = value.type.bytes(), before = added / value.type.shape[1] * position_;
  if (before + added > rows.bytes) {
    rows.bytes = std::max(2 * rows.bytes, before + added);
    ASSIGN_OR_RETURN(Block longer, work_->take(rows.bytes));
    if (before > 0)
      RETURN_IF_ERROR(work_->copy(longer.get(), rows.data.get(), before));
    rows.data = std::move(longer);
  }
  return work_->copy(rows.data.get() + before, value.data.get(), added);
}

/// Adds the keys and values of these tokens to the kept ones, and computes attention of their
/// queries to all kept tokens. The first tokens are a whole sequence, which more kernels serve.
Status Generator::attend(const Body &body, const Op &op, Values &values, Kept &kept) {
  constexpr OpKind kOp = OpKind::Attention;
  const Value &q = values[plan::operandNamed<kOp>(op, "q")],
              &k = values[plan::operandNamed<kOp>(op, "k")],
              &v = values[plan::operandNamed<kOp>(op, "v")];
  RETURN_IF_ERROR(keep(k, kept.keys));
  RETURN_IF_ERROR(keep(v, kept.values));
  if (position_ == 0)
    return run(body, op, values);
  const int64_t rows = q.type.shape[1], keys = position_ + rows;
  auto all = [keys](const Value &own, const Block &data) {
    Tensor tensor = own.tensor();
    tensor.shape[1] = keys;
    tensor.data = data.get();
    return tensor;
  };
  Tensor sample = exec::tensorOf(Type::of(DType::I64, {1}));
  sample.data = zeros_.get();
  Call call;
  call.attrs = exec::attrsOf(op);
  for (const Tensor &operand :
       {q.tensor(), all(k, kept.keys.data), all(v, kept.values.data), wordsOf(rows, positions_),
        wordsOf(keys, counting_), wordsOf(rows, zeros_), wordsOf(keys, zeros_), sample})
    call.in[call.inCount++] = operand;
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result].tensor();
  return work_->run(plan::opInfo(OpKind::AttentionPart).name, call);
}

/// Convolves the rows of these tokens behind the rows that the convolution still reads.
Status Generator::convolve(const Op &op, Values &values, Kept &kept) {
  const Value &x = values[op.operands[0]], &w = values[op.operands[1]], &y = values[op.results[0]];
  const int64_t rows = x.type.shape[1], added = x.type.bytes(), each = added / rows,
                reach = w.type.shape[1] - 1, before = std::min(reach, position_);
  Type type = x.type, result = y.type;
  type.shape[1] = result.shape[1] = before + rows;
  ASSIGN_OR_RETURN(Value all, make(type));
  ASSIGN_OR_RETURN(Value out, make(result));
  if (before > 0)
    RETURN_IF_ERROR(work_->copy(all.data.get(), kept.keys.data.get(), before * each));
  RETURN_IF_ERROR(work_->copy(all.data.get() + before * each, x.data.get(), added));
  Call call;
  call.attrs = exec::attrsOf(op);
  for (const Tensor &operand : {all.tensor(), w.tensor(), wordsOf(before + rows, zeros_)})
    call.in[call.inCount++] = operand;
  call.out[call.outCount++] = out.tensor();
  RETURN_IF_ERROR(work_->run(plan::opInfo(op).name, call));
  const int64_t left = std::max(before + rows - reach, int64_t{0});
  kept.keys.data = Block(all.data, all.data.get() + left * each);
  const int64_t bytes = y.type.bytes();
  return work_->copy(y.data.get(), out.data.get() + bytes / rows * before, bytes);
}

/// Adds the rows of these tokens to the kept ones, and computes the states of all tokens again.
Status Generator::repeat(const Op &op, Values &values, Kept &kept) {
  const Value &o = values[op.results[0]];
  const int64_t rows = o.type.shape[1], all = position_ + rows;
  Type whole = o.type;
  whole.shape[1] = all;
  ASSIGN_OR_RETURN(Value out, make(whole));
  Call call;
  call.attrs = exec::attrsOf(op);
  for (size_t i = 0; i + 1 < op.operands.size(); ++i) {
    Tensor &tensor = call.in[call.inCount++] = values[op.operands[i]].tensor();
    if (tensor.rank < 3) // a parameter
      continue;
    RETURN_IF_ERROR(keep(values[op.operands[i]], kept.more[i]));
    tensor.shape[1] = all;
    tensor.data = kept.more[i].data.get();
  }
  call.in[call.inCount++] = wordsOf(all, zeros_);
  call.out[call.outCount++] = out.tensor();
  RETURN_IF_ERROR(work_->run(plan::opInfo(op).name, call));
  return work_->copy(o.data.get(), out.data.get() + o.type.bytes() / rows * position_,
                     o.type.bytes());
}

Result<std::vector<float>> Generator::scoresOf(const Op &loss, const Values &values, int64_t at) {
  Tensor logits = values[loss.operands[0]].tensor();
  at += logits.rows();
  int64_t columns = logits.cols(), real = loss.getInt(Key::valid_cols);
  int64_t bytes = columns * static_cast<int64_t>(dtypeBytes(logits.dtype));
  ASSIGN_OR_RETURN(uint8_t * host, work_->hostBytes(bytes));
  RETURN_IF_ERROR(work_->copy(host, static_cast<uint8_t *>(logits.data) + at * bytes, bytes));
  RETURN_IF_ERROR(work_->wait());
  logits.data = host;
  std::vector<float> row(static_cast<size_t>(columns));
  const float *first = kernels::host::readF32(logits, 0, columns, row.data());
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

Result<std::vector<int32_t>> continueText(Generator &generator, std::span<const int32_t> prompt,
                                          const Continuation &how) {
  std::vector<int32_t> all(prompt.begin(), prompt.end()), made;
  RETURN_IF_ERROR(checkTokens(prompt, how.plans.front()));
  RETURN_IF_ERROR(checkLength(prompt.size(), how.plans.front()));
  generator.beginText();
  ASSIGN_OR_RETURN(std::vector<float> scores, generator.scores(how.plans, prompt));
  while (std::ssize(made) < how.tokensMax) {
    const int32_t token = chooseToken(std::move(scores), all, how.sampling);
    if (std::ranges::find(how.ends, token) != how.ends.end())
      break;
    all.push_back(token);
    made.push_back(token);
    bool isLast = std::ssize(made) == how.tokensMax;
    if (how.made) {
      ASSIGN_OR_RETURN(bool goesOn, how.made(made, isLast));
      isLast |= !goesOn;
    }
    if (isLast)
      break;
    RETURN_IF_ERROR(checkLength(all.size(), how.plans.front()));
    ASSIGN_OR_RETURN(scores, generator.scores(how.plans, std::span(&made.back(), 1)));
  }
  return made;
}

} // namespace shardc::generate
