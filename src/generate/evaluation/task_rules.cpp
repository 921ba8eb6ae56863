#include "generate/evaluation/task_rules.h"

#include <algorithm>

#include "core/error.h"
#include "generate/evaluation/python_text.h"
#include "generate/evaluation/record_fields.h"

namespace te::generate {
namespace {

using Texts = std::vector<std::string>;

Document hellaswag(const text::JsonRecord& record) {
  const RecordFields fields(record);
  Texts endings = fields.texts("endings");
  for (std::string& ending : endings) ending = hellaswag_text(ending);
  const std::string context = fields.text("activity_label") + ": " + fields.text("ctx_a") + " " +
                              python::capitalize(fields.text("ctx_b"));
  return multiple_choice(hellaswag_text(context), endings,
                         fields.index("label", static_cast<int64_t>(endings.size())));
}

// Accepts Hugging Face's field "text", whose last word is the continuation, or "context" and "continuation".
Document lambada(const text::JsonRecord& record) {
  const RecordFields fields(record);
  std::string context, word;
  if (fields.has("text")) {
    const std::string text = fields.text("text");
    const size_t at = text.rfind(' ');
    if (at == std::string::npos) fields.refuse("text", "must have at least two words");
    context = text.substr(0, at), word = text.substr(at + 1);
  } else {
    context = fields.text("context"), word = fields.text("continuation");
  }
  Document document;
  document.requests.push_back({context, " " + word});
  return document;
}

/// Choices with labels: {"text": [...], "label": [...]} from Hugging Face, or [{"text", "label"}, ...] from the
/// authors.
struct LabeledChoices {
  Texts texts, labels;
};

LabeledChoices labeled_choices(const RecordFields& fields) {
  LabeledChoices choices;
  if (fields.is_list("choices")) {
    for (const RecordFields& choice : fields.objects("choices")) {
      choices.texts.push_back(choice.text("text"));
      choices.labels.push_back(choice.text("label"));
    }
  } else {
    const RecordFields lists = fields.within("choices");
    choices = {lists.texts("text"), lists.texts("label")};
  }
  if (choices.texts.size() != choices.labels.size())
    fields.refuse("choices", "must have as many labels as texts");
  return choices;
}

Document labeled_question(const RecordFields& fields, const std::string& context,
                          const LabeledChoices& choices) {
  const std::string key(python::lstrip(fields.text("answerKey")));
  const auto right = std::ranges::find(choices.labels, key);
  if (right == choices.labels.end()) fields.refuse("answerKey", "must be the label of a choice");
  return multiple_choice(context, choices.texts, right - choices.labels.begin());
}

Document arc(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const bool nested = fields.is_object("question");
  const std::string question = nested ? fields.within("question").text("stem") : fields.text("question");
  return labeled_question(fields, "Question: " + question + "\nAnswer:",
                          labeled_choices(nested ? fields.within("question") : fields));
}

Document openbookqa(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const bool nested = fields.is_object("question");
  const std::string question = nested ? fields.within("question").text("stem") : fields.text("question_stem");
  return labeled_question(fields, question, labeled_choices(nested ? fields.within("question") : fields));
}

Document piqa(const text::JsonRecord& record) {
  const RecordFields fields(record);
  return multiple_choice("Question: " + fields.text("goal") + "\nAnswer:",
                         {fields.text("sol1"), fields.text("sol2")}, fields.index("label", 2));
}

Document sciq(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const std::string support(python::lstrip(fields.text("support")));
  return multiple_choice(support + "\nQuestion: " + fields.text("question") + "\nAnswer:",
                         {fields.text("distractor1"), fields.text("distractor2"), fields.text("distractor3"),
                          fields.text("correct_answer")},
                         3);
}

Document boolq(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const bool yes = fields.truth(fields.has("label") ? "label" : "answer");
  return multiple_choice(fields.text("passage") + "\nQuestion: " + fields.text("question") + "?\nAnswer:",
                         {"no", "yes"}, yes ? 1 : 0);
}

// Partial scoring: each option fills the blank; the text after the blank is the continuation of both.
Document winogrande(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const std::string sentence = fields.text("sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) fields.refuse("sentence", "must have a blank, _");
  const std::string rest(python::strip(std::string_view(sentence).substr(blank + 1)));
  Document document;
  for (const char* option : {"option1", "option2"}) {
    document.requests.push_back({sentence.substr(0, blank) + fields.text(option), " " + rest});
    document.choice_lengths.push_back(std::max<int64_t>(1, python::length(document.requests.back().context)));
  }
  const std::string answer = fields.text("answer");
  if (answer != "1" && answer != "2") fields.refuse("answer", "must be \"1\" or \"2\"");
  document.gold = answer == "1" ? 0 : 1;
  return document;
}

Document wikitext(const text::JsonRecord& record) {
  const std::string page = RecordFields(record).text("page");
  Document document;
  document.requests.push_back({"", wikitext_detokenized(page)});
  document.words = python::count_words(page);
  document.bytes = static_cast<int64_t>(page.size());
  return document;
}

/// Removes white space after OPEN and before the next CLOSE.
std::string without_inner_space(const std::string& text, char open, char close) {
  std::string result;
  size_t at = 0;
  for (;;) {
    const size_t begin = text.find(open, at);
    const size_t end = begin == std::string::npos ? begin : text.find(close, begin + 1);
    if (end == std::string::npos) break;
    result += text.substr(at, begin + 1 - at);
    result += python::strip(std::string_view(text).substr(begin + 1, end - begin - 1));
    result += close;
    at = end + 1;
  }
  return result + text.substr(at);
}

}  // namespace

const std::vector<TaskRule>& task_rules() {
  using enum TaskKind;
  static const std::vector<TaskRule> rules = {
      {"hellaswag", multiple_choice, true, 1.0, {"hellaswag_val.jsonl"}, hellaswag},
      {"lambada_openai", last_word, false, 1.0, {"lambada_test.jsonl", "lambada_test_en.jsonl"}, lambada},
      {"arc_easy", multiple_choice, true, 1.0, {"ARC-Easy-Test.jsonl", "ARC-Easy/ARC-Easy-Test.jsonl"}, arc},
      {"arc_challenge",
       multiple_choice,
       true,
       1.0,
       {"ARC-Challenge-Test.jsonl", "ARC-Challenge/ARC-Challenge-Test.jsonl"},
       arc},
      {"piqa", multiple_choice, true, 1.0, {}, piqa},
      {"openbookqa",
       multiple_choice,
       true,
       1.0,
       {"openbookqa/test.jsonl", "OpenBookQA-V1-Sep2018/Data/Main/test.jsonl"},
       openbookqa},
      {"sciq", multiple_choice, true, 1.0, {"sciq.json", "sciq/test.json"}, sciq},
      {"boolq", multiple_choice, false, 2.0, {"boolq/dev.jsonl", "BoolQ/val.jsonl"}, boolq},
      {"winogrande",
       multiple_choice,
       false,
       1.0,
       {"winogrande/dev.jsonl", "winogrande_1.1/dev.jsonl"},
       winogrande},
      {"wikitext", rolling, false, 2.0, {}, wikitext},
  };
  return rules;
}

const TaskRule* find_task_rule(const std::string& name) {
  const auto& rules = task_rules();
  const auto found = std::ranges::find(rules, name, &TaskRule::name);
  return found == rules.end() ? nullptr : &*found;
}

Document multiple_choice(const std::string& context, const Texts& choices, int64_t gold) {
  Document document;
  document.gold = gold;
  for (const std::string& choice : choices) {
    document.requests.push_back({context, " " + choice});
    document.choice_lengths.push_back(python::length(choice));
  }
  return document;
}

Document make_own_document(const text::JsonRecord& record) {
  const RecordFields fields(record);
  const Texts choices = fields.texts("choices");
  if (choices.size() < 2) fields.refuse("choices", "must have at least two elements");
  for (const std::string& choice : choices)
    if (choice.empty()) fields.refuse("choices", "must not have an empty element");
  return multiple_choice(fields.text("context"), choices,
                         fields.index("gold", static_cast<int64_t>(choices.size())));
}

std::string hellaswag_text(std::string text) {
  text = python::replace(python::strip(text), " [title]", ". ");
  std::string kept;  // text outside brackets; brackets match within a line only
  size_t at = 0;
  for (;;) {
    const size_t begin = text.find('[', at), end = begin == std::string::npos ? begin : text.find(']', begin);
    if (end == std::string::npos) break;
    const size_t line = text.find('\n', begin);
    const bool same_line = line == std::string::npos || line > end;
    kept += text.substr(at, begin - at);
    if (!same_line) kept += '[';
    at = same_line ? end + 1 : begin + 1;
  }
  return python::replace(kept + text.substr(at), "  ", " ");
}

std::string wikitext_detokenized(const std::string& page) {
  std::string text = page;
  const auto replace = [&](std::initializer_list<std::pair<const char*, const char*>> pairs) {
    for (const auto& [from, to] : pairs) text = python::replace(text, from, to);
  };
  replace({{"s '", "s'"}});
  for (char digit = '0'; digit <= '9';
       ++digit)  // lm-evaluation-harness inserts the pattern itself, not the digit
    text = python::replace(text, std::string("/' ") + digit + "/", "/'[0-9]/");
  replace({{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}});
  replace({{" : ", ": "}, {" ; ", "; "}, {" . ", ". "}, {" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}});
  for (const char* pair : {"()", "[]", "{}", "\"\"", "''"})
    text = without_inner_space(text, pair[0], pair[1]);
  replace({{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}, {" \u00b0 ", "\u00b0"}});
  replace({{" \n", "\n"}, {"\n ", "\n"}, {" N ", " 1 "}, {" 's", "'s"}});
  return text;
}

}  // namespace te::generate
