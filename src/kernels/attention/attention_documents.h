// Private to the CUDA attention: the arrays that describe the documents of packed samples to cuDNN.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

/// cuDNN sees every document as a sequence in a batch of max_documents sequences, the last of which are empty. All
/// arrays are int32 in device memory. Offsets are in elements, and there is one more offset than documents.
struct DocumentArrays {
  int32_t* lengths;      ///< [max_documents] tokens of each document; 0 after the last one
  int32_t* qkv_offsets;  ///< [max_documents + 1] start of each document in the packed buffer
  int32_t* o_offsets;    ///< the same in o
  int32_t* lse_offsets;  ///< the same in lse, which is then [tokens, heads]
  int32_t* begins;       ///< [max_documents + 1] first token of each document; scratch
};

/// Bytes of all arrays, a multiple of 256; 0 without documents.
int64_t document_bytes(const AttentionShape& shape);
/// Places the arrays in `memory`, aligned to 16 bytes.
DocumentArrays document_arrays(const AttentionShape& shape, void* memory);
/// Fills the arrays from document_start on the context's CUDA stream. Documents beyond max_documents are omitted.
void find_documents(const Context& context, const AttentionShape& shape, const Tensor& document_start,
                    const DocumentArrays& arrays);

}  // namespace te::kernels::cuda
