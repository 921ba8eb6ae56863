// Private to the CUDA attention: how cuDNN is told where the documents of packed samples lie.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

/// Every document is a sequence of its own to cuDNN, a batch of max_documents of them, the last ones empty.
/// All arrays are int32 in device memory; offsets are in elements, one more than documents.
struct DocumentArrays {
  int32_t* lengths;      ///< [max_documents] tokens of a document; 0 behind the last
  int32_t* qkv_offsets;  ///< [max_documents + 1] where it begins in the packed buffer
  int32_t* o_offsets;    ///< in o
  int32_t* lse_offsets;  ///< in lse, which is [tokens, heads] then
  int32_t* begins;       ///< [max_documents + 1] its first token; scratch
};

/// Bytes that the arrays take, a multiple of 256; 0 without documents.
int64_t document_bytes(const AttentionShape& shape);
/// The arrays in `memory`, 16-byte aligned.
DocumentArrays document_arrays(const AttentionShape& shape, void* memory);
/// Fills them from document_start, on the stream. Documents beyond max_documents are left out.
void find_documents(const Context& context, const AttentionShape& shape, const Tensor& document_start,
                    const DocumentArrays& arrays);

}  // namespace te::kernels::cuda
