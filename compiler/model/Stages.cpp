#include "compiler/model/Stages.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "runtime/base/Status.h"

namespace shardc::model {
namespace {

/// Maximum length of an expanded layout; no recipe has more layers.
constexpr size_t kLengthMax = kChunksMax;

using Fault = StageLayout::Fault;

StageLayout refused(Fault fault, std::string problem) { return {{}, fault, std::move(problem)}; }

/// Refuses a split in which an inner chunk has no layer.
StageLayout withoutEmptyStages(StageLayout layout) {
  for (size_t s = 1; s + 1 < layout.layers.size(); ++s)
    if (layout.layers[s] < 1)
      return refused(Fault::Empty, fmt::format("stage {} would have no layer", s));
  return layout;
}

/// Expands the repetitions of a layout: one letter for each part, and the ends of stages.
class Expander {
public:
  explicit Expander(std::string_view text) : text_(text) {}

  /// Returns the reason why the text is not a layout; empty if it is one.
  std::string run(std::string &parts) {
    if (list(parts) && at_ < text_.size())
      fail(fmt::format("'{}' has no parenthesis to close", text_.substr(at_)));
    return problem_;
  }

private:
  static constexpr int kDepthMax = 64; ///< of parentheses

  bool fail(std::string problem) {
    if (problem_.empty())
      problem_ = std::move(problem);
    return false;
  }

  bool list(std::string &parts) {
    while (at_ < text_.size() && text_[at_] != ')')
      if (constexpr std::string_view kFillers = ", \t\n";
          kFillers.find(text_[at_]) != kFillers.npos)
        ++at_;
      else if (!item(parts))
        return false;
      else if (parts.size() > kLengthMax)
        return fail("it is too long");
    return true;
  }

  bool item(std::string &parts) {
    const size_t first = parts.size();
    char c = text_[at_++];
    if (c == '(') {
      if (++depth_ > kDepthMax)
        return fail(fmt::format("more than {} parentheses are open", kDepthMax));
      if (!list(parts) || at_ >= text_.size())
        return fail("a parenthesis is not closed");
      ++at_, --depth_;
    } else if (c == 'E' || c == 't' || c == 'L' || c == '|') {
      parts += c;
    } else {
      return fail(fmt::format("unexpected '{}'; stages consist of 'E', 't' and 'L'", c));
    }
    if (at_ >= text_.size() || text_[at_] != '*')
      return true;
    size_t begin = ++at_, times = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_)
      times = std::min(times * 10 + static_cast<size_t>(text_[at_] - '0'), kLengthMax);
    const std::string once = parts.substr(first);
    if (begin == at_ || once.size() * times > kLengthMax)
      return fail("'*' needs a number of repetitions after it");
    parts.resize(first);
    for (; times > 0; --times)
      parts += once;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string problem_;
};

/// Parses Megatron's layout text: `E` embedding, `t` a layer, `L` the loss, `|` the end of a stage,
/// after repetitions have been expanded.
StageLayout divideByText(const StageRequest &request) {
  std::string parts;
  if (std::string problem = Expander(request.layout).run(parts); !problem.empty())
    return refused(Fault::Text, std::move(problem));
  if (parts.ends_with('|'))
    parts.pop_back();
  auto stages = 1 + std::ranges::count(parts, '|');
  if (stages != request.stages * request.chunks)
    return refused(Fault::Text, fmt::format("the layout has {} stages; {} are needed", stages,
                                            request.stages * request.chunks));
  if (!parts.starts_with('E') || std::ranges::count(parts, 'E') != 1)
    return refused(Fault::Text, "the embedding 'E' must come first, exactly once");
  if (!parts.ends_with('L') || std::ranges::count(parts, 'L') != 1)
    return refused(Fault::Text, "the loss 'L' must come last, exactly once");
  auto layers = std::ranges::count(parts, 't');
  if (layers != request.layers)
    return refused(Fault::Text, fmt::format("the layout has {} layers; the model has {}", layers,
                                            request.layers));
  StageLayout layout;
  layout.layers.resize(static_cast<size_t>(stages));
  size_t stage = 0;
  for (char part : parts) {
    stage += part == '|' ? 1 : 0;
    layout.layers[stage] += part == 't' ? 1 : 0;
  }
  return layout;
}

/// Gives the first and the last stage the requested numbers of layers, and the others equal
/// numbers.
StageLayout divideBetween(const StageRequest &request) {
  int64_t between = request.stages - (request.first > 0) - (request.last > 0);
  int64_t layers = request.layers - request.first - request.last;
  bool fits = between > 0 ? layers >= 0 && layers % between == 0 : between == 0 && layers == 0;
  if (!fits)
    return refused(Fault::Remainder, fmt::format("{} layers are left for {} stages", layers,
                                                 std::max<int64_t>(between, 0)));
  std::vector<int64_t> ofStage(static_cast<size_t>(request.stages),
                               between > 0 ? layers / between : 0);
  if (request.first > 0)
    ofStage.front() = request.first;
  if (request.last > 0)
    ofStage.back() = request.last;
  StageLayout layout;
  const auto placement = Placement::orLooped(request.placement, request.stages, request.chunks);
  for (int32_t chunk = 0; chunk < placement.chunks(); ++chunk) {
    auto s = static_cast<size_t>(placement.stageOf(chunk));
    int64_t chunks = std::ssize(placement.chunksOf(placement.stageOf(chunk)));
    if (ofStage[s] % chunks != 0)
      return refused(Fault::Chunks, fmt::format("{} layers of stage {} are not divisible by {}",
                                                ofStage[s], s, chunks));
    layout.layers.push_back(ofStage[s] / chunks);
  }
  return layout;
}

/// Embedding and loss may count as a layer each. The stages that have them then get one layer less.
StageLayout divideEvenly(const StageRequest &request) {
  int64_t counted = request.layers + request.countsEmbedding + request.countsLoss;
  int64_t stages = request.stages * request.chunks;
  if (counted % stages != 0)
    return refused(Fault::Remainder,
                   fmt::format("{} is not divisible by {} stages", counted, stages));
  StageLayout layout;
  layout.layers.assign(static_cast<size_t>(stages), counted / stages);
  layout.layers.front() -= request.countsEmbedding;
  layout.layers.back() -= request.countsLoss;
  return layout;
}

/// Splits layers into chunks by their seconds.
class Balancer {
public:
  explicit Balancer(const StageRequest &request)
      : request_(request), chunks_(static_cast<size_t>(request.stages * request.chunks)),
        layers_(static_cast<size_t>(request.layers)), until_(layers_ + 1) {
    for (size_t i = 0; i < layers_; ++i)
      until_[i + 1] = until_[i] + (request.seconds.empty() ? 1 : request.seconds[i]);
  }

