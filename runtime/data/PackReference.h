// The log-probabilities of pairs by a reference model, computed before a run: P.reference.json for
// the packs P.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/PackFiles.h"

namespace shardc::data {

/// Reads, for each row in order, the log-probability of the tokens that count in the loss.
/// DataNotFound, with the command that creates the file, if it does not exist; DataRefused if it
/// belongs to other packs.
Result<std::vector<double>> readPackReference(const PackFiles &files);

/// Parses the text of such a file; errors name `path`.
Result<std::vector<double>> parsePackReference(std::string_view text, const std::string &path,
                                               const PackManifest &manifest);

/// Writes the file. `model` names, in the user's words, the model that computed the numbers.
Status writePackReference(const PackFiles &files, const std::string &model,
                          std::span<const double> logProbabilities);

} // namespace shardc::data
