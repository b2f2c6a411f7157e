#include "runtime/base/Rates.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/Json.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/base/Status.h"

namespace shardc {
namespace {

constexpr std::string_view kMachine = "machine";
constexpr int64_t kFormat = 1; ///< format version of a file, in its first line
constexpr int64_t kSizeMax = int64_t{1} << 50;
constexpr double kSecondsMax = 3600;
constexpr size_t kTextMax = 400; ///< characters of a name
/// Largest relative difference between a printed rate and the rate that follows from sizes and
/// seconds.
constexpr double kRateError = 0.001;

const RateKindInfo kKinds[] = {
#define RATE_KIND(enumerator, name, unit, unitSize, ops, sizes, doc)                               \
  {name, unit, unitSize, ops, sizes, doc},
#include "runtime/base/RateKinds.def"
};

template <typename List> std::string listed(const List &names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

bool isOneOf(const std::vector<std::string_view> &names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::optional<RateKind> findKind(std::string_view name) {
  for (size_t k = 0; k < kRateKinds; ++k)
    if (kKinds[k].name == name)
      return static_cast<RateKind>(k);
  return std::nullopt;
}

constexpr size_t kLineMax = 4096; ///< characters of a line

/// A value as messages show it.
std::string shown(const nlohmann::json &value) {
  constexpr size_t kShown = 40;
  if (value.is_structured())
    return value.is_array() ? "a list" : "an object";
  std::string text = toText(value);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

/// Reads one line, and keeps the first error.
class LineReader {
public:
  explicit LineReader(std::string_view line) : json_(parseJson(line)) {
    if (json_.is_discarded())
      fail("this is no JSON");
    else if (!json_.is_object())
      fail("a line is a JSON object");
  }

  bool isOk() const { return fault_.empty(); }
  const std::string &fault() const { return fault_; }

  template <typename... Args> void fail(fmt::format_string<Args...> text, Args &&...args) {
    if (fault_.empty())
      fault_ = fmt::format(text, std::forward<Args>(args)...);
  }

  std::string text(std::string_view key) {
    const nlohmann::json *value = take(key);
    if (!value)
      return "";
    if (!value->is_string()) {
      fail("'{}' is {}; it must be a text", key, shown(*value));
      return "";
    }
    auto text = value->get<std::string>();
    bool isPrintable = std::ranges::none_of(text, [](char c) { return c >= 0 && c < ' '; });
    if (text.size() > kTextMax || !isPrintable)
      fail("'{}' has {} characters; it takes up to {} that can be printed", key, text.size(),
           kTextMax);
    return text;
  }

  int64_t number(std::string_view key) {
    const nlohmann::json *value = take(key);
    if (!value)
      return 1;
    if (!value->is_number_integer() || *value < 1 || *value > kSizeMax) {
      fail("'{}' is {}; it must be a whole number from 1 to {}", key, shown(*value), kSizeMax);
      return 1;
    }
    return value->get<int64_t>();
  }

  double positive(std::string_view key, double most) {
    const nlohmann::json *value = take(key);
    if (!value)
      return 1;
    if (!value->is_number() || !(value->get<double>() > 0) || value->get<double>() > most) {
      fail("'{}' is {}; it must be a number above 0, and {:g} at most", key, shown(*value), most);
      return 1;
    }
    return value->get<double>();
  }

  /// Reports fields that were not read as unknown.
  void end(std::string_view kind) {
    if (!isOk())
      return;
    for (const auto &[key, value] : json_.items())
      if (!isOneOf(seen_, key))
        return fail("unknown key {} in a line of kind '{}', which has {}", shown(key), kind,
                    listed(seen_));
  }

private:
  const nlohmann::json *take(std::string_view key) {
    seen_.push_back(key);
    if (!isOk())
      return nullptr;
    auto at = json_.find(std::string(key));
    if (at != json_.end())
      return &*at;
    fail("there is no '{}'", key);
    return nullptr;
  }

  nlohmann::json json_;
  std::vector<std::string_view> seen_;
  std::string fault_;
};

RatedMachine readMachine(LineReader &line) {
  RatedMachine machine;
  if (int64_t format = line.number("format"); format != kFormat)
    line.fail("the format is {}; this program reads {}", format, kFormat);
  machine.backend = line.text("backend");
  machine.device = line.text("device");
  machine.ranks = line.number("ranks");
  machine.nodes = line.number("nodes");
  machine.versions = line.text("versions");
  line.end(kMachine);
  return machine;
}

void checkMembers(const Rate &rate, LineReader &line) {
  int64_t members = rate.size("members"), inNode = rate.size("in_node");
  if (members < 2 || inNode > members || members % inNode != 0)
    line.fail("{} members with {} on each node are no group", members, inNode);
}

/// Reads the rest of a line after its kind. Faults are recorded in `line`; the rate is only valid
/// if there are none.
Rate readRate(RateKind kind, LineReader &line, const RatedMachine &machine) {
  const RateKindInfo &info = infoOf(kind);
  Rate rate;
  rate.kind = kind;
  rate.op = line.text("op");
  if (line.isOk() && !isOneOf(info.ops, rate.op))
    line.fail("'op' is {}; of kind '{}' it is one of {}", shown(rate.op), info.name,
              listed(info.ops));
  std::string dtype = line.text("dtype");
  if (std::optional<DType> found = parseDType(dtype); found)
    rate.dtype = *found;
  else
    line.fail("'dtype' is {}, which is no element type", shown(dtype));
  for (size_t i = 0; i < info.sizes.size(); ++i)
    rate.sizes[i] = line.number(info.sizes[i]);
  if (kind == RateKind::Collective) {
    std::string group = line.text("group");
    checkMembers(rate, line);
    if (line.isOk() && group != rate.group())
      line.fail("'group' is {}; {} members with {} on each node are '{}'", shown(group),
                rate.sizes[0], rate.sizes[1], rate.group());
  }
  rate.seconds = line.positive("seconds", kSecondsMax);
  double said = line.positive("rate", 1e9);
  if (std::string device = line.text("device"); line.isOk() && device != machine.device)
    line.fail("'device' is {}, but the first line says '{}'", shown(device), machine.device);
  line.end(info.name);
  if (line.isOk() && std::abs(said / rate.rate() - 1) > kRateError)
    line.fail("'rate' is {:g}, but sizes and seconds give {:.6g} {}", said, rate.rate(), info.unit);
  return rate;
}

/// The bytes that one member receives.
double bytesReceived(const Rate &rate) {
  auto members = static_cast<double>(rate.size("members"));
  auto bytes = static_cast<double>(rate.size("bytes"));
  if (rate.op == "send")
    return bytes;
  double parts = (members - 1) / members * bytes;
  return rate.op == "all_reduce" ? 2 * parts : parts;
}

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char &c : out)
    c = c == '-' || c == '_' ? ' ' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ' ' + out + ' ';
}

Rate workOf(RateKind kind, std::string op, DType dtype, std::initializer_list<int64_t> sizes) {
  Rate rate;
  rate.kind = kind;
  rate.op = std::move(op);
  rate.dtype = dtype;
  std::ranges::copy(sizes, rate.sizes.begin());
  return rate;
}

} // namespace

const RateKindInfo &infoOf(RateKind kind) { return kKinds[static_cast<size_t>(kind)]; }

int64_t Rate::size(std::string_view name) const {
  const std::vector<std::string_view> &names = infoOf(kind).sizes;
  auto at = std::ranges::find(names, name);
  SHARDC_CHECK(at != names.end(), "a rate of kind {} has no size '{}'", infoOf(kind).name, name);
  return sizes[static_cast<size_t>(at - names.begin())];
}

double Rate::work() const {
  auto of = [this](std::string_view name) { return static_cast<double>(size(name)); };
  switch (kind) {
  case RateKind::Product:
    return 2 * of("m") * of("n") * of("k");
  case RateKind::Attention: // two products, five with gradients; half of the scores are masked
    return (op == "attention" ? 2 : 5) * of("batch") * of("heads") * of("positions") *
           of("positions") * of("channels");
  case RateKind::Memory:
    return of("bytes");
  case RateKind::Collective:
    return bytesReceived(*this);
  }
  return 0;
}

double Rate::rate() const { return work() / seconds / infoOf(kind).unitSize; }

bool Rate::isLike(const Rate &other) const {
  return kind == other.kind && op == other.op && dtype == other.dtype && sizes == other.sizes;
}

std::string_view Rate::group() const {
  if (kind != RateKind::Collective)
    return "";
  int64_t members = size("members"), inNode = size("in_node");
  return inNode == members ? "node" : inNode == 1 ? "nodes" : "all";
}

std::string Rate::text() const {
  std::string out = fmt::format("{} {} {}", infoOf(kind).name, op, dtypeName(dtype));
  for (size_t i = 0; i < infoOf(kind).sizes.size(); ++i)
    out += fmt::format(" {}", sizes[i]);
  return out;
}

std::string Rate::words() const { return fmt::format("{} {:.6g}", text(), seconds); }

/// The words are: kind, op, element type, the sizes of this kind, and the seconds.
std::optional<Rate> Rate::ofWords(std::string_view words) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= words.size();) {
    size_t end = std::min(words.find(' ', begin), words.size());
    parts.push_back(words.substr(begin, end - begin));
    begin = end + 1;
  }
  std::optional<RateKind> kind = findKind(parts[0]);
  if (!kind || parts.size() != 4 + infoOf(*kind).sizes.size())
    return std::nullopt;
  std::optional<DType> dtype = parseDType(parts[2]);
  Rate rate;
  if (!dtype || !isOneOf(infoOf(*kind).ops, parts[1]) || !parseNumber(parts.back(), rate.seconds) ||
      !(rate.seconds > 0) || rate.seconds > kSecondsMax)
    return std::nullopt;
  rate.kind = *kind;
  rate.op = parts[1];
  rate.dtype = *dtype;
  for (size_t i = 0; i < infoOf(*kind).sizes.size(); ++i)
    if (!parseNumber(parts[3 + i], rate.sizes[i]) || rate.sizes[i] < 1 || rate.sizes[i] > kSizeMax)
      return std::nullopt;
  bool isGroup =
      *kind != RateKind::Collective || (rate.sizes[0] > 1 && rate.sizes[1] <= rate.sizes[0]);
  return isGroup ? std::optional(rate) : std::nullopt;
}

