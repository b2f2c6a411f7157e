// A Hugging Face `config.json` as the fields of its text model: of which architecture they are,
// what the file has beside them, and which of them change nothing.
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

/// What is known of a file beforehand.
struct HfReading {
  /// Fields that the user says change nothing; with the name of their object and a dot before it.
  std::vector<std::string> accepted = {};
  bool wasImported = false; ///< an import has accepted all fields that are not known
};

/// Why a file is refused, and the field to blame; empty if no field is.
struct HfFault {
  std::string field;
  Status status;
};
using HfFaults = std::vector<HfFault>;
/// All faults as one error, with the id of the first; ok without one.
Status statusOf(const HfFaults &faults);

struct HfFile {
  std::string path; ///< where messages say that the text is from
  HfArch arch = HfArch::Llama;
  nlohmann::json fields = nlohmann::json::object(); ///< of the text model alone, nothing accepted
  std::string prefix = {};                          ///< "text_config." where they are in there
  std::string outerType = {}; ///< the model type of what has the text as a part; empty without one
  std::vector<std::string> unread = {};  ///< fields that the library does not read
  std::vector<std::string> outside = {}; ///< fields of the other parts
  bool saysTied = true; ///< false: `tie_word_embeddings` is a default, and tensors may differ

  /// The token whose embedding the library does not train.
  std::optional<int64_t> padding() const;
};

/// Reads the text of a `config.json`. HfArchitectureUnknown for the model type, HfFieldUnknown for
/// all fields that may change what the model computes, HfSettingRefused for each value that no
/// recipe has, HfAcceptRefused for an accepted field that a recipe needs or that is not there.
/// Fields that are null say nothing. `faults` receives each fault, if not null.
Result<HfFile> readHfFile(std::string_view text, const std::string &path,
                          const HfReading &reading = {}, HfFaults *faults = nullptr);

/// The remarks of an import of the file: on fields that it ignores, and on different behaviour of
/// the library.
std::vector<Report> hfRemarks(const HfFile &file);

/// A value in one line, shortened; characters that are not ASCII are escaped.
std::string shownHfValue(const nlohmann::json &value);

} // namespace shardc::checkpoint
