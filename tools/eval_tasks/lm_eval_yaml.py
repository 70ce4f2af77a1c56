# SPDX-License-Identifier: Apache-2.0
"""A line of tasks.jsonl as the YAML that lm-eval-harness reads."""

import json

BODIES = {
    "multiple_choice": """output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
  - metric: acc_bytes
    aggregation: mean
    higher_is_better: true
""",
    "last_word": """output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{' ' + word}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
  - metric: acc
    aggregation: mean
    higher_is_better: true
""",
    "minimal_pairs": """output_type: multiple_choice
doc_to_text: ""
doc_to_choice: "{{[good, bad]}}"
doc_to_target: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
""",
    "text": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: bits_per_byte
    aggregation: bits_per_byte
    higher_is_better: false
  - metric: byte_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
  - metric: word_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
"""}


def yaml_of(task, folder):
    """A task of tasks.jsonl as lm-eval's YAML."""
    name = task["task"]
    text = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
    text += f"    test: {folder}/{task.get('file', name + '.jsonl')}\n"
    if "shots" in task:
        text += f"    shots: {folder}/{task['shots_file']}\nfewshot_split: shots\nnum_fewshot: {task['shots']}\n"
        text += "fewshot_config:\n  sampler: first_n\n"
    else:
        text += "num_fewshot: 0\n"
    if "delimiter" in task:
        text += f"target_delimiter: {json.dumps(task['delimiter'])}\n"
    return text + "test_split: test\n" + BODIES[task["kind"]] + "metadata:\n  version: 1.0\n"
