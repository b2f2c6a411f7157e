// What a reference model says of pairs, made before a run: P.reference.json beside the packs P.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/PackFiles.h"

namespace shardc::data {

/// The log-probability of what counts in each row, in the order of rows. DataNotFound, with the
/// command that makes it, if there is no file; DataRefused if it is that of other packs.
Result<std::vector<double>> readPackReference(const PackFiles &files);

/// The same of a text; errors name `path`.
Result<std::vector<double>> parsePackReference(std::string_view text, const std::string &path,
                                               const PackManifest &manifest);

/// Writes the file. `model` is what computed the numbers, as the user named it.
Status writePackReference(const PackFiles &files, const std::string &model,
                          std::span<const double> logProbabilities);

} // namespace shardc::data
