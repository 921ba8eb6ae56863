// The built-in chat templates, in the language of chat_template.h. Private to the folder.
#pragma once

#include <array>
#include <string_view>

namespace te::text {

struct BuiltinTemplate {
  std::string_view name, text;
};

inline constexpr std::array kBuiltinTemplates = {
    // ChatML, used by Qwen and many others.
    BuiltinTemplate{"chatml", R"(system: {<|im_start|>}system\n{content}{<|im_end|>}\n
user: {<|im_start|>}user\n{content}{<|im_end|>}\n
assistant: {<|im_start|>}assistant\n{content}{<|im_end|>}{stop}\n
)"},
    // Llama 2 chat. SentencePiece itself adds the space before the response.
    BuiltinTemplate{"llama2", R"(trim: true
system: <<SYS>>\n{content}\n<</SYS>>\n\n
user: {bos}[INST] {system}{content} [/INST]
assistant: {content} {eos}{stop}
)"},
    // Llama 3 instruct.
    BuiltinTemplate{"llama3", R"(trim: true
begin: {bos}
system: {<|start_header_id|>}system{<|end_header_id|>}\n\n{content}{<|eot_id|>}
user: {<|start_header_id|>}user{<|end_header_id|>}\n\n{content}{<|eot_id|>}
assistant: {<|start_header_id|>}assistant{<|end_header_id|>}\n\n{content}{<|eot_id|>}{stop}
)"},
    // Stanford Alpaca: its only special token is the end of the document.
    BuiltinTemplate{"alpaca", R"(trim: true
system: {content}\n\n
user: Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\n{content}\n\n
user_with_context: Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n### Instruction:\n{content}\n\n### Input:\n{context}\n\n
assistant: ### Response:\n{content}{eos}{stop}
)"},
    // Question, line break, answer.
    BuiltinTemplate{"plain", R"(trim: true
system: {content}\n\n
user: {content}\n
user_with_context: {context}\n\n{content}\n
assistant: {content}{eos}{stop}
)"},
};

}  // namespace te::text
