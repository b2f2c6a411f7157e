// Reads a Hugging Face `config.json`: its architecture, the fields of its text model, and which
// fields change nothing and may therefore be ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Report.h"
#include "runtime/base/Status.h"
#include "runtime/checkpoint/HfFields.h"

namespace shardc::checkpoint {

/// Facts about a file that are known before reading it.
struct HfReading {
  /// Fields that the user declares to be irrelevant. A field of a nested object has the object's
  /// name and a dot before its own.
  std::vector<std::string> accepted = {};
  bool wasImported = false; ///< an import has accepted all unknown fields
};

/// Why a file is refused, and which field causes it; empty if none does.
struct HfFault {
  std::string field;
  Status status;
};
using HfFaults = std::vector<HfFault>;
/// All faults as one error with the id of the first one; ok if there are none.
Status statusOf(const HfFaults &faults);

/// A `config.json` that was read and accepted.
struct HfFile {
  std::string path; ///< file name for messages
  HfArch arch = HfArch::Llama;
  /// Fields of the text model that the library reads, which are all that code may read.
  nlohmann::json fields = nlohmann::json::object();
  nlohmann::json said = {};   ///< all its fields as they are in the file, except accepted ones
  std::string prefix = {};    ///< "text_config." if they are nested
  std::string outerType = {}; ///< model type of the outer model; empty if there is none
  std::vector<std::string> unread = {};  ///< fields that the library does not read
  std::vector<std::string> outside = {}; ///< fields of the outer model's other parts
  std::string otherClass = {};           ///< `architectures` if no class in it is known
  bool saysTied = true; ///< false: `tie_word_embeddings` is a default, so tensors may differ

  /// The padding token, whose embedding the library does not train.
  std::optional<int64_t> padding() const;
};

/// Reads the text of a `config.json`. Errors: HfArchitectureUnknown for the model type;
/// HfFieldUnknown for all fields that may change what the model computes; HfSettingRefused for each
/// value that no recipe supports; HfAcceptRefused for an accepted field that a recipe needs or that
/// the file lacks. Fields that are null count as missing. `faults`, if not null, receives each
/// fault.
Result<HfFile> readHfFile(std::string_view text, const std::string &path,
                          const HfReading &reading = {}, HfFaults *faults = nullptr);

/// Remarks for an import of the file: fields that it ignores, and differences from the library's
/// behaviour.
std::vector<Report> hfRemarks(const HfFile &file);

/// A value on one line, shortened; characters beyond ASCII are escaped.
std::string shownHfValue(const nlohmann::json &value);
/// The names, or the first of many, in quotes on one line.
std::string shownHfNames(const std::vector<std::string> &names);

} // namespace shardc::checkpoint
