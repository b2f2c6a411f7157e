// shardc-opt: runs the given passes on plan text, in the given order.
#include <cstdio>
#include <unistd.h>

#include "compiler/passes/Pipeline.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc {
namespace {

struct OptOptions {
  std::string input, output, specification;
  std::vector<passes::PassId> passes;
  bool verify = false, verifyEach = false, split = false, summary = false;
};

/// Prints the findings. Returns whether there are none.
bool verifyPlan(const plan::Plan &plan) {
  std::vector<plan::Finding> findings = plan::verify(plan);
  for (const plan::Finding &finding : findings)
    std::fprintf(stderr, "%s\n", plan::render(plan, finding).c_str());
  return findings.empty();
}

/// Reports a difference from the specification that the plan carries, if it carries one.
bool provePlan(const plan::Plan &plan) {
  Status status = plan::spec::proved(plan);
  if (!status.isOk())
    std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.isOk();
}

/// Reports whether the plan computes what its specification says.
bool compareToSpecification(const plan::Plan &plan, const std::string &path) {
  Result<std::string> text = readFile(path);
  if (!text.isOk()) {
    std::fprintf(stderr, "shardc-opt: error: %s\n", text.status().message().c_str());
    return false;
  }
  Result<plan::Plan> specification = plan::parse(*text, path);
  if (!specification.isOk()) {
    std::fprintf(stderr, "%s\n", specification.status().message().c_str());
    return false;
  }
  if (!verifyPlan(plan) || !verifyPlan(*specification))
    return false;
  plan::spec::Comparison found = plan::spec::compare(*specification, plan);
  for (const std::string &each : found.declared)
    std::fprintf(stderr, "remark: differs from the model: %s [plan-specification]\n", each.c_str());
  if (found.difference)
    std::fprintf(stderr, "%s\n", plan::render(plan, *found.difference).c_str());
  else
    std::fprintf(stderr,
                 "remark: equal to the specification, in %llu visits [plan-specification]\n",
                 static_cast<unsigned long long>(found.visits));
  return !found.difference;
}

/// Parses one plan of the input, runs the passes on it, and appends the result to `text`.
bool processPlan(std::string_view source, const OptOptions &options, std::string &text) {
  Result<plan::Plan> plan = plan::parse(source, options.input);
  if (!plan.isOk()) {
    std::fprintf(stderr, "%s\n", plan.status().message().c_str());
    return false;
  }
  if (!options.passes.empty() && !verifyPlan(*plan))
    return false;
  passes::Notes notes;
  for (passes::PassId id : options.passes) {
    if (Status status = passes::checkInput(id, *plan); !status.isOk()) {
      std::fprintf(stderr, "shardc-opt: %s\n", lineOf(status.report()).c_str());
      return false;
    }
    passes::runPass(id, *plan, notes);
    if (options.verifyEach && !verifyPlan(*plan))
      return false;
  }
  for (const passes::Note &note : notes)
    std::fprintf(stderr, "remark: %s [%s]\n", note.text.c_str(), note.id.c_str());
  if (options.verify && (!verifyPlan(*plan) || !provePlan(*plan)))
    return false;
  if (!options.specification.empty())
    return compareToSpecification(*plan, options.specification);
  text += plan::print(*plan, options.summary ? plan::summary(*plan) : "");
  return true;
}

/// Processes the plans of a job, which follow each other in the input.
bool process(std::string_view source, const OptOptions &options, std::string &text) {
  bool good = true;
  for (std::string_view each : plan::plansOf(source))
    good &= processPlan(each, options, text);
  return good;
}

int run(const OptOptions &options) {
  Result<std::string> source =
      options.input == "-" ? readDescriptor(STDIN_FILENO) : readFile(options.input);
  if (!source.isOk()) {
    std::fprintf(stderr, "shardc-opt: error: %s\n", source.status().message().c_str());
    return 1;
  }
  std::string text;
  bool good = true;
  std::string_view rest = *source;
  static constexpr std::string_view kSplit = "\n// -----";
  while (true) {
    size_t end = options.split ? rest.find(kSplit) : std::string_view::npos;
    good &= process(rest.substr(0, end), options, text);
    if (end == std::string_view::npos)
      break;
    rest.remove_prefix(end + kSplit.size());
    text += "// -----\n";
  }
  if (!options.output.empty()) {
    if (Status status = writeFileAtomic(options.output, text); !status.isOk()) {
      std::fprintf(stderr, "shardc-opt: error: %s\n", status.message().c_str());
      return 3;
    }
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return good ? 0 : 1;
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  using namespace shardc;
  prepareOutput();
  cli::Program app("runs passes on plan text", "shardc-opt");
  OptOptions options;
  app.option("plan", options.input, "plan file, - for standard input").required();
  app.option("-o", options.output, "file to write; default: standard output");
  app.option("--specification", options.specification,
             "say whether the plan computes what this logical plan says, and print no plan");
  app.flag("--verify", options.verify, "verify the plan after the last pass");
  app.flag("--verify-each", options.verifyEach, "verify the plan after every pass");
  app.flag("--split-input-file", options.split,
           "process each part between '// -----' lines separately");
  app.flag("--summary", options.summary, "print the plan's summary");
  for (passes::PassId id : passes::allPasses()) {
    const passes::PassInfo &info = passes::passInfo(id);
    app.flag(
        "--" + std::string(info.flag), [&options, id] { options.passes.push_back(id); }, info.doc);
  }
  std::optional<int> status = app.parse(argc, argv);
  return finishOutput("shardc-opt", status ? *status : run(options));
}
