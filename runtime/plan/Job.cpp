// Reads and writes the fields of a job according to their rows in Job.def: ranges, words, defaults,
// and nearest names for messages.
#include "runtime/plan/Job.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/EditDistance.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

Job::Job() = default;
Job::Job(const Job &) = default;
Job::Job(Job &&) noexcept = default;
Job &Job::operator=(const Job &) = default;
Job &Job::operator=(Job &&) noexcept = default;
Job::~Job() = default;
namespace {

using Fault = Job::Fault;
using Strings = std::vector<std::string>;

constexpr std::string_view kVariablePrefix = "env.";
constexpr size_t kTextShownMax = 64; ///< bytes of a path or word that a message shows

template <typename T> struct ItemOf { using type = T; };
template <typename T> struct ItemOf<std::optional<T>> { using type = T; };
template <typename T> struct ItemOf<std::vector<T>> { using type = T; };
/// The type of one item of a field. Optionals and lists have items of another type than the field.
template <typename T> using Item = typename ItemOf<T>::type;
template <typename T> constexpr bool kIsList = std::is_same_v<T, std::vector<Item<T>>>;

/// The words of an enumeration, by numeric value.
template <typename E> std::span<const std::string_view> wordsOf();
#define V(enumerator, word) word,
#define ENUM(name, values)                                                                         \
  template <> std::span<const std::string_view> wordsOf<Job::name>() {                             \
    static constexpr std::string_view kWords[] = {values};                                         \
    return kWords;                                                                                 \
  }
#include "runtime/plan/JobEnums.def"
#undef ENUM
#undef V
template <> std::span<const std::string_view> wordsOf<DType>() {
#define DTYPE(enumerator, name, bytes) #name,
  static constexpr std::string_view kWords[] = {
#include "runtime/base/DTypes.def"
  };
  return kWords;
}

/// The words of an item's type if it is an enumeration; otherwise none.
template <typename T> std::span<const std::string_view> wordsOfItem() {
  if constexpr (std::is_enum_v<T>)
    return wordsOf<T>();
  else
    return {};
}

/// The type of a field in messages: "'path' takes a whole number".
template <typename T> constexpr std::string_view typeName() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, int64_t>)
    return "a whole number";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (kIsList<T>)
    return std::is_enum_v<Item<T>> ? "a list of words in quotes" : "a list of strings";
  else
    return std::is_enum_v<Item<T>> ? "a word in quotes" : "a string";
}

template <typename E> std::optional<E> parseWord(std::string_view word) {
  std::span<const std::string_view> words = wordsOf<E>();
  auto at = std::ranges::find(words, word);
  return at == words.end() ? std::nullopt
                           : std::optional(static_cast<E>(std::distance(words.begin(), at)));
}

template <typename T> Fault assignNumber(T &field, T number, const JobRange &range) {
  if (!range.has(static_cast<double>(number)))
    return Fault::Range;
  field = number;
  return Fault::None;
}

/// Changes the field only if all items are valid.
template <typename T> Fault assignItems(std::vector<T> &field, const Strings &items) {
  std::vector<T> all;
  for (const std::string &item : items) {
    if constexpr (std::is_enum_v<T>) {
      std::optional<T> word = parseWord<T>(item);
      if (!word)
        return Fault::Word;
      all.push_back(*word);
    } else {
      all.push_back(item);
    }
  }
  field = std::move(all);
  return Fault::None;
}

/// Converts a value to the type of the field: texts to words of an enumeration, and whole numbers
/// to a Float. A refused value leaves the field unchanged.
template <typename T> Fault assign(T &field, const JobValue &value, const JobRange &range) {
  if constexpr (kIsList<T>) {
    const Strings *items = std::get_if<Strings>(&value);
    return items == nullptr ? Fault::Type : assignItems(field, *items);
  } else if constexpr (std::is_enum_v<Item<T>>) {
    const std::string *text = std::get_if<std::string>(&value);
    if (text == nullptr)
      return Fault::Type;
    std::optional<Item<T>> word = parseWord<Item<T>>(*text);
    if (!word)
      return Fault::Word;
    field = *word;
    return Fault::None;
  } else {
    if constexpr (std::is_same_v<T, double>)
      if (const int64_t *whole = std::get_if<int64_t>(&value))
        return assignNumber(field, static_cast<double>(*whole), range);
    const T *held = std::get_if<T>(&value);
    if (held == nullptr)
      return Fault::Type;
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
      return assignNumber(field, *held, range);
    else
      field = *held;
    return Fault::None;
  }
}

