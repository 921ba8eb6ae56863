// MMLU (Hendrycks et al., arXiv 2009.03300): 57 subjects in four groups; each question follows the first examples of
// its subject's dev set.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"

namespace te::generate {

struct MmluSubject {
  const char *name, *group;  ///< abstract_algebra, mmlu_stem
};
const std::vector<MmluSubject>& mmlu_subjects();
/// The four groups in alphabetical order.
std::vector<std::string> mmlu_groups();

/// The tasks that `name` expands to: all subjects for mmlu, those of a group such as mmlu_stem, or mmlu_SUBJECT itself;
/// empty for any other name.
std::vector<std::string> mmlu_tasks(const std::string& name);

/// Reads a subject's questions from the folder `data`: SUBJECT_test.csv and SUBJECT_dev.csv as the authors publish them
/// (in test/ and dev/ of `data` or of its folders mmlu/, data/ or mmlu/data/), or mmlu_SUBJECT.jsonl and
/// mmlu_SUBJECT_dev.jsonl with the fields of Hugging Face. UserError if they are missing or malformed, or the dev set
/// has fewer than num_fewshot examples.
Task read_mmlu(const std::string& name, const std::filesystem::path& data, int64_t num_fewshot);

}  // namespace te::generate
