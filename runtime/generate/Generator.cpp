#include "runtime/generate/Generator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "kernels/host/Convert.h"
#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Seconds.h"
#include "runtime/base/Thread.h"
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
  /// The keys or values of an attention op, numbered among those that are needed.
  struct KeptValue {
    ValueId value;
    size_t attention, number; ///< number: of the rows in its `Kept`
  };
  std::vector<KeptValue> kept;
  std::vector<std::pair<ValueId, const Value *>> weights;

  static Result<Body> of(const plan::Plan &plan) {
    const plan::Role &role = plan.roles.front();
    Body body{.segment = role.segments.front(), .role = role};
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
    constexpr OpKind kOp = OpKind::Attention;
    for (size_t i = 0, attention = 0; i < body.loss; ++i)
      if (ops[i].kind == kOp && body.isNeeded[i]) {
        body.kept.push_back({plan::operandNamed<kOp>(ops[i], "k"), attention, 0});
        body.kept.push_back({plan::operandNamed<kOp>(ops[i], "v"), attention++, 1});
      }
    return body;
  }

  bool isUsed(ValueId value) const { return last[value] > 0; }
  const Type &typeOf(ValueId value) const { return segment.values[value].type; }
};

Generator::~Generator() = default;

/// The body of a plan, with the weights that were loaded.
Result<const Generator::Body *> Generator::bodyOf(const plan::Plan &plan) {
  std::unique_ptr<Body> &body = bodies_[&plan];
  if (!body) {
    ASSIGN_OR_RETURN(Body made, Body::of(plan));
    for (const plan::Segment::Boundary &in : made.segment.ins)
      if (auto found = weights_.find(made.role.cells[in.cell].name); found != weights_.end())
        made.weights.emplace_back(in.value, &found->second);
    body = std::make_unique<Body>(std::move(made));
  }
  return body.get();
}

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
      RETURN_IF_ERROR(work_->copy(value.data.get(), bytes.data(), value.type.bytes()));
      RETURN_IF_ERROR(work_->wait()); // for `bytes`
    }
    weights_[cell.name] = std::move(value);
  }
  return loadWeights(*work_, destinations, read, threads);
}

Status Generator::followAll(
    std::span<const plan::Plan> plans, std::span<const int32_t> tokens, size_t text,
    const std::function<Status(const Op &loss, const Values &values, size_t end)> &visit) {
  running_ = {text};
  for (size_t at = 0; at < tokens.size();) {
    const size_t chosen = std::min<size_t>(plans.size(), std::bit_width(tokens.size() - at)) - 1;
    ASSIGN_OR_RETURN(const Body *body, bodyOf(plans[chosen]));
    const size_t rows = size_t{1} << chosen;
    ASSIGN_OR_RETURN(Values values, follow(*body, tokens.subspan(at, rows)));
    RETURN_IF_ERROR(visit(body->segment.ops[body->loss], values, at += rows));
    if (at < tokens.size())
      RETURN_IF_ERROR(work_->wait()); // for these rows in prepareRows()'s memory
  }
  return Status::ok();
}

namespace {

/// The scores in a row of fetched ones, without those of vocabulary padding. `position` is that of
/// the token.
Result<std::vector<float>> scoresIn(const Op &loss, const Tensor &fetched, int64_t row,
                                    int64_t position) {
  const int64_t columns = fetched.cols(), real = loss.getInt(Key::valid_cols);
  std::vector<float> scores(static_cast<size_t>(columns));
  if (const float *first = kernels::host::readF32(fetched, row * columns, columns, scores.data());
      first != scores.data())
    std::copy_n(first, columns, scores.data());
  scores.resize(static_cast<size_t>(real > 0 ? std::min(real, columns) : columns));
  if (auto cap = static_cast<float>(loss.getFloat(Key::soft_cap)); cap > 0)
    for (float &score : scores)
      score = cap * std::tanh(score / cap);
  constexpr size_t kLanes = 16; // which the compiler computes at once
  float zeros[kLanes] = {};     // NaN where a score is not finite
  size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      zeros[lane] += scores[i + lane] - scores[i + lane];
  for (; i < scores.size(); ++i)
    zeros[0] += scores[i] - scores[i];
  if (std::ranges::any_of(zeros, [](float zero) { return zero != 0; }))
    return makeStatus(StatusCode::InvalidInput,
                      "the scores of the token at position {} are not finite", position);
  return scores;
}

} // namespace