template <typename E> std::string wordOf(E value) {
  std::span<const std::string_view> words = wordsOf<E>();
  auto index = static_cast<size_t>(value);
  return std::string(index < words.size() ? words[index] : "?");
}

template <typename T> JobValue toValue(const T &field) {
  if constexpr (kIsList<T> && std::is_enum_v<Item<T>>) {
    Strings words;
    for (Item<T> item : field)
      words.push_back(wordOf(item));
    return words;
  } else if constexpr (std::is_enum_v<T>) {
    return wordOf(field);
  } else if constexpr (std::is_enum_v<Item<T>>) {
    return field ? wordOf(*field) : std::string();
  } else {
    return field;
  }
}

/// The range column of Job.def.
constexpr JobRange any{};
constexpr JobRange positive{JobRange::Kind::Positive};
constexpr JobRange atLeast(double low) { return {JobRange::Kind::AtLeast, low}; }
constexpr JobRange between(double low, double high) { return {JobRange::Kind::Between, low, high}; }
constexpr JobRange halfOpen(double low, double high) {
  return {JobRange::Kind::HalfOpen, low, high};
}

/// The operations on fields of one type. They take a field by its address.
struct FieldType {
  std::string_view name;
  std::span<const std::string_view> (*words)();
  JobValue (*get)(const void *field);
  Fault (*set)(void *field, const JobValue &, const JobRange &);
  void (*copy)(void *to, const void *from);
  bool (*isSame)(const void *, const void *);
};

template <typename T>
constexpr FieldType kFieldType{
    typeName<T>(),
    wordsOfItem<Item<T>>,
    [](const void *field) { return toValue(*static_cast<const T *>(field)); },
    [](void *field, const JobValue &value, const JobRange &range) {
      return assign(*static_cast<T *>(field), value, range);
    },
    [](void *to, const void *from) { *static_cast<T *>(to) = *static_cast<const T *>(from); },
    [](const void *a, const void *b) {
      return *static_cast<const T *>(a) == *static_cast<const T *>(b);
    }};

/// A row of Job.def. Code per row is kept small, since the table is long.
struct Row {
  std::string_view member;
  JobRange range;
  std::string_view doc;
  const FieldType *type;
  const void *(*at)(const Job &);
  const char *name = nullptr;

  void *in(Job &job) const { return const_cast<void *>(at(job)); }
};

template <auto Section, auto Member> const void *addressIn(const Job &job) {
  return &(job.*Section.*Member);
}

#define JOB_ROW(section, member, range, doc, ...)                                                  \
  {#section "." #member,                                                                           \
   range,                                                                                          \
   doc,                                                                                            \
   &kFieldType<decltype(Job::section.member)>,                                                     \
   addressIn<&Job::section, &decltype(Job::section)::member>,                                      \
   __VA_ARGS__},
#define JOB_FIELD(section, type, member, otherwise, range, ...)                                    \
  JOB_ROW(section, member, range, "", __VA_ARGS__)
#define JOB_DERIVED(type, member, name, otherwise, range, doc)                                     \
  JOB_ROW(derived, member, range, doc, name)
constexpr Row kRows[] = {
#include "runtime/plan/Job.def"
};
#undef JOB_ROW
static_assert(std::size(kRows) == kJobFields);

