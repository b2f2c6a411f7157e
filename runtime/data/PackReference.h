// The log-probabilities of pairs by a reference model, computed before a run: P.reference.json for
// the packs P.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/PackFiles.h"

namespace shardc::data {

struct PackReference {
  std::string model;                          ///< the model, in the words of the user who named it
  std::map<std::string, std::string> weights; ///< fingerprints by tensor (checkpoint/BaseRecord.h)
  std::vector<double> logProbabilities;       ///< of each row in order, over the tokens that count
};

/// DataNotFound, with the command that creates the file, if it does not exist; DataRefused if it
/// belongs to other packs.
Result<PackReference> readPackReference(const PackFiles &files);

/// Parses the text of such a file; errors name `path`.
Result<PackReference> parsePackReference(std::string_view text, const std::string &path,
                                         const PackManifest &manifest);

Status writePackReference(const PackFiles &files, const PackReference &reference);

/// Refuses a reference by another model than the one with these fingerprints.
Status checkReference(const PackFiles &files, const std::map<std::string, std::string> &weights);

} // namespace shardc::data
