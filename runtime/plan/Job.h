// The job table of a plan: the typed settings under which it was compiled, each with one default.
// Passes, the verifier, the runtime and checkpoints read these members.
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

/// A field's value as the text of a plan writes it.
using JobValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

/// Identifies a field: one enumerator per row of Job.def, in its order.
enum class JobField : uint16_t {
#define JOB_FIELD(section, type, member, ...) section##_##member,
#include "runtime/plan/Job.def"
};
constexpr size_t kJobFields = 0
#define JOB_FIELD(...) +1
#include "runtime/plan/Job.def"
    ;

/// The range of numbers that a field accepts.
struct JobRange {
  enum class Kind : uint8_t { Any, AtLeast, Between, HalfOpen, Positive };
  Kind kind = Kind::Any;
  double low = 0, high = 0;

  /// Whether the number is in the range.
  bool has(double number) const;
  /// "at least 1", "between 0 and 1"; empty for Any.
  std::string text() const;
};

/// All settings. `job.ddp.ncclUb`, for example, is the value of `ddp.nccl_ub` in the plan, or the
/// default of Job.def if the plan omits it.
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
  using Size = Int; ///< bytes
  using Minutes = Float;
  template <typename T> using Optional = std::optional<T>;
  template <typename T> using List = std::vector<T>;
  using StringList = List<String>;
  using IntList = StringList; ///< numbers as texts, in the spelling of recipes
  using FloatList = StringList;
  using Blend = StringList; ///< paths, or weights and paths alternately

#define JOB_SECTION(member, Type) struct Type {
#define JOB_FIELD(section, type, member, otherwise, ...) type member = otherwise;
#define JOB_SECTION_END(member)                                                                    \
  }                                                                                                \
  member;
#include "runtime/plan/Job.def"

  /// `env.NAME`: environment variables that the run sets, sorted by name.
  std::vector<std::pair<std::string, std::string>> environment;

  using Entry = std::pair<std::string, JobValue>;
  Job();
  Job(const Job &);
  Job(Job &&) noexcept;
  Job &operator=(const Job &);
  Job &operator=(Job &&) noexcept;
  ~Job(); // defined in one file, since code for some hundred members is large
  /// For plans that are built in code. A refused entry is a bug of the caller: see put().
  Job(std::initializer_list<Entry> entries);

  /// Why a value is refused.
  enum class Fault : uint8_t {
    None,
    Unknown, ///< the job has no field with this path
    Type,    ///< its values have another type
    Word,    ///< its enumeration has no such word
    Range,   ///< the number is out of its range
  };
  /// Sets a field or an environment variable. A refused value changes nothing. A whole number is
  /// accepted for a Float.
  [[nodiscard]] Fault set(std::string_view path, const JobValue &value);
  /// Like set(), for values that cannot be refused unless the caller has a bug.
  void put(std::string_view path, const JobValue &value);
  void put(JobField field, const JobValue &value);
  /// Whether the plan's text contains the field: it was set, or differs from its default.
  bool has(JobField field) const;
  /// Resets a field to its default.
  void unset(JobField field);
  /// The field's value; an empty string or list for an Optional without a value.
  JobValue value(JobField field) const;
  /// The word of an enumeration or the text of a String; empty for an Optional without a value.
  std::string text(JobField field) const;
  /// The fields that the plan's text contains and the environment variables, sorted by path.
  std::vector<Entry> entries() const;
  bool operator==(const Job &other) const { return entries() == other.entries(); }

private:
  std::bitset<kJobFields> given_;
};

/// The row of a field in Job.def.
struct JobFieldInfo {
  std::string path;
  std::string_view member;             ///< member of struct Job, such as "ddp.ncclUb"
  std::string_view type;               ///< the type as messages name it, such as "a whole number"
  std::vector<std::string_view> words; ///< words of an enumeration; otherwise empty
  JobRange range;
  std::string_view doc; ///< only for derived fields; Options.def documents options
};
const JobFieldInfo &jobInfo(JobField field);

/// The message for a value that set() refuses.
std::string describeFault(Job::Fault fault, std::string_view path, const JobValue &value);

} // namespace shardc::plan
