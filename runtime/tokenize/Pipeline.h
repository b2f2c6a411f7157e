// Several threads that read batches in turn and encode them, and one that takes the results in
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
  std::optional<int32_t> endId; ///< ends each document that has tokens
};

/// What became of a batch.
struct EncodedBatch {
  Status status; ///< names the line that is wrong
  Documents documents;
  Position next;
  std::optional<FinishedInput> finished;
  uint64_t bytesRead = 0; ///< of all inputs, up to here
};

/// Extracts the texts of a batch's lines and encodes them. As Megatron's preprocess_data.py does,
/// texts without tokens make no sequence, and the end token goes to the last sequence of a
/// document.
EncodedBatch encodeBatch(const Batch &batch, const std::string &path, const EncodeOptions &options,
                         Encoder &encoder);

class Pipeline {
public:
  /// Uses one thread for each encoder. All arguments must outlive the object.
  Pipeline(BatchReader &reader, const std::vector<std::string> &paths, const EncodeOptions &options,
           std::vector<std::unique_ptr<Encoder>> &encoders);
  Status start();
  /// Stops the threads; texts that are being encoded are given up.
  ~Pipeline();

  /// Waits for the next batch, in the order of the inputs; none after the last one. A batch that
  /// failed is the last one.
  std::optional<EncodedBatch> next();

private:
  void run(Encoder &encoder);
  bool read(Batch &batch, int64_t &number);
  void put(int64_t number, EncodedBatch encoded);

  BatchReader &reader_;
  const std::vector<std::string> &paths_;
  const EncodeOptions &options_;
  std::vector<std::unique_ptr<Encoder>> &encoders_;
  std::mutex reading_; ///< one thread at a time reads

  std::mutex mutex_; ///< protects what follows
  std::condition_variable changed_;
  std::map<int64_t, EncodedBatch> done_;
  int64_t taken_ = 0;   ///< batches that next() gave
  int64_t read_ = 0;    ///< batches that were read, a failed one included
  bool isRead_ = false; ///< there are no more
  bool isStopped_ = false;

  std::vector<std::thread> threads_;
};

} // namespace shardc::tokenize
