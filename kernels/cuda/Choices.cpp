// Choices are stored as hexadecimal text, since files and messages between ranks are text.
#include "kernels/cuda/Choices.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "runtime/base/Crc32.h"

namespace shardc::kernels::cuda {
namespace {

std::string toHex(std::string_view bytes) {
  std::string text;
  for (char c : bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

/// Decodes `text` into `bytes`. Returns false unless it has exactly bytes.size() bytes.
bool fromHex(std::string_view text, std::string &bytes) {
  if (text.size() != 2 * bytes.size())
    return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char *begin = text.data() + 2 * i;
    auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc() || end != begin + 2)
      return false;
    bytes[i] = static_cast<char>(value);
  }
  return true;
}

/// Each line has a checksum, because an algorithm with one wrong bit is a different algorithm.
std::string sumOf(std::string_view text) {
  return fmt::format("{:08x}", crc32(0, text.data(), text.size()));
}

/// Returns the text before the next `end` and removes both from the input.
std::string_view takeUntil(std::string_view &text, char end) {
  size_t at = std::min(text.find(end), text.size());
  std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

} // namespace

/// Times each alternative, and again only those that look faster than the best so far. A later
/// alternative wins only if even its slower time is below the best one by more than the spread of
/// both, so that noise does not decide. Returns `ways` if no alternative works.
size_t fastestBy(size_t ways, const std::function<float(size_t way)> &timeOf) {
  struct Times {
    float low, high;
  };
  std::vector<float> once;
  for (size_t way = 0; way < ways; ++way)
    once.push_back(timeOf(way));
  auto twice = [&](size_t way) {
    float again = timeOf(way);
    return Times{std::min(once[way], again), std::max(once[way], again)};
  };
  size_t best = ways;
  Times bestTimes = {};
  for (size_t way = 0; way < ways; ++way) {
    if (once[way] <= 0 || (best < ways && once[way] >= bestTimes.low))
      continue;
    Times times = twice(way);
    float spread = std::max(times.high - times.low, bestTimes.high - bestTimes.low);
    if (times.low > 0 && (best == ways || times.high + spread < bestTimes.low)) {
      best = way;
      bestTimes = times;
    }
  }
  return best;
}

std::string writeChoices(std::string_view head, std::vector<ChoiceRecord> records) {
  std::sort(records.begin(), records.end(),
            [](const ChoiceRecord &a, const ChoiceRecord &b) { return a.key < b.key; });
  std::string text(head);
  for (const ChoiceRecord &record : records) {
    std::string line = toHex(record.key) + ' ' + toHex(record.choice);
    text += line + ' ' + sumOf(line) + '\n';
  }
  return text;
}

std::string choicesFileName(std::string_view head) {
  constexpr size_t kWordsMax = 120; // file systems allow 255
  std::string words;
  for (char c : head.substr(0, kWordsMax)) {
    bool isUpper = c >= 'A' && c <= 'Z';
    if (isUpper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.')
      words += static_cast<char>(isUpper ? c - 'A' + 'a' : c);
    else if (!words.empty() && words.back() != '-')
      words += '-';
  }
  return fmt::format("products-{}{}{}.txt", words, words.ends_with('-') ? "" : "-", sumOf(head));
}

std::vector<ChoiceRecord> readChoices(std::string_view head, std::string_view text, size_t keyBytes,
                                      size_t choiceBytes) {
  std::vector<ChoiceRecord> records;
  if (!text.starts_with(head))
    return records;
  text.remove_prefix(head.size());
  while (!text.empty()) {
    std::string_view line = takeUntil(text, '\n');
    size_t last = line.rfind(' ');
    if (last == std::string_view::npos || line.substr(last + 1) != sumOf(line.substr(0, last)))
      continue;
    ChoiceRecord record{std::string(keyBytes, '\0'), std::string(choiceBytes, '\0')};
    std::string_view parts = line.substr(0, last);
    std::string_view key = takeUntil(parts, ' ');
    if (fromHex(key, record.key) && fromHex(parts, record.choice))
      records.push_back(std::move(record));
  }
  return records;
}

} // namespace shardc::kernels::cuda