Result<std::vector<float>> Generator::scores(std::span<const plan::Plan> plans,
                                             std::span<const int32_t> tokens, size_t text) {
  std::vector<float> last;
  RETURN_IF_ERROR(followAll(plans, tokens, text,
                            [&](const Op &loss, const Values &values, size_t end) -> Status {
                              if (end == tokens.size()) {
                                ASSIGN_OR_RETURN(Tensor fetched, fetchScores(loss, values, -1, 1));
                                ASSIGN_OR_RETURN(last, scoresIn(loss, fetched, 0, lengths_[text]));
                              }
                              return Status::ok();
                            }));
  return last;
}

Status Generator::scoresOfAll(const plan::Plan &plan, std::span<const int32_t> tokens,
                              const TakeScores &take) {
  ASSIGN_OR_RETURN(const Body *body, bodyOf(plan));
  running_.resize(lengths_.size());
  std::iota(running_.begin(), running_.end(), 0);
  const std::vector<int64_t> before = lengths_;
  ASSIGN_OR_RETURN(Values values, follow(*body, tokens));
  for (size_t text = 0; text < tokens.size(); ++text)
    if (tokens[text] < 0)
      lengths_[text] = before[text];
  const Op &loss = body->segment.ops[body->loss];
  ASSIGN_OR_RETURN(Tensor fetched, fetchScores(loss, values, 0, std::ssize(tokens)));
  const size_t threads = std::thread::hardware_concurrency();
  return runOnThreads(threads, tokens.size(), [&](size_t text, size_t) -> Status {
    if (tokens[text] < 0)
      return Status::ok();
    ASSIGN_OR_RETURN(std::vector<float> scores,
                     scoresIn(loss, fetched, static_cast<int64_t>(text), lengths_[text]));
    take(text, std::move(scores));
    return Status::ok();
  });
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
  const auto largest = static_cast<double>(scores[largestOf(scores)]);
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
  begin();
  std::vector<ScoredToken> found;
  RETURN_IF_ERROR(
      followAll(plans, given, 0, [&](const Op &loss, const Values &values, size_t end) -> Status {
        const int64_t rows = static_cast<int64_t>(end) - std::ssize(found);
        ASSIGN_OR_RETURN(Tensor fetched, fetchScores(loss, values, -rows, rows));
        for (int64_t row = 0; row < rows; ++row) {
          ASSIGN_OR_RETURN(std::vector<float> scores,
                           scoresIn(loss, fetched, row, std::ssize(found) + 1));
          found.push_back(scoreOf(scores, tokens[found.size() + 1]));
        }
        return Status::ok();
      }));
  return found;
}

void Generator::begin(size_t texts) {
  kept_.clear();
  repeated_.clear();
  convolved_.clear();
  lengths_.assign(texts, 0);
  places_ = 0;
}

Result<Generator::Values> Generator::follow(const Body &body, std::span<const int32_t> tokens) {
  RETURN_IF_ERROR(prepareRows(tokens));
  Values values(body.segment.values.size());
  for (const auto &[value, weight] : body.weights)
    values[value] = *weight;
  RETURN_IF_ERROR(placeKept(body, values));
  size_t attentions = 0, convolutions = 0, rules = 0;
  auto next = [](auto &all, size_t &count) -> auto & {
    all.resize(std::max(all.size(), count + 1));
    return all[count++];
  };
  for (size_t i = 0; i < body.loss; ++i) {
    const Op &op = body.segment.ops[i];
    if (!body.isNeeded[i])
      continue;
    if (op.kind != OpKind::View)
      for (ValueId result : op.results)
        if (!values[result].data) {
          ASSIGN_OR_RETURN(values[result], make(body.typeOf(result)));
        }
    RETURN_IF_ERROR(op.kind == OpKind::BatchLoad ? loadBatch(body, op, values)
                    : op.kind == OpKind::Attention
                        ? attend(body, op, values, next(kept_, attentions))
                    : op.kind == OpKind::ShortConv || op.kind == OpKind::CausalConv
                        ? convolve(op, values, next(convolved_, convolutions))
                    : op.kind == OpKind::DeltaRule || op.kind == OpKind::StateScan
                        ? repeat(op, values, next(repeated_, rules))
                                                   : run(body, op, values));
    for (ValueId operand : op.operands)
      if (body.last[operand] == i)
        values[operand].data.reset();
  }
  for (size_t text : running_)
    lengths_[text] += std::ssize(tokens) / std::ssize(running_);
  return values;
}