/// `model.numLayers` has the path `model.num_layers` if the row has no other name.
std::string pathOf(const Row &row) {
  if (row.name != nullptr) {
    std::string section(row.member.substr(0, row.member.find('.')));
    return *row.name == '\0' ? section : section + "." + row.name;
  }
  std::string path;
  for (char c : row.member)
    if (c >= 'A' && c <= 'Z')
      path += {'_', static_cast<char>(c - 'A' + 'a')};
    else
      path += c;
  return path;
}

const Row &rowOf(JobField field) { return kRows[static_cast<size_t>(field)]; }

std::string_view pathOfField(JobField field) { return jobInfo(field).path; }

/// All fields, sorted by path.
const std::vector<JobField> &sorted() {
  static const std::vector<JobField> order = [] {
    std::vector<JobField> fields;
    for (size_t i = 0; i < kJobFields; ++i)
      fields.push_back(static_cast<JobField>(i));
    std::ranges::sort(fields, {}, pathOfField);
    return fields;
  }();
  return order;
}

std::optional<JobField> find(std::string_view path) {
  auto at = std::ranges::lower_bound(sorted(), path, {}, pathOfField);
  return at != sorted().end() && pathOfField(*at) == path ? std::optional(*at) : std::nullopt;
}

const Job &defaults() {
  static const Job job;
  return job;
}

bool isVariable(std::string_view path) {
  return path.starts_with(kVariablePrefix) && path.size() > kVariablePrefix.size();
}

std::string shown(std::string_view text) {
  bool isCut = text.size() > kTextShownMax;
  return printable(text.substr(0, kTextShownMax)) + (isCut ? "..." : "");
}

std::string numberText(double number) {
  return std::abs(number) < 1e15 && number == std::trunc(number)
             ? fmt::format("{}", static_cast<int64_t>(number))
             : fmt::format("{}", number);
}

std::string numberText(const JobValue &value) {
  const int64_t *whole = std::get_if<int64_t>(&value);
  const double *number = std::get_if<double>(&value);
  return whole != nullptr ? fmt::format("{}", *whole) : number ? numberText(*number) : "";
}

/// The path that is nearest to `path`, if a single one is within an edit distance of a third of its
/// letters; empty otherwise.
std::string_view nearest(std::string_view path) {
  unsigned limit = misspeltDistanceMax(path.size());
  std::string_view found;
  unsigned least = limit + 1;
  for (JobField field : sorted())
    if (unsigned distance = editDistance(path, jobInfo(field).path, limit); distance < least) {
      least = distance;
      found = jobInfo(field).path;
    }
  return found;
}

/// The first word of the value that the enumeration lacks.
std::string_view unknownWord(const JobFieldInfo &field, const JobValue &value) {
  auto isKnown = [&](std::string_view word) {
    return std::ranges::find(field.words, word) != field.words.end();
  };
  if (const auto *word = std::get_if<std::string>(&value))
    return *word;
  if (const auto *words = std::get_if<Strings>(&value))
    for (const std::string &word : *words)
      if (!isKnown(word))
        return word;
  return {};
}

std::string_view typeOf(const JobValue &value) {
  return std::visit([](const auto &held) { return typeName<std::decay_t<decltype(held)>>(); },
                    value);
}

} // namespace

bool JobRange::has(double number) const {
  switch (kind) {
  case Kind::Any:
    return true;
  case Kind::AtLeast:
    return number >= low;
  case Kind::Between:
    return number >= low && number <= high;
  case Kind::HalfOpen:
    return number >= low && number < high;
  case Kind::Positive:
    return number > 0;
  }
  return false;
}

std::string JobRange::text() const {
  switch (kind) {
  case Kind::Any:
    return "";
  case Kind::AtLeast:
    return fmt::format("at least {}", numberText(low));
  case Kind::Between:
    return fmt::format("between {} and {}", numberText(low), numberText(high));
  case Kind::HalfOpen:
    return fmt::format("at least {} and below {}", numberText(low), numberText(high));
  case Kind::Positive:
    return "greater than 0";
  }
  return "";
}

