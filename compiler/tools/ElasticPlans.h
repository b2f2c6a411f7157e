// Plans of an elastic run (`--elastic`): one per number of ranks, with the same model and global
// batch size.
#pragma once

#include "compiler/tools/Session.h"

namespace shardc::cli {
class Command;
}

namespace shardc::tools {

/// The option `--elastic` of a command, and the sizes that it lists.
struct ElasticOption {
  std::string text;
  std::vector<int64_t> sizes; ///< largest first; empty if not given

  void addTo(cli::Command &command);
  /// Parses the value; kUsage, with a message on standard error, if it is malformed.
  ExitStatus read();
};

/// Compiles, checks and verifies the plans of all sizes below the first one, which is the size of
/// `config` itself. Empty if a size has no plan; an error then names the nearest sizes that have
/// one.
std::optional<std::vector<Compiled>> compileSizes(const config::Config &config,
                                                  const std::vector<int64_t> &sizes,
                                                  const CommonOptions &common, DiagEngine &diags,
                                                  const CompileOptions &options = {});

} // namespace shardc::tools
