// Opens arbitrary bytes as a safetensors file and reads every tensor; every failure must be a UserError.
#include "checkpoint/safetensors.h"

#include "core/error.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static te::fuzz::FuzzFile file("a.safetensors");
  file.write({data, size});
  try {
    const te::SafetensorsReader reader(file.path());
    size_t total = 0;
    unsigned sum = 0;
    for (const te::SafetensorsTensor& tensor : reader.tensors()) {
      TE_CHECK(reader.find(tensor.name) == &tensor, "{}: find() returns another tensor", tensor.name);
      for (size_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
      total += tensor.bytes;
    }
    TE_CHECK(total <= size && sum <= 255 * total, "{} bytes of tensors in {}", total, size);
  } catch (const te::UserError&) {
  }
  return 0;
}