Status Generator::prepareRows(std::span<const int32_t> tokens) {
  const int64_t count = std::ssize(tokens), rows = count / std::ssize(running_);
  constexpr int64_t kWords = 64; // so that each part is aligned
  const int64_t each = (count + kWords - 1) / kWords * kWords;
  const int64_t bytes = each * static_cast<int64_t>(sizeof(int32_t));
  int64_t longest = 0;
  for (size_t text : running_)
    longest = std::max(longest, lengths_[text]);
  RETURN_IF_ERROR(addPlaces(longest + rows));
  // Earlier rows were waited for, so nothing reads these bytes any more.
  ASSIGN_OR_RETURN(uint8_t * host, work_->hostBytes(3 * bytes));
  auto *words = reinterpret_cast<int32_t *>(host);
  for (int64_t i = 0; i < count; ++i) {
    const size_t text = running_[static_cast<size_t>(i / rows)];
    const int64_t position = lengths_[text] + i % rows;
    words[i] = std::max(tokens[static_cast<size_t>(i)], 0);
    words[each + i] = static_cast<int32_t>(position);
    words[2 * each + i] = static_cast<int32_t>(static_cast<int64_t>(text) * places_ + position);
  }
  ASSIGN_OR_RETURN(Block all, work_->take(3 * bytes));
  tokens_ = all, positions_ = Block(all, all.get() + bytes),
  slots_ = Block(all, all.get() + 2 * bytes);
  return work_->copy(all.get(), host, 3 * bytes);
}

/// Lets each text have `needed` positions. Also extends the cells that have one number for each.
Status Generator::addPlaces(int64_t needed) {
  constexpr int64_t kBytes = sizeof(int32_t), kPlacesMin = 256;
  if (needed <= places_)
    return Status::ok();
  const int64_t before = std::exchange(places_, std::max(kPlacesMin, needed + needed / 4));
  const int64_t all = places_ * std::ssize(lengths_);
  std::vector<int32_t> counting(static_cast<size_t>(all));
  for (int64_t i = 0; i < all; ++i)
    counting[static_cast<size_t>(i)] = static_cast<int32_t>(i % places_);
  ASSIGN_OR_RETURN(counting_, work_->take(all * kBytes));
  ASSIGN_OR_RETURN(zeros_, work_->take(all * kBytes));
  RETURN_IF_ERROR(work_->copy(counting_.get(), counting.data(), all * kBytes));
  RETURN_IF_ERROR(work_->fill(zeros_.get(), 0, all * kBytes));
  for (std::vector<Kept> *all : {&kept_, &repeated_})
    for (Kept &kept : *all)
      for (Rows &rows : kept)
        if (rows.data) {
          ASSIGN_OR_RETURN(Block longer, makeRows(rows, places_));
          for (int64_t text = 0; text < std::ssize(lengths_); ++text)
            RETURN_IF_ERROR(work_->copy(longer.get() + text * places_ * rows.each,
                                        rows.data.get() + text * before * rows.each,
                                        before * rows.each));
          rows.data = std::move(longer);
        }
  return work_->wait(); // for `counting`
}

Result<Block> Generator::makeRows(const Rows &rows, int64_t count) {
  const int64_t bytes = std::ssize(lengths_) * count * rows.each;
  ASSIGN_OR_RETURN(Block made, work_->take(bytes));
  RETURN_IF_ERROR(work_->fill(made.get(), 0, bytes));
  return made;
}

Status Generator::loadBatch(const Body &body, const Op &op, Values &values) {
  constexpr OpKind kOp = OpKind::BatchLoad;
  const ValueId tokens = op.results[plan::resultIndex<kOp>("tokens")],
                positions = op.results[plan::resultIndex<kOp>("positions")];
  for (ValueId result : op.results)
    if (result == tokens)
      values[result].data = tokens_;
    else if (result == positions)
      values[result].data = positions_;
    else if (body.isUsed(result))
      RETURN_IF_ERROR(work_->fill(values[result].data.get(), 0, body.typeOf(result).bytes()));
  return Status::ok();
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

Tensor tensorAt(const Type &type, uint8_t *data) {
  Tensor tensor = exec::tensorOf(type);
  tensor.data = data;
  return tensor;
}

Tensor wordsOf(int64_t samples, int64_t count, const Block &data) {
  return tensorAt(Type::of(DType::I32, {samples, count}), data.get());
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
    call.in[call.inCount++] = wordsOf(body.typeOf(op.operands[0]).shape[0],
                                      body.typeOf(op.operands[0]).shape[1], positions_);
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result].tensor();
  return work_->run(plan::opInfo(op).name, call);
}