const JobFieldInfo &jobInfo(JobField field) {
  static const std::vector<JobFieldInfo> all = [] {
    std::vector<JobFieldInfo> infos;
    for (const Row &row : kRows) {
      std::span<const std::string_view> words = row.type->words();
      infos.push_back({pathOf(row),
                       row.member,
                       row.type->name,
                       {words.begin(), words.end()},
                       row.range,
                       row.doc});
    }
    return infos;
  }();
  return all[static_cast<size_t>(field)];
}

Job::Job(std::initializer_list<Entry> entries) {
  for (const Entry &entry : entries)
    put(entry.first, entry.second);
}

Job::Fault Job::set(std::string_view path, const JobValue &value) {
  if (isVariable(path)) {
    const std::string *text = std::get_if<std::string>(&value);
    if (text == nullptr)
      return Fault::Type;
    std::string_view name = path.substr(kVariablePrefix.size());
    // A run refuses it, and what prints plans must not show it.
    std::string held = useOfVariable(name) == VariableUse::Secret ? "***" : *text;
    auto at = std::ranges::lower_bound(environment, name, {},
                                       &std::pair<std::string, std::string>::first);
    if (at != environment.end() && at->first == name)
      at->second = std::move(held);
    else
      environment.emplace(at, name, std::move(held));
    return Fault::None;
  }
  std::optional<JobField> field = find(path);
  if (!field)
    return Fault::Unknown;
  const Row &row = rowOf(*field);
  Fault fault = row.type->set(row.in(*this), value, row.range);
  if (fault == Fault::None)
    given_.set(static_cast<size_t>(*field));
  return fault;
}

void Job::put(std::string_view path, const JobValue &value) {
  Fault fault = set(path, value);
  SHARDC_CHECK(fault == Fault::None, "{}", describeFault(fault, path, value));
}

void Job::put(JobField field, const JobValue &value) { put(jobInfo(field).path, value); }

bool Job::has(JobField field) const {
  const Row &row = rowOf(field);
  return given_[static_cast<size_t>(field)] || !row.type->isSame(row.at(*this), row.at(defaults()));
}

void Job::unset(JobField field) {
  const Row &row = rowOf(field);
  row.type->copy(row.in(*this), row.at(defaults()));
  given_.reset(static_cast<size_t>(field));
}

JobValue Job::value(JobField field) const {
  const Row &row = rowOf(field);
  return row.type->get(row.at(*this));
}

std::string Job::text(JobField field) const {
  JobValue held = value(field);
  const std::string *text = std::get_if<std::string>(&held);
  SHARDC_CHECK(text != nullptr, "'{}' is no text", jobInfo(field).path);
  return *text;
}

std::vector<Job::Entry> Job::entries() const {
  std::vector<Entry> all;
  for (JobField field : sorted())
    if (has(field))
      all.emplace_back(jobInfo(field).path, value(field));
  for (const auto &[name, text] : environment)
    all.emplace_back(std::string(kVariablePrefix) + name, text);
  std::ranges::sort(all, {}, &Entry::first);
  return all;
}

std::string describeFault(Job::Fault fault, std::string_view path, const JobValue &value) {
  std::optional<JobField> field = find(path);
  switch (fault) {
  case Fault::None:
    return "";
  case Fault::Unknown: {
    std::string_view meant = nearest(path);
    return fmt::format("unknown option '{}' in 'job'{}", shown(path),
                       meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant));
  }
  case Fault::Type:
    return fmt::format("option '{}' takes {}, found {}", shown(path),
                       field ? jobInfo(*field).type : typeName<std::string>(), typeOf(value));
  case Fault::Word:
    return fmt::format("'{}' is not a value of '{}'; it has {}",
                       shown(unknownWord(jobInfo(*field), value)), path,
                       fmt::join(jobInfo(*field).words, "|"));
  case Fault::Range:
    return fmt::format("option '{}' is {}; it needs to be {}", path, numberText(value),
                       jobInfo(*field).range.text());
  }
  return "";
}

} // namespace shardc::plan
