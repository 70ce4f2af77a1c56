// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// The four kinds of likelihood task, with lm-eval-harness's meaning ([LMEVAL]).
enum class TaskKind : std::uint8_t {
  MultipleChoice,  ///< which choice does the model find likeliest after the query?
  LastWord,        ///< does it say this word after the context, as in LAMBADA?
  MinimalPairs,    ///< does it find the good sentence likelier than the bad one, as in BLiMP?
  Text,            ///< how many bits does a byte of text cost it?
};
std::string_view name(TaskKind kind);

/// One example in the form that all kinds share.
///   multiple choice  context = query, choices as given
///   last word        context, one choice: the word
///   minimal pairs    no context, choices = good, bad; gold = 0
///   text             no context, one choice: the text
struct Example {
  std::string context;
  std::vector<std::string> choices;
  std::size_t gold = 0;
};

struct Task {
  std::string name;
  TaskKind kind = TaskKind::MultipleChoice;
  std::string delimiter = " ";    ///< between context and choice; not used by Text
  int shots = 0;                  ///< solved examples in front of every context
  std::string shots_text;         ///< these, as one text
  std::int64_t examples_all = 0;  ///< in the file; `examples` may be fewer
  std::vector<Example> examples;
};

/// Reads DIR/tasks.jsonl, one task a line, and the files it names, one example a line, of each at most
/// `limit` (0: all), from the first on.
///
///   {"task": "wn_isa", "kind": "multiple_choice", "file": "wn_isa.jsonl", "delimiter": " ",
///    "shots": 2, "shots_file": "wn_isa_shots.jsonl"}
/// `file` is TASK.jsonl and `delimiter` a space unless given; the first `shots` examples of shots_file stand
/// in front of every context, each followed by its delimiter, its answer and two line feeds. Keys of an
/// example:
///   multiple_choice  "query", "choices" (two or more), "gold" (index)
///   last_word        "context", "word"
///   minimal_pairs    "good", "bad"
///   text             "text"
/// Other keys of an example are the user's own. Throws Error{Usage} naming file, line and key.
std::vector<Task> read_tasks(const std::filesystem::path& directory, std::int64_t limit);

/// XXH3-128 of everything about the tasks that a score depends on, the limit's choice of examples included.
std::string tasks_hash(const std::vector<Task>& tasks);

}  // namespace nibble