  std::vector<int64_t> run() {
    double most = shortest() * kSlack;
    std::vector<size_t> need = chunksNeeded(most);
    std::vector<int64_t> counts(chunks_);
    size_t end = layers_;
    for (size_t chunk = chunks_; chunk-- > 0;) {
      size_t begin = beginOf(chunk, end, most, need);
      counts[chunk] = static_cast<int64_t>(end - begin);
      end = begin;
    }
    return counts;
  }

  /// The seconds of the slowest stage.
  double longestStage(const std::vector<int64_t> &counts) const {
    std::vector<double> stages(static_cast<size_t>(request_.stages));
    const auto placement =
        Placement::orLooped(request_.placement, request_.stages, request_.chunks);
    size_t begin = 0;
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      size_t end = begin + static_cast<size_t>(counts[chunk]);
      stages[static_cast<size_t>(placement.stageOf(static_cast<int32_t>(chunk)))] +=
          secondsOf(chunk, begin, end);
      begin = end;
    }
    return *std::ranges::max_element(stages);
  }

private:
  double secondsOf(size_t chunk, size_t begin, size_t end) const {
    return until_[end] - until_[begin] + (chunk == 0 ? request_.before : 0) +
           (chunk + 1 == chunks_ ? request_.behind : 0);
  }

  /// For each number of leading layers, the minimum number of chunks that hold them if no chunk may
  /// exceed `most` seconds. More than there are chunks if it is impossible.
  std::vector<size_t> chunksNeeded(double most) const {
    std::vector<size_t> need(layers_ + 1, chunks_ + 1);
    need[0] = 0;
    size_t chunk = 0, begin = 0;
    for (size_t end = 1; end <= layers_; ++end) {
      if (secondsOf(chunk == 0 ? 0 : kInner, begin, end) > most) {
        begin = end - 1;
        ++chunk;
        if (end == 1 || secondsOf(kInner, begin, end) > most)
          break; // the layer exceeds any chunk
      }
      need[end] = chunk + 1;
    }
    return need;
  }