/// Prepares the rows of keys and values. Those of a single text are computed in their place, if all
/// places are aligned as kernels need it.
Status Generator::placeKept(const Body &body, Values &values) {
  constexpr int64_t kAlignment = 256;
  kept_.resize(body.kept.size() / 2);
  for (const auto &[value, attention, number] : body.kept) {
    const Type &type = body.typeOf(value);
    Rows &rows = kept_[attention][number];
    RETURN_IF_ERROR(openRows(type, rows, places_));
    if (!isTogether() && rows.each % kAlignment == 0)
      values[value] = {type, nextOf(rows)};
  }
  return Status::ok();
}

/// Prepares `count` rows of values of a type for each text.
Status Generator::openRows(const Type &type, Rows &rows, int64_t count) {
  rows.each = type.bytes() / (type.shape[0] * type.shape[1]);
  if (!rows.data) {
    ASSIGN_OR_RETURN(rows.data, makeRows(rows, count));
  }
  return Status::ok();
}

/// Where the rows of the texts that run begin.
uint8_t *Generator::firstOf(const Rows &rows) const {
  return rows.data.get() + static_cast<int64_t>(running_[0]) * places_ * rows.each;
}

/// Where the next rows of the text that runs alone are kept.
Block Generator::nextOf(const Rows &rows) const {
  return {rows.data, firstOf(rows) + lengths_[running_[0]] * rows.each};
}

/// Appends keys or values of these tokens to those of their texts, unless they are there.
Status Generator::keep(const Value &value, const Rows &rows) {
  const Type &type = value.type;
  const int64_t count = type.shape[0] * type.shape[1];
  if (!isTogether()) {
    const Block to = nextOf(rows);
    return to == value.data ? Status::ok() : work_->copy(to.get(), value.data.get(), type.bytes());
  }
  const int64_t channels = type.numel() / count;
  Call call;
  for (const Tensor &operand : {tensorAt(Type::of(type.dtype, {count, channels}), value.data.get()),
                                wordsOf(count, 1, slots_)})
    call.in[call.inCount++] = operand;
  call.out[call.outCount++] =
      tensorAt(Type::of(type.dtype, {places_ * std::ssize(lengths_), channels}), rows.data.get());
  return work_->run(plan::opInfo(OpKind::Dispatch).name, call);
}

/// Adds the keys and values of these tokens to the kept ones, and computes attention of their
/// queries to all kept tokens. The first tokens are a whole sequence, which more kernels serve.
/// Texts that run together read all places: those behind a token are hidden from it.
Status Generator::attend(const Body &body, const Op &op, Values &values, Kept &kept) {
  constexpr OpKind kOp = OpKind::Attention;
  const Value &q = values[plan::operandNamed<kOp>(op, "q")],
              &k = values[plan::operandNamed<kOp>(op, "k")],
              &v = values[plan::operandNamed<kOp>(op, "v")];
  RETURN_IF_ERROR(keep(k, kept[0]));
  RETURN_IF_ERROR(keep(v, kept[1]));
  const int64_t samples = q.type.shape[0], rows = q.type.shape[1], before = lengths_[running_[0]],
                keys = isTogether() ? places_ : before + rows;
  if (!isTogether() && before == 0)
    return run(body, op, values);
  auto all = [&](Type type, const Rows &kept) {
    type.shape[1] = keys;
    return tensorAt(type, firstOf(kept));
  };
  Call call;
  call.attrs = exec::attrsOf(op);
  for (const Tensor &operand :
       {q.tensor(), all(k.type, kept[0]), all(v.type, kept[1]), wordsOf(samples, rows, positions_),
        wordsOf(samples, keys, counting_), wordsOf(samples, rows, zeros_),
        wordsOf(samples, keys, zeros_), tensorAt(Type::of(DType::I64, {samples}), zeros_.get())})
    call.in[call.inCount++] = operand;
  for (ValueId result : op.results)
    call.out[call.outCount++] = values[result].tensor();
  return work_->run(plan::opInfo(OpKind::AttentionPart).name, call);
}

