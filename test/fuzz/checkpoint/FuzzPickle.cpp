// Any bytes as a pickle, in each context; an accepted pickle is written and read back.
#include <cstdint>
#include <cstdlib>

#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  for (PickleContext context :
       {PickleContext::TensorRecord, PickleContext::Metadata, PickleContext::BytesItem}) {
    Result<Pickle> pickle = readPickle({data, size}, context);
    if (!pickle.isOk())
      continue;
    Result<PlainValue> plain = plainValueOf(pickle->graph, pickle->root);
    if (plain.isOk())
      textOf(*plain);
    Result<std::string> bytes = writePickle(pickle->graph, pickle->root);
    if (!bytes.isOk())
      continue;
    // A pickle in our form must not change again.
    Result<Pickle> again =
        readPickle({reinterpret_cast<const uint8_t *>(bytes->data()), bytes->size()},
                   PickleContext::BytesItem);
    if (!again.isOk())
      std::abort();
    Result<std::string> third = writePickle(again->graph, again->root);
    if (!third.isOk() || *third != *bytes)
      std::abort();
  }
  return 0;
}

} // namespace shardc::checkpoint
