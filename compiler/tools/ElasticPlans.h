// Plans of a run that may go on with fewer ranks (`--elastic`): one for each number of them, with
// the same model and global batch.
#pragma once

#include "compiler/tools/Session.h"

namespace shardc::cli {
class Command;
}

namespace shardc::tools {

/// `--elastic` of a command.
struct ElasticOption {
  std::string text;
  std::vector<int64_t> sizes; ///< largest first; empty where it was not given

  void addTo(cli::Command &command);
  /// Reads the text; kUsage, with a message on standard error, if it is none.
  ExitStatus read();
};

/// The plans of the sizes below the first, which is that of the configuration; accepted and
/// verified like its own. Nothing where there is not one for each, which is reported with the
/// nearest sizes that have one.
std::optional<std::vector<Compiled>> compileSizes(const config::Config &config,
                                                  const std::vector<int64_t> &sizes,
                                                  const CommonOptions &common, DiagEngine &diags,
                                                  const CompileOptions &options = {});

} // namespace shardc::tools
