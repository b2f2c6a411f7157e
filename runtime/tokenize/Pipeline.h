// Several threads take turns in reading batches and encode them; one thread takes the results in
// order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/tokenize/BatchReader.h"
#include "runtime/tokenize/Encoder.h"
#include "runtime/tokenize/Shards.h"

namespace shardc::tokenize {

struct EncodeOptions {
  std::string jsonKey = "text";
  std::optional<int32_t> endId; ///< appended to each document that has tokens
};

/// The result of encoding a batch.
struct EncodedBatch {
  Status status; ///< names the line of an error
  Documents documents;
  Position next;
  std::optional<FinishedInput> finished;
  uint64_t bytesRead = 0; ///< bytes read so far from all inputs
};

/// Extracts the texts of a batch's lines and encodes them. As Megatron's preprocess_data.py does,
/// texts without tokens give no sequence, and the end token is added to the last sequence of a
/// document.
EncodedBatch encodeBatch(const Batch &batch, const std::string &path, const EncodeOptions &options,
                         Encoder &encoder);

class Pipeline {
public:
  /// Uses one thread for each encoder. All arguments must outlive the object.
  Pipeline(BatchReader &reader, const std::vector<std::string> &paths, const EncodeOptions &options,
           std::vector<std::unique_ptr<Encoder>> &encoders);
  Status start();
  /// Stops the threads. Texts that are being encoded are abandoned.
  ~Pipeline();

  /// Waits for the next batch, in the order of the inputs. Returns nothing after the last batch; a
  /// failed batch is the last one.
  std::optional<EncodedBatch> next();

private:
  void run(Encoder &encoder);
  bool read(Batch &batch, int64_t &number);
  void put(int64_t number, EncodedBatch encoded);

  BatchReader &reader_;
  const std::vector<std::string> &paths_;
  const EncodeOptions &options_;
  std::vector<std::unique_ptr<Encoder>> &encoders_;
  std::mutex reading_; ///< held by the one thread that reads

  std::mutex mutex_; ///< protects the members below
  std::condition_variable changed_;
  std::map<int64_t, EncodedBatch> done_;
  int64_t taken_ = 0;   ///< batches that next() returned
  int64_t read_ = 0;    ///< batches that were read, including a failed one
  bool isRead_ = false; ///< there are no more batches
  bool isStopped_ = false;

  std::vector<std::thread> threads_;
};

} // namespace shardc::tokenize