  /// Whether the chunks before this one can hold the layers before `begin`, with at least one layer
  /// each.
  bool holdsBefore(size_t chunk, size_t begin, const std::vector<size_t> &need) const {
    return begin >= chunk && need[begin] <= chunk;
  }

  bool isPossible(double most) const {
    std::vector<size_t> need = chunksNeeded(most);
    for (size_t begin = 0; begin <= layers_; ++begin)
      if (holdsBefore(chunks_ - 1, begin, need) && secondsOf(chunks_ - 1, begin, layers_) <= most)
        return true;
    return false;
  }

  /// The seconds of the longest chunk in the best division, up to rounding. Found by bisection.
  double shortest() const {
    double low = 0, high = until_.back() + request_.before + request_.behind;
    for (int i = 0; i < kHalvings; ++i) {
      double middle = (low + high) / 2;
      (isPossible(middle) ? high : low) = middle;
    }
    return high;
  }

  /// The first layer of a chunk that ends at `end`. The chunk takes at most an equal share of the
  /// rest if the chunks before it can hold the others: long chunks at the front make the step
  /// shorter, since later stages wait for their first microbatch anyway.
  size_t beginOf(size_t chunk, size_t end, double most, const std::vector<size_t> &need) const {
    double left = until_[end] + request_.before + (chunk + 1 == chunks_ ? request_.behind : 0);
    double share = left / static_cast<double>(chunk + 1) * kRounding;
    size_t best = kNowhere;
    size_t last = chunk + 1 == chunks_ ? end : end - 1; // only the last chunk may be empty
    for (size_t begin = last + 1; begin-- > chunk;) {
      double seconds = secondsOf(chunk, begin, end);
      if (seconds > most || (best != kNowhere && seconds > share))
        break;
      if (holdsBefore(chunk, begin, need))
        best = begin;
    }
    SHARDC_CHECK(best != kNowhere, "no begin of chunk {} that ends before layer {}", chunk, end);
    return best;
  }

  static constexpr size_t kNowhere = SIZE_MAX, kInner = SIZE_MAX - 1;
  static constexpr int kHalvings = 60;
  static constexpr double kRounding = 1 + 1e-9;
  /// An embedding must not keep the first stage from having as many layers as the others.
  static constexpr double kSlack = 1.005;
  const StageRequest &request_;
  size_t chunks_, layers_;
  std::vector<double> until_; ///< seconds of all preceding layers
};

/// An even division is preferred if its longest stage takes no longer.
StageLayout divideByTime(const StageRequest &request) {
  int64_t chunks = request.stages * request.chunks;
  if (request.layers < std::max<int64_t>(chunks - 1, 1))
    return refused(Fault::Empty, fmt::format("{} are needed", std::max<int64_t>(chunks - 1, 1)));
  Balancer balancer(request);
  StageLayout layout;
  layout.layers = balancer.run();
  StageLayout even =
      divideEvenly({.layers = request.layers, .stages = request.stages, .chunks = request.chunks});
  bool isNoLonger =
      even.isValid() && balancer.longestStage(even.layers) <= balancer.longestStage(layout.layers);
  return isNoLonger ? even : layout;
}

} // namespace

std::string layoutText(const std::vector<int64_t> &layers) {
  std::string text = "E";
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    text += chunk == 0 ? "" : "|";
    text += layers[chunk] > 1 ? fmt::format("t*{}", layers[chunk]) : layers[chunk] == 1 ? "t" : "";
  }
  return text + "L";
}

StageLayout divideLayers(const StageRequest &request) {
  if (request.stages < 1 || request.chunks < 1)
    return refused(Fault::Remainder, "there is no stage");
  if (request.stages > kChunksMax / request.chunks)
    return refused(Fault::Empty, fmt::format("{} stages with {} chunks exceed the limit of {}",
                                             request.stages, request.chunks, kChunksMax));
  if (std::max({request.layers, request.first, request.last}) > kChunksMax)
    return refused(Fault::Remainder, fmt::format("more than {} layers", kChunksMax));
  if (!request.layout.empty())
    return withoutEmptyStages(divideByText(request));
  if (request.isBalanced)
    return divideByTime(request);
  bool isUneven = request.first > 0 || request.last > 0;
  return withoutEmptyStages(isUneven ? divideBetween(request) : divideEvenly(request));
}

} // namespace shardc::model