std::optional<RateFile> parseRates(std::string_view text, RateFault &fault) {
  RateFile file;
  bool hasMachine = false;
  auto refuse = [&fault](size_t line, std::string why) {
    fault = {line, std::move(why)};
    return std::nullopt;
  };
  size_t number = 0;
  for (std::string_view left = text; !left.empty();) {
    size_t end = std::min(left.find('\n'), left.size());
    std::string_view whole = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    if (++number > kRateLinesMax)
      return refuse(number, fmt::format("a file has up to {} lines", kRateLinesMax));
    if (whole.empty())
      return refuse(number, "the line is empty");
    if (whole.size() > kLineMax)
      return refuse(number, fmt::format("the line has {} characters; it takes up to {}",
                                        whole.size(), kLineMax));
    LineReader line(whole);
    std::string kind = line.text("kind");
    std::optional<RateKind> found = findKind(kind);
    // The first line describes the machine. Each of the others has one rate.
    if (line.isOk() && kind == kMachine && !hasMachine) {
      hasMachine = true;
      file.machine = readMachine(line);
    } else if (line.isOk() && !hasMachine) {
      line.fail("the first line has the kind '{}'; this one has {}", kMachine, shown(kind));
    } else if (line.isOk() && !found) {
      if (kind == kMachine)
        line.fail("kind '{}' is only for the first line", kind);
      else
        line.fail("unknown kind {}; kinds are product, attention, memory and collective",
                  shown(kind));
    } else if (line.isOk()) {
      Rate rate = readRate(*found, line, file.machine);
      auto same = std::ranges::find_if(file.rates, [&](const Rate &r) { return r.isLike(rate); });
      if (line.isOk() && same != file.rates.end())
        line.fail("'{}' is in line {} too", rate.text(),
                  file.lines[static_cast<size_t>(same - file.rates.begin())]);
      file.rates.push_back(std::move(rate));
      file.lines.push_back(number);
    }
    if (!line.isOk())
      return refuse(number, line.fault());
  }
  if (!hasMachine)
    return refuse(1, "the file is empty");
  return file;
}