/// Convolves the rows of these tokens behind the rows that the convolution still reads, which are
/// zeros before a text.
Status Generator::convolve(const Op &op, Values &values, Rows &kept) {
  const Value &x = values[op.operands[0]], &w = values[op.operands[1]], &y = values[op.results[0]];
  const int64_t samples = x.type.shape[0], rows = x.type.shape[1], reach = w.type.shape[1] - 1;
  RETURN_IF_ERROR(openRows(x.type, kept, reach));
  const int64_t each = kept.each, made = y.type.bytes() / (samples * rows), ofSample = reach + rows;
  Type type = x.type, result = y.type;
  type.shape[1] = result.shape[1] = ofSample;
  ASSIGN_OR_RETURN(Value all, make(type));
  ASSIGN_OR_RETURN(Value out, make(result));
  for (int64_t s = 0; s < samples; ++s) {
    const size_t text = running_[static_cast<size_t>(s)];
    uint8_t *to = all.data.get() + s * ofSample * each,
            *last = kept.data.get() + static_cast<int64_t>(text) * reach * each;
    RETURN_IF_ERROR(lengths_[text] == 0 ? work_->fill(to, 0, reach * each)
                                        : work_->copy(to, last, reach * each));
    RETURN_IF_ERROR(work_->copy(to + reach * each, x.data.get() + s * rows * each, rows * each));
    RETURN_IF_ERROR(work_->copy(last, to + rows * each, reach * each));
  }
  Call call;
  call.attrs = exec::attrsOf(op);
  for (const Tensor &operand : {all.tensor(), w.tensor(), wordsOf(samples, ofSample, zeros_)})
    call.in[call.inCount++] = operand;
  for (ValueId bias : std::span(op.operands).subspan(call.inCount))
    call.in[call.inCount++] = values[bias].tensor();
  call.out[call.outCount++] = out.tensor();
  RETURN_IF_ERROR(work_->run(plan::opInfo(op).name, call));
  for (int64_t s = 0; s < samples; ++s)
    RETURN_IF_ERROR(work_->copy(y.data.get() + s * rows * made,
                                out.data.get() + (s * ofSample + reach) * made, rows * made));
  return Status::ok();
}

/// Adds the rows of these tokens to the kept ones, and computes the states of all tokens again.
/// Rows behind a token do not change what it reads.
Status Generator::repeat(const Op &op, Values &values, Kept &kept) {
  const Value &o = values[op.results[0]];
  const int64_t samples = o.type.shape[0], rows = o.type.shape[1],
                all = isTogether() ? places_ : lengths_[running_[0]] + rows,
                each = o.type.bytes() / (samples * rows);
  Type whole = o.type;
  whole.shape[1] = all;
  ASSIGN_OR_RETURN(Value out, make(whole));
  Call call;
  call.attrs = exec::attrsOf(op);
  for (size_t i = 0; i + 1 < op.operands.size(); ++i) {
    const Value &value = values[op.operands[i]];
    Tensor &tensor = call.in[call.inCount++] = value.tensor();
    if (tensor.rank < 3) // a parameter
      continue;
    RETURN_IF_ERROR(openRows(value.type, kept[i], places_));
    RETURN_IF_ERROR(keep(value, kept[i]));
    tensor.shape[1] = all;
    tensor.data = firstOf(kept[i]);
  }
  call.in[call.inCount++] = wordsOf(samples, all, zeros_);
  call.out[call.outCount++] = out.tensor();
  RETURN_IF_ERROR(work_->run(plan::opInfo(op).name, call));
  for (int64_t s = 0; s < samples; ++s)
    RETURN_IF_ERROR(
        work_->copy(o.data.get() + s * rows * each,
                    out.data.get() + (s * all + lengths_[running_[static_cast<size_t>(s)]]) * each,
                    rows * each));
  return Status::ok();
}

