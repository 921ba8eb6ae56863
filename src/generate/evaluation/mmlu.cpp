#include "generate/evaluation/mmlu.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "generate/evaluation/python_text.h"
#include "generate/evaluation/record_fields.h"
#include "generate/evaluation/task_files.h"
#include "generate/evaluation/task_rules.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kLetters = "ABCD";
constexpr std::string_view kPrefix = "mmlu_";

struct Question {
  std::string text;  ///< with its choices, up to "Answer:"
  int64_t answer = 0;
};

Question make_question(const std::string& question, const std::vector<std::string>& choices, int64_t answer) {
  std::string text(python::strip(question));
  for (size_t i = 0; i < kLetters.size(); ++i) text += fmt::format("\n{}. {}", kLetters[i], choices[i]);
  return {text + "\nAnswer:", answer};
}

std::vector<Question> read_questions(const fs::path& file) {
  std::vector<Question> questions;
  text::read_json_records(file, text::JsonLayout::kList, [&](const text::JsonRecord& record) {
    const RecordFields fields(record);
    const std::vector<std::string> choices = fields.texts("choices");
    if (choices.size() != kLetters.size()) fields.refuse("choices", "must have four elements");
    questions.push_back(make_question(fields.text("question"), choices, fields.index("answer", 4)));
  });
  return questions;
}

/// `part`: test or dev.
fs::path find_questions(const std::string& subject, const std::string& part, const fs::path& data) {
  const std::string name = fmt::format("{}{}{}.jsonl", kPrefix, subject, part == "dev" ? "_dev" : "");
  const auto found = first_file(data, {name, "mmlu/" + name});
  if (!found)
    user_error("--data {}: has no {}, the {} questions of mmlu_{}", data.string(), name, part, subject);
  return *found;
}

}  // namespace

const std::vector<MmluSubject>& mmlu_subjects() {
  static const char *const stem = "mmlu_stem", *const other = "mmlu_other",
                           *const social = "mmlu_social_sciences", *const humanities = "mmlu_humanities";
  static const std::vector<MmluSubject> subjects = {
      {"abstract_algebra", stem},
      {"anatomy", stem},
      {"astronomy", stem},
      {"business_ethics", other},
      {"clinical_knowledge", other},
      {"college_biology", stem},
      {"college_chemistry", stem},
      {"college_computer_science", stem},
      {"college_mathematics", stem},
      {"college_medicine", other},
      {"college_physics", stem},
      {"computer_security", stem},
      {"conceptual_physics", stem},
      {"econometrics", social},
      {"electrical_engineering", stem},
      {"elementary_mathematics", stem},
      {"formal_logic", humanities},
      {"global_facts", other},
      {"high_school_biology", stem},
      {"high_school_chemistry", stem},
      {"high_school_computer_science", stem},
      {"high_school_european_history", humanities},
      {"high_school_geography", social},
      {"high_school_government_and_politics", social},
      {"high_school_macroeconomics", social},
      {"high_school_mathematics", stem},
      {"high_school_microeconomics", social},
      {"high_school_physics", stem},
      {"high_school_psychology", social},
      {"high_school_statistics", stem},
      {"high_school_us_history", humanities},
      {"high_school_world_history", humanities},
      {"human_aging", other},
      {"human_sexuality", social},
      {"international_law", humanities},
      {"jurisprudence", humanities},
      {"logical_fallacies", humanities},
      {"machine_learning", stem},
      {"management", other},
      {"marketing", other},
      {"medical_genetics", other},
      {"miscellaneous", other},
      {"moral_disputes", humanities},
      {"moral_scenarios", humanities},
      {"nutrition", other},
      {"philosophy", humanities},
      {"prehistory", humanities},
      {"professional_accounting", other},
      {"professional_law", humanities},
      {"professional_medicine", other},
      {"professional_psychology", social},
      {"public_relations", social},
      {"security_studies", social},
      {"sociology", social},
      {"us_foreign_policy", social},
      {"virology", other},
      {"world_religions", humanities},
  };
  return subjects;
}

std::vector<std::string> mmlu_groups() {
  std::set<std::string> groups;
  for (const MmluSubject& subject : mmlu_subjects()) groups.insert(subject.group);
  return {groups.begin(), groups.end()};
}

std::vector<std::string> mmlu_tasks(const std::string& name) {
  std::vector<std::string> tasks;
  for (const MmluSubject& subject : mmlu_subjects()) {
    const std::string task = std::string(kPrefix) + subject.name;
    if (name == "mmlu" || name == subject.group || name == task) tasks.push_back(task);
  }
  return tasks;
}

Task read_mmlu(const std::string& name, const fs::path& data, int64_t num_fewshot) {
  const std::string subject = name.substr(kPrefix.size());
  const auto& all = mmlu_subjects();
  const auto known = std::ranges::find(all, subject, &MmluSubject::name);
  TE_CHECK(known != all.end(), "mmlu has no subject {}", subject);
  Task task{.name = name, .acc_norm = false, .num_fewshot = num_fewshot, .group = known->group};
  std::string context = "The following are multiple choice questions (with answers) about " +
                        python::replace(subject, "_", " ") + ".\n\n";
  if (num_fewshot > 0) {
    const fs::path file = find_questions(subject, "dev", data);
    const std::vector<Question> dev = read_questions(file);
    if (static_cast<int64_t>(dev.size()) < num_fewshot)
      user_error("{}: has {} questions, --num-fewshot {} needs more", file.string(), dev.size(), num_fewshot);
    for (int64_t i = 0; i < num_fewshot; ++i) {
      const Question& example = dev[static_cast<size_t>(i)];
      context += fmt::format("{} {}\n\n", example.text, kLetters[static_cast<size_t>(example.answer)]);
    }
  }
  task.file = find_questions(subject, "test", data).string();
  for (const Question& question : read_questions(task.file))
    task.documents.push_back(multiple_choice(context + question.text, {"A", "B", "C", "D"}, question.answer));
  return task;
}

}  // namespace te::generate