std::string printRates(const RateFile &file) {
  nlohmann::ordered_json machine = {{"kind", kMachine},
                                    {"format", kFormat},
                                    {"backend", file.machine.backend},
                                    {"device", file.machine.device},
                                    {"ranks", file.machine.ranks},
                                    {"nodes", file.machine.nodes},
                                    {"versions", file.machine.versions}};
  std::string text = toText(machine) + "\n";
  for (const Rate &rate : file.rates) {
    const RateKindInfo &info = infoOf(rate.kind);
    nlohmann::ordered_json line = {
        {"kind", info.name}, {"op", rate.op}, {"dtype", dtypeName(rate.dtype)}};
    for (size_t i = 0; i < info.sizes.size(); ++i)
      line[std::string(info.sizes[i])] = rate.sizes[i];
    if (rate.kind == RateKind::Collective)
      line["group"] = rate.group();
    line["seconds"] = rate.seconds;
    line["rate"] = std::stod(fmt::format("{:.6g}", rate.rate()));
    line["device"] = file.machine.device;
    text += toText(line) + "\n";
  }
  return text;
}

/// Whether consecutive words, without the blanks between them, are `word`: `rtx 4090` is `rtx4090`.
/// `words` begins and ends with a blank.
static bool hasWord(std::string_view words, std::string_view word) {
  for (size_t begin = words.find(' '); begin != std::string_view::npos;
       begin = words.find(' ', begin + 1)) {
    size_t at = begin + 1, equal = 0;
    for (; at < words.size() && equal < word.size(); ++at)
      if (words[at] == word[equal])
        ++equal;
      else if (words[at] != ' ')
        break;
    if (equal == word.size() && at < words.size() && words[at] == ' ')
      return true;
  }
  return false;
}

