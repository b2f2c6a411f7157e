// The job table of a plan: the settings under which it was compiled, typed, with one default each.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/DType.h"

namespace shardc::plan {

/// What a field may hold in the text of a plan.
using JobValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

/// One row of Job.def, in its order.
enum class JobField : uint16_t {
#define JOB_FIELD(section, type, member, path, otherwise, range) section##_##member,
#include "runtime/plan/Job.def"
};
constexpr size_t kJobFields = 0
#define JOB_FIELD(section, type, member, path, otherwise, range) +1
#include "runtime/plan/Job.def"
    ;

/// The numbers that a field takes.
struct JobRange {
  enum class Kind : uint8_t { Any, AtLeast, Between, HalfOpen, Positive };
  Kind kind = Kind::Any;
  double low = 0, high = 0;

  bool has(double number) const;
  /// "at least 1", "between 0 and 1"; empty for Any.
  std::string text() const;
};

/// `job.ddp.ncclUb` is what the plan says of `ddp.nccl_ub`, or what a plan means that does not say
/// it.
struct Job {
#define V(enumerator, word) enumerator,
#define ENUM(name, values) enum class name : uint8_t { values };
#include "runtime/plan/JobEnums.def"
#undef ENUM
#undef V

  using Bool = bool;
  using Int = int64_t;
  using Float = double;
  using String = std::string;
  template <typename T> using Optional = std::optional<T>;
  template <typename T> using List = std::vector<T>;

#define JOB_SECTION(member, Type) struct Type {
#define JOB_FIELD(section, type, member, path, otherwise, range) type member = otherwise;
#define JOB_SECTION_END(member)                                                                    \
  }                                                                                                \
  member;
#include "runtime/plan/Job.def"

  /// `env.NAME`: variables that a recipe sets, sorted by name.
  std::vector<std::pair<std::string, std::string>> environment;

  using Entry = std::pair<std::string, JobValue>;
  Job();
  Job(const Job &);
  Job(Job &&) noexcept;
  Job &operator=(const Job &);
  Job &operator=(Job &&) noexcept;
  ~Job(); // with the others in one file: it has some hundred members
  /// For plans that are written in code: every entry has to be one that set() takes.
  Job(std::initializer_list<Entry> entries);

  /// Why a value is refused.
  enum class Fault : uint8_t {
    None,
    Unknown, ///< there is no such field
    Type,    ///< its values have another type
    Word,    ///< its enumeration has no such word
    Range,   ///< the number is out of its range
  };
  /// Gives a field, or a variable, the value; a refused one changes nothing. A whole number is
  /// taken for a Float.
  [[nodiscard]] Fault set(std::string_view path, const JobValue &value);
  /// The same where a refusal is an error of the caller.
  void put(std::string_view path, const JobValue &value);
  void put(JobField field, const JobValue &value);
  /// Whether the plan says it: it was set, or differs from the default.
  bool has(JobField field) const;
  /// Takes a field back: it has its default.
  void unset(JobField field);
  /// An empty string or list for an Optional without a value.
  JobValue value(JobField field) const;
  /// The word of an enumeration or the text of a String; empty for an Optional without a value.
  std::string text(JobField field) const;
  /// What the plan says, variables among it, sorted by path.
  std::vector<Entry> entries() const;
  bool operator==(const Job &other) const { return entries() == other.entries(); }

private:
  std::bitset<kJobFields> given_;
};

/// What Job.def says of a field.
struct JobFieldInfo {
  std::string_view path;
  std::string_view member;             ///< of struct Job: "ddp.ncclUb"
  std::string_view type;               ///< as messages name it: "a whole number"
  std::vector<std::string_view> words; ///< of an enumeration, else empty
  JobRange range;
  std::string_view doc; ///< of what the compiler works out; options have theirs in Options.def
};
const JobFieldInfo &jobInfo(JobField field);

/// What is wrong with a value that set() refuses.
std::string describeFault(Job::Fault fault, std::string_view path, const JobValue &value);

} // namespace shardc::plan
