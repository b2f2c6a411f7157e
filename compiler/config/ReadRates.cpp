#include "compiler/config/ReadRates.h"

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/predict/MeasuredRates.h"
#include "runtime/base/Rates.h"

namespace shardc::config {
namespace {

/// A rate above this multiple of the peak cannot have been measured on the device.
constexpr double kAbovePeak = 1.1;

class RatesReader {
public:
  RatesReader(SourceManager &sources, DiagEngine &diags, Config &config)
      : sources_(sources), diags_(diags), config_(config) {}

  void run() {
    const std::string &path = config_.getString(Opt::ClusterRates);
    Result<BufferId> buffer = sources_.loadFile(path, /*isFromUser=*/false);
    if (!buffer.isOk()) {
      diags_.report(diag::CannotReadRates, here(), buffer.status().message());
      return;
    }
    buffer_ = *buffer;
    RateFault fault;
    std::optional<RateFile> file = parseRates(sources_.text(buffer_), fault);
    if (!file && fault.line > 1)
      return refuse(fault.line, diag::RatesLine, fault.text);
    if (!file) // a file of another kind: none of its lines is shown
      return void(diags_.report(diag::RatesLine, here(), fault.text));
    if (!isOfDevice(file->machine) || !isBelowPeaks(*file))
      return;
    std::vector<std::string> words;
    for (const Rate &rate : file->rates)
      words.push_back(rate.words());
    config_.setRates(words);
    reportLacking(predict::MeasuredRates(file->rates), path);
  }

private:
  SourceRange here() const { return config_.range(Opt::ClusterRates); }

  template <typename Row, typename... Args>
  void refuse(size_t line, const Row &row, const Args &...args) {
    SourceLoc begin = sources_.lineBegin(buffer_, static_cast<unsigned>(line));
    SourceRange range;
    if (begin.isValid()) {
      size_t at = sources_.offset(begin);
      range = sources_.range(buffer_, at, at + sources_.lineText(begin).size());
    }
    diags_.report(row, range, args...).note(diag::RatesUsedHere, here());
  }

  bool isOfDevice(const RatedMachine &machine) {
    const std::optional<Gpu> &gpu = config_.derived().gpu;
    bool isSame = gpu && (predict::device(*gpu).isHost()
                              ? machine.backend == "host"
                              : machine.backend == "cuda" &&
                                    isGpuOfKind(machine.device, spelling(*gpu).str()));
    if (!isSame)
      refuse(1, diag::RatesDevice, machine.device, machine.backend,
             gpu ? fmt::format("'{}'", spelling(*gpu).str()) : std::string("not set"));
    return isSame;
  }

  /// The device's peak for the work of a rate; 0 if the table has none.
  static double peakOf(const predict::Device &device, const Rate &rate) {
    const predict::DeviceRates &peak = device.peak;
    switch (rate.kind) {
    case RateKind::Product:
    case RateKind::Attention:
      return rate.dtype == DType::F32      ? peak.bf16Tflops // at most the tensor cores' rate
             : dtypeBytes(rate.dtype) == 2 ? peak.bf16Tflops
                                           : peak.fp8Tflops;
    case RateKind::Memory:
      return rate.op == "copy" || rate.op == "add" ? 4 * peak.memoryGBs
                                                   : 0; // small copies hit caches
    case RateKind::Collective:
      return peak.memoryGBs;
    }
    return 0;
  }

  bool isBelowPeaks(const RateFile &file) {
    const predict::Device &device = predict::device(*config_.derived().gpu);
    if (device.isHost()) // the host's figures are nominal
      return true;
    for (size_t i = 0; i < file.rates.size(); ++i) {
      const Rate &rate = file.rates[i];
      double peak = peakOf(device, rate);
      if (peak == 0 || rate.rate() <= kAbovePeak * peak)
        continue;
      refuse(file.lines[i], diag::RatesAbovePeak, rate.text(), formatNumber(rate.rate()),
             std::string(infoOf(rate.kind).unit), device.name, formatNumber(peak));
      return false;
    }
    return true;
  }

  void reportLacking(const predict::MeasuredRates &rates, const std::string &path) {
    const Derived &d = config_.derived();
    std::vector<std::string> lacking =
        rates.lacking(d.compute, config_.has(Opt::ModelFp8), d.gpusPerNode, d.nodes);
    if (!lacking.empty())
      diags_.report(diag::RatesLack, here(), path, fmt::format("{}", fmt::join(lacking, ", ")));
  }

  SourceManager &sources_;
  DiagEngine &diags_;
  Config &config_;
  BufferId buffer_{};
};

} // namespace

void readRates(SourceManager &sources, DiagEngine &diags, Config &config) {
  if (config.has(Opt::ClusterRates))
    RatesReader(sources, diags, config).run();
}

} // namespace shardc::config
