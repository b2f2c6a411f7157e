// The language server: reads messages until `exit`, keeps the open documents and replies. It
// handles one message at a time, since the analysis of a recipe takes only milliseconds.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "compiler/lsp/Analysis.h"
#include "compiler/lsp/Transport.h"

namespace shardc::lsp {

class Server {
public:
  Server(Transport &transport, CompileStep further, config::DataMeter measure = {})
      : transport_(transport), further_(std::move(further)), measure_(std::move(measure)) {}

  /// Serves until `exit` or the end of the input. Returns true if the client sent `shutdown` first,
  /// as the protocol requires.
  bool run();

  /// Handles one message; returns false when the server must stop. Public for tests and benchmarks.
  bool handle(const std::string &text);

private:
  using Json = nlohmann::json;

  void request(const Json &message, const std::string &method, const Json &params);
  void notify(const std::string &method, const Json &params);
  void reply(const Json &id, const Json &result);
  void fail(const Json &id, int code, const std::string &why);
  void send(const Json &message);

  void open(const Json &params);
  void change(const Json &params);
  void close(const Json &params);
  void analyse(const std::string &path);
  void analyseAlone(const Document &document);
  /// Analyses all other open recipes that contain `extends`: `path` may be a base, also an indirect
  /// one.
  void analyseDerived(const std::string &path);
  void publish(const Document &document, const Json &diagnostics);

  Transport &transport_;
  CompileStep further_;
  config::DataMeter measure_;
  Documents documents_;
  std::map<std::string, std::unique_ptr<Analysis>> analyses_; ///< by the document's path
  bool isInitialized_ = false;
  bool isShutDown_ = false;
  bool isBroken_ = false; ///< true after a failed write: the client no longer reads
};

} // namespace shardc::lsp
