// te-generate chat: a conversation on standard input and output, one message per line.
#include "generate/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "core/error.h"
#include "generate/command.h"
#include "generate/loaded_model.h"
#include "generate/sampling_options.h"
#include "generate/stop.h"
#include "generate/text_output.h"

namespace te::generate {
namespace {

/// Makes prompts with `chosen` (a template, or a file of scripts/chat_turns.py), else with the chat turns stored with
/// the tokenizer, else with the built-in template whose special tokens the tokenizer has.
ChatPrompter make_prompter(const std::string& chosen, const text::Tokenizer& tokenizer) {
  std::optional<text::ChatTurns> turns;
  if (chosen.ends_with(".json")) turns = text::ChatTurns::load(chosen);
  if (chosen.empty() && tokenizer.name() != "bytes")
    turns = text::find_chat_turns(text::tokenizer_folder(tokenizer.name()));
  if (turns) {
    turns->check(tokenizer);
    return [turns, &tokenizer](const text::Conversation& conversation) {
      return chat_prompt(conversation, *turns, tokenizer);
    };
  }
  const auto chat = text::ChatTemplate::load(chosen.empty() ? default_chat_template(tokenizer) : chosen);
  return [chat, &tokenizer](const text::Conversation& conversation) {
    return chat_prompt(conversation, chat, tokenizer);
  };
}

constexpr size_t kLongestMessage = size_t{16} << 20;

/// Reads a line of standard input; false at its end. UserError for a line that no context can hold.
bool read_line(std::string& line) {
  line.clear();
  int next = std::cin.get();
  if (next == std::char_traits<char>::eof()) return false;
  for (; next != '\n' && next != std::char_traits<char>::eof(); next = std::cin.get()) {
    line.push_back(static_cast<char>(next));
    if (line.size() > kLongestMessage)
      user_error("standard input: a message is longer than {} MiB", kLongestMessage >> 20);
  }
  std::cin.clear(std::cin.rdstate() & ~std::ios::failbit);
  return true;
}

/// Reads the next message on all ranks, skipping blank lines; false at the end of the input.
bool read_message(parallel::World& world, bool prompts, std::string& message) {
  std::string packed;
  world.run_collectively([&] {
    if (!world.leader()) return;
    do {
      if (prompts) fmt::print(stderr, "> ");
      if (!read_line(packed)) break;
      if (packed.ends_with('\r')) packed.pop_back();
    } while (packed.find_first_not_of(" \t") == std::string::npos);
    if (std::cin) packed.insert(packed.begin(), '+');
  });
  packed = world.broadcast_string(packed);
  if (packed.empty()) return false;
  message = packed.substr(1);
  return true;
}

struct ChatArguments {
  CLI::App* command = nullptr;
  ModelOptions model;
  TokenizerOptions tokenizer;
  SamplingArguments sampling;
  ChatOptions options;
  std::string chat_template;
  int64_t context = 4096;
  bool quiet = false;

  int talk(parallel::World& world, LoadedModel& loaded, Chat& chat) const;
};

int ChatArguments::talk(parallel::World& world, LoadedModel& loaded, Chat& chat) const {
  const TextOutput output;
  const bool prompts = world.leader() && !quiet && ::isatty(STDIN_FILENO) == 1;
  std::string message;
  while (stop_requested == 0 && read_message(world, prompts, message)) {
    // Tensor-parallel ranks cannot stop at different tokens, so with several ranks Ctrl-C ends the job at once, as it
    // does while the process waits for a message.
    const auto previous = world.size() == 1 ? stop_on_interrupt() : SIG_DFL;
    chat.reply(
        loaded.context, message,
        [&](const std::string& part) {
          if (!world.leader()) return;
          output.write(part);
          std::fflush(stdout);
        },
        world.size() == 1 ? &stop_requested : nullptr);
    if (world.size() == 1) std::signal(SIGINT, previous);
    if (!world.leader()) continue;
    fmt::print("\n");
    std::fflush(stdout);
    if (!quiet && chat.finish_reason() != FinishReason::end_token)
      fmt::print(stderr, "({}; the conversation has {} tokens before it)\n", to_string(chat.finish_reason()),
                 chat.prompt_tokens());
  }
  return stop_requested != 0 ? 130 : 0;
}

int run_chat(ChatArguments& a, parallel::World& world) {
  a.model.check("te-generate chat");
  a.sampling.resolve();
  a.options.sampling = a.sampling.options;
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<text::Tokenizer> tokenizer;
  ChatPrompter prompter;
  world.run_collectively([&] {
    source = open_model(a.model.checkpoint, a.model.adapters);
    tokenizer = a.tokenizer.open(*source);
    prompter = make_prompter(a.chat_template, *tokenizer);
    a.options.ends = end_tokens(*source, *tokenizer);
    if (world.leader()) a.sampling.warn_of_unused(*source);
    text::Conversation opening;
    if (!a.options.system.empty()) opening.push_back({"system", a.options.system, ""});
    opening.push_back({"user", "x", ""});
    prompter(
        opening);  // UserError for a system message that the template does not support, before the model loads
    if (a.command->get_option("--context")->count() > 0 && a.context > longest_sequence(source->model()))
      user_error("--context {}: larger than the model's context of {}", a.context,
                 longest_sequence(source->model()));
    a.context = std::min(a.context, longest_sequence(source->model()));
  });
  LoadedModel loaded(world, *source, a.model.run, a.context, 1);
  Chat chat(loaded.decoder, *tokenizer, prompter, a.options);
  return a.talk(world, loaded, chat);
}

}  // namespace

apps::Command add_chat(CLI::App& app) {
  const auto arguments = std::make_shared<ChatArguments>();
  ChatArguments& a = *arguments;
  a.command = app.add_subcommand("chat", "Chat with a model: each line of standard input is a message");
  a.model.add_to(a.command);
  a.command
      ->add_option("--tokenizer", a.tokenizer.spec,
                   "bytes, or a tokenizer file or folder (default: the checkpoint's)")
      ->type_name("SPEC");
  a.command
      ->add_option(
          "--template", a.chat_template,
          "Chat template as in te-data instruct (built-in name or file), or a .json file of "
          "scripts/chat_turns.py. Default: the model's own, if scripts/chat_turns.py has stored it with the "
          "tokenizer, else the built-in template whose special tokens the tokenizer has")
      ->type_name("NAME|FILE");
  a.command->add_option("--system", a.options.system, "System message of the conversation")
      ->type_name("TEXT");
  a.command->add_option("--max-tokens", a.options.max_tokens, "Maximum number of tokens of a reply")
      ->check(whole_number(1))
      ->capture_default_str();
  a.command
      ->add_option("--context", a.context,
                   "Maximum number of tokens of the conversation, at most the model's context")
      ->check(whole_number(2))
      ->capture_default_str();
  a.sampling.add_to(a.command);
  a.command->add_flag("--quiet", a.quiet, "Print the replies only");
  a.command->footer(
      "  te-generate chat --checkpoint qwen/ --system \"You answer in one sentence.\" --temperature 0.7\n"
      "  printf 'Hello!\\nWho are you?\\n' | te-generate chat --checkpoint qwen/");
  return {a.command, [arguments](parallel::World& world) { return run_chat(*arguments, world); }};
}

}  // namespace te::generate