bool isGpuOfKind(std::string_view name, std::string_view kind) {
  std::string words = lowered(name), wanted = lowered(kind);
  for (size_t begin = 1; begin < wanted.size();) {
    size_t end = wanted.find(' ', begin);
    if (!hasWord(words, std::string_view(wanted).substr(begin, end - begin)))
      return false;
    begin = end + 1;
  }
  return true;
}

std::vector<Rate> computeGrid(bool isQuick) {
  using enum RateKind;
  constexpr int64_t kMiB = int64_t{1} << 20;
  std::vector<Rate> grid;
  for (DType dtype : {DType::BF16, DType::F16, DType::F32, DType::F8E4M3})
    for (int64_t extent : {512, 1024, 2048, 4096, 8192}) {
      bool isEasy = dtype == DType::BF16 && (extent == 1024 || extent == 4096);
      if (!isQuick || isEasy)
        grid.push_back(workOf(Product, dtype == DType::F8E4M3 ? "matmul_scaled" : "matmul", dtype,
                              {extent, extent, extent}));
    }
  constexpr int64_t kRows = 4096, kHeads = 8, kGroups = 2;
  for (DType dtype : {DType::BF16, DType::F32})
    for (int64_t channels : {64, 128})
      for (const char *op : {"attention", "attention_bwd"})
        for (int64_t positions : {512, 2048, 8192, 32'768}) {
          bool isLong = dtype == DType::F32 && positions > 2048; // plain kernels would take seconds
          bool isEasy = dtype == DType::BF16 && channels == 128 && positions == 512;
          if (!isLong && (!isQuick || isEasy))
            grid.push_back(workOf(
                Attention, op, dtype,
                {std::max<int64_t>(kRows / positions, 1), positions, kHeads, kGroups, channels}));
        }
  for (const char *op : {"copy", "add", "to_device", "to_host"})
    for (int64_t mib : {1, 16, 256})
      if (!isQuick || mib == 256)
        grid.push_back(workOf(Memory, op, DType::BF16, {mib * kMiB}));
  return grid;
}

std::vector<Rate> collectiveGrid(int64_t members, int64_t inNode, bool isQuick) {
  std::vector<Rate> grid;
  for (std::string_view op : infoOf(RateKind::Collective).ops)
    for (int64_t kib : {256, 1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024}) {
      bool isQuickSize = kib == 1024 || kib == 64 * 1024;
      bool isPair = op != "send" || members == 2;
      if (isPair && (!isQuick || isQuickSize))
        grid.push_back(workOf(RateKind::Collective, std::string(op), DType::BF16,
                              {members, inNode, kib << 10}));
    }
  return grid;
}

} // namespace shardc