Result<Tensor> Generator::fetchScores(const Op &loss, const Values &values, int64_t first,
                                      int64_t count) {
  Tensor logits = values[loss.operands[0]].tensor();
  const int64_t bytes = logits.cols() * static_cast<int64_t>(dtypeBytes(logits.dtype));
  const int64_t begin = first < 0 ? first + logits.rows() : first;
  ASSIGN_OR_RETURN(uint8_t * host, work_->hostBytes(count * bytes));
  RETURN_IF_ERROR(
      work_->copy(host, static_cast<uint8_t *>(logits.data) + begin * bytes, count * bytes));
  RETURN_IF_ERROR(work_->wait());
  return tensorAt(Type::of(logits.dtype, {count, logits.cols()}), host);
}

namespace {

/// Continues texts, as many at once as there are places. The next text begins where one has ended.
class Continuing {
public:
  Continuing(Generator &generator, std::span<BegunText> texts, const Continuation &how)
      : generator_(generator), texts_(texts), how_(how), places_(how.together) {
    if (how.together > 1)
      plans_ = plans_.first(plans_.size() - 1);
  }

  Result<ContinuedRate> run() {
    for (const BegunText &text : texts_) {
      RETURN_IF_ERROR(checkTokens(text.prompt, plans_.front()));
      RETURN_IF_ERROR(checkLength(text.prompt.size(), plans_.front()));
    }
    generator_.begin(places_.size());
    while (true) {
      RETURN_IF_ERROR(fillPlaces());
      if (std::ranges::none_of(places_, &Place::text))
        return rate_;
      RETURN_IF_ERROR(step());
    }
  }

private:
  struct Place {
    BegunText *text = nullptr; ///< null: none
    std::vector<int32_t> all;  ///< its tokens
    int32_t next = 0;          ///< chosen, and not taken yet
  };

  Status fillPlaces() {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t at = 0; at < places_.size(); ++at)
      while (places_[at].text == nullptr && begun_ < texts_.size()) {
        Place &place = places_[at];
        place.text = &texts_[begun_++];
        place.all.assign(place.text->prompt.begin(), place.text->prompt.end());
        rate_.read += place.all.size();
        generator_.beginText(at);
        ASSIGN_OR_RETURN(std::vector<float> scores, generator_.scores(plans_, place.all, at));
        choose(place, std::move(scores));
        RETURN_IF_ERROR(take(place));
      }
    rate_.reading += secondsSince(begin);
    return Status::ok();
  }

  /// Continues each text by a token.
  Status step() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int32_t> last;
    for (const Place &place : places_)
      last.push_back(place.text ? place.all.back() : -1);
    if (how_.together == 1) {
      ASSIGN_OR_RETURN(std::vector<float> scores, generator_.scores(plans_, last));
      choose(places_[0], std::move(scores));
    } else {
      RETURN_IF_ERROR(generator_.scoresOfAll(
          how_.plans.back(), last,
          [&](size_t at, std::vector<float> scores) { choose(places_[at], std::move(scores)); }));
    }
    for (Place &place : places_)
      if (place.text != nullptr) {
        ++rate_.spoken;
        RETURN_IF_ERROR(take(place));
      }
    rate_.speaking += secondsSince(begin);
    return Status::ok();
  }

  void choose(Place &place, std::vector<float> scores) const {
    Sampling sampling = how_.sampling;
    sampling.seed += place.text->seed;
    place.next = chooseToken(std::move(scores), place.all, sampling);
  }

  /// Takes the token that was chosen. Leaves the place if the text ends.
  Status take(Place &place) {
    BegunText &text = *place.text;
    bool isLast = std::ranges::find(how_.ends, place.next) != how_.ends.end();
    if (!isLast) {
      place.all.push_back(place.next);
      text.made.push_back(place.next);
      isLast = std::ssize(text.made) == how_.tokensMax;
      if (text.take) {
        ASSIGN_OR_RETURN(bool goesOn, text.take(text.made, isLast));
        isLast |= !goesOn;
      }
    }
    if (!isLast)
      return checkLength(place.all.size(), plans_.front());
    place.text = nullptr;
    return text.end ? text.end() : Status::ok();
  }

  Generator &generator_;
  std::span<BegunText> texts_;
  const Continuation &how_;
  std::span<const plan::Plan> plans_ = how_.plans; ///< of one text
  std::vector<Place> places_;
  size_t begun_ = 0; ///< texts
  ContinuedRate rate_;
};

} // namespace

Result<ContinuedRate> continueTexts(Generator &generator, std::span<BegunText> texts,
                                    const Continuation &how) {
  return Continuing(generator, texts, how).run();
}

} // namespace shardc::generate
