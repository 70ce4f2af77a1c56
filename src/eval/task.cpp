// SPDX-License-Identifier: Apache-2.0
#include "eval/task.h"

#include <functional>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct KindRow {
  TaskKind kind;
  const char* name;
};
constexpr KindRow kKinds[] = {{TaskKind::MultipleChoice, "multiple_choice"},
                              {TaskKind::LastWord, "last_word"},
                              {TaskKind::MinimalPairs, "minimal_pairs"},
                              {TaskKind::Text, "text"}};

TaskKind kind_from(const std::string& text, const std::string& where) {
  std::vector<std::string> names;
  for (const KindRow& row : kKinds) {
    if (text == row.name) return row.kind;
    names.emplace_back(row.name);
  }
  fail_usage("{}: \"kind\" is \"{}\"{} The kinds are multiple_choice, last_word, minimal_pairs and text.",
             where, text, did_you_mean(text, names, 1));
}

/// Calls take(object, "file:line") for every line that is not empty, until it returns false.
void for_each_object(const fs::path& path, const std::function<bool(const Json&, const std::string&)>& take) {
  const std::string text = read_file(path);
  std::size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), line);
    const Json object = parse_json(content, where);
    check_usage(object.is_object(), "{}: a line is one JSON object, this is {}", where, object.type_name());
    if (!take(object, where)) return;
  }
}

std::string text_of(const Json& object, const char* key, const std::string& where) {
  auto text = json_get<std::string>(object, key, where);
  check_usage(!text.empty(), "{}: \"{}\" is empty: there is nothing to score", where, key);
  return text;
}

Example multiple_choice(const Json& object, const std::string& where) {
  Example e;
  e.context = json_get<std::string>(object, "query", where);
  e.choices = json_get<std::vector<std::string>>(object, "choices", where);
  check_usage(e.choices.size() >= 2, "{}: \"choices\" has {} entries; a choice needs two", where,
              e.choices.size());
  for (const std::string& choice : e.choices)
    check_usage(!choice.empty(), "{}: \"choices\" holds an empty text: there is nothing to score", where);
  const auto gold = json_get<std::int64_t>(object, "gold", where);
  check_usage(gold >= 0 && gold < static_cast<std::int64_t>(e.choices.size()),
              "{}: \"gold\" is {}, but the {} choices are numbered from 0 to {}", where, gold,
              e.choices.size(), e.choices.size() - 1);
  e.gold = static_cast<std::size_t>(gold);
  return e;
}

Example example_from(TaskKind kind, const Json& object, const std::string& where) {
  if (kind == TaskKind::MultipleChoice) return multiple_choice(object, where);
  if (kind == TaskKind::LastWord)
    return {json_get<std::string>(object, "context", where), {text_of(object, "word", where)}};
  if (kind == TaskKind::MinimalPairs)
    return {"", {text_of(object, "good", where), text_of(object, "bad", where)}};
  return {"", {text_of(object, "text", where)}};
}

/// What is wrong with the data is the user's to mend: exit code 2, whatever the reader below says.
template <class F>
void as_usage(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    throw Error(ErrorKind::Usage, e.what());
  }
}

void read_shots(const fs::path& path, Task& task) {
  int found = 0;
  for_each_object(path, [&](const Json& object, const std::string& where) {
    if (found == task.shots) return false;
    const Example e = example_from(task.kind, object, where);
    task.shots_text += e.context + task.delimiter + e.choices[e.gold] + "\n\n";
    ++found;
    return true;
  });
  check_usage(found == task.shots, "{}: task {} wants {} solved examples, the file has {}", path.string(),
              task.name, task.shots, found);
}

Task task_from(const Json& row, const std::string& where, const fs::path& directory, std::int64_t limit) {
  const std::vector<std::string> keys = {"task", "kind", "file", "delimiter", "shots", "shots_file"};
  for (const auto& [key, value] : row.items())
    check_usage(std::find(keys.begin(), keys.end(), key) != keys.end(), "{}: unknown key \"{}\"{}", where,
                key, did_you_mean(key, keys, 1));
  Task task;
  task.name = text_of(row, "task", where);
  task.kind = kind_from(json_get<std::string>(row, "kind", where), where);
  task.delimiter = json_get_or<std::string>(row, "delimiter", " ", where);
  task.shots = json_get_or<int>(row, "shots", 0, where);
  check_usage(task.shots >= 0, "{}: \"shots\" is {}", where, task.shots);
  const bool takes_shots = task.kind == TaskKind::MultipleChoice || task.kind == TaskKind::LastWord;
  check_usage(task.shots == 0 || takes_shots, "{}: {} has no context for \"shots\" to stand in", where,
              name(task.kind));
  if (task.shots > 0) read_shots(directory / json_get<std::string>(row, "shots_file", where), task);

  const fs::path file = directory / json_get_or<std::string>(row, "file", task.name + ".jsonl", where);
  check_usage(fs::is_regular_file(file), "{}: task {} needs {}, which is not there", where, task.name,
              file.string());
  for_each_object(file, [&](const Json& object, const std::string& at) {
    Example e = example_from(task.kind, object, at);
    if (limit <= 0 || task.examples_all < limit) task.examples.push_back(std::move(e));
    ++task.examples_all;
    return true;
  });
  check_usage(!task.examples.empty(), "{}: task {} has no example", file.string(), task.name);
  return task;
}

}  // namespace

std::string_view name(TaskKind kind) {
  for (const KindRow& row : kKinds)
    if (row.kind == kind) return row.name;
  fail("a task has an unknown kind {}", static_cast<int>(kind));
}

std::vector<Task> read_tasks(const fs::path& directory, std::int64_t limit) {
  const fs::path list = directory / "tasks.jsonl";
  check_usage(fs::is_regular_file(list),
              "{} holds no tasks.jsonl, which names its tasks, one a line: {{\"task\": \"mine\", \"kind\": "
              "\"multiple_choice\"}} (docs/howto/evaluate.md)",
              directory.string());
  std::vector<Task> tasks;
  std::set<std::string> names;
  as_usage([&] {
    for_each_object(list, [&](const Json& row, const std::string& where) {
      tasks.push_back(task_from(row, where, directory, limit));
      check_usage(names.insert(tasks.back().name).second, "{}: there are two tasks called {}", where,
                  tasks.back().name);
      return true;
    });
  });
  check_usage(!tasks.empty(), "{} names no task", list.string());
  return tasks;
}

std::string tasks_hash(const std::vector<Task>& tasks) {
  Xxh3 hash;
  // Lengths first, so that two different lists of texts never look alike.
  const auto add = [&](std::string_view text) { hash.update(fmt::format("{}:", text.size())).update(text); };
  for (const Task& task : tasks) {
    for (const std::string_view text : {std::string_view(task.name), name(task.kind),
                                        std::string_view(task.delimiter), std::string_view(task.shots_text)})
      add(text);
    for (const Example& e : task.examples) {
      add(e.context);
      for (const std::string& choice : e.choices) add(choice);
      add(std::to_string(e.gold));
    }
  }
  return hash.digest128_hex();
}

}  // namespace nibble
