// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "train/run_config.h"

/// The list of keys. `visit_keys(config, v)` calls v.section(name, meaning) and, for each key of it,
/// v(name, value, effect, meaning), for a list of tables v.tables(name, list, meaning); `C` is RunConfig or
/// const RunConfig, so that one list reads and writes.
namespace nibble::config {

/// Whether a key changes what is computed. WhereSet: it does, and is part of a run's identity where it is set
/// alone, since runs of before the key was there have none.
enum class Effect : std::uint8_t { None, Maths, WhereSet };
inline constexpr Effect kMaths = Effect::Maths, kWhereSet = Effect::WhereSet, kNone = Effect::None;

template <class Fields, class V>
void visit_model_fields(Fields& f, V& v) {
  v("pattern", f.pattern, kMaths, "hybrid model, a character a block: M Mamba-2, * attention, - MLP");
  v("blocks", f.blocks, kMaths, "blocks of a Llama-like model (attention and MLP each)");
  v("vocab_size", f.vocab_size, kMaths, "rows of embedding and head");
  v("hidden", f.hidden, kMaths, "width of the residual stream");
  v("ffn", f.ffn, kMaths, "width inside the MLP");
  v("heads", f.heads, kMaths, "query heads");
  v("kv_heads", f.kv_heads, kMaths, "key and value heads; unset: as many as heads");
  v("head_dim", f.head_dim, kMaths, "width of a head; unset: hidden / heads");
  v("max_sequence", f.max_sequence, kMaths, "longest sequence, written to config.json");
  v("activation", f.activation, kMaths, "swiglu or relu2");
  v("tied", f.tied, kMaths, "the head is the embedding");
  v("qkv_bias", f.qkv_bias, kMaths, "biases on q, k, v (Qwen2)");
  v("rope_theta", f.rope_theta, kMaths, "base of the rotary frequencies");
  v("rope_factor", f.rope_factor, kMaths, "Llama-3 scaling of RoPE; unset: none");
  v("rope_low_freq_factor", f.rope_low_freq_factor, kMaths, "of Llama-3 scaling");
  v("rope_high_freq_factor", f.rope_high_freq_factor, kMaths, "of Llama-3 scaling");
  v("rope_original_positions", f.rope_original_positions, kMaths, "of Llama-3 scaling");
  v("mamba_heads", f.mamba_heads, kMaths, "Mamba-2 heads");
  v("mamba_head_dim", f.mamba_head_dim, kMaths, "width of a Mamba-2 head");
  v("mamba_groups", f.mamba_groups, kMaths, "groups of B and C");
  v("mamba_state", f.mamba_state, kMaths, "state size");
  v("mamba_conv", f.mamba_conv, kMaths, "kernel of the convolution");
  v("mamba_chunk", f.mamba_chunk, kMaths, "chunk of the scan: speed, and the order of sums");
  v("norm_eps", f.norm_eps, kMaths, "epsilon of RMSNorm");
  v("init_sigma", f.init_sigma, kMaths, "standard deviation of the start values");
}

template <class C, class V>
void visit_what(C& c, V& v) {
  v.section("model",
            "What is trained: a preset, a Hugging Face folder, or fields (which are laid over the preset).");
  v("preset", c.model.preset, kMaths, "name of a preset; `nibble help presets` lists them");
  v("path", c.model.path, kMaths, "Hugging Face folder with a config.json");
  visit_model_fields(c.model.fields, v);
  v.section("data", "What it is trained on.");
  v("corpus", c.data.corpus, kMaths, "bundled corpus; data.files take its place when they are given");
  v("files", c.data.files, kMaths, "text files, a document each, to train on");
  v("validation_files", c.data.validation_files, kMaths, "text files to validate on");
  v("validation_fraction", c.data.validation_fraction, kMaths,
    "share at the end of the last training file that is kept for validation when there are no "
    "validation_files");
  v("tokenizer", c.data.tokenizer, kMaths,
    "bpe (trained on the training text), byte, or a path to tokenizer.json");
  v("vocab_size", c.data.vocab_size, kMaths, "tokens of a BPE that is trained");
  v("cache", c.data.cache, kNone, "folder for token shards");
  v("prepared", c.data.prepared, kNone,
    "folder that `nibble data` made, with tokenizer and shards, taken as it is; the text is then not needed");
}

template <class C, class V>
void visit_how(C& c, V& v) {
  v.section("optimizer", "AdamW with FP32 master weights and states.");
  v("lr", c.optimizer.lr, kMaths, "peak learning rate");
  v("beta1", c.optimizer.beta1, kMaths, "decay of the first moment");
  v("beta2", c.optimizer.beta2, kMaths, "decay of the second moment");
  v("eps", c.optimizer.eps, kMaths, "added to the root of the second moment");
  v("weight_decay", c.optimizer.weight_decay, kMaths, "decoupled; on tensors of two or more dimensions only");
  v("clip", c.optimizer.clip, kMaths, "largest global gradient norm; 0: no clipping");
  v.section("schedule", "The learning rate over the run.");
  v("kind", c.schedule.kind, kMaths, "wsd, cosine, linear or constant");
  v("warmup_steps", c.schedule.warmup_steps, kMaths, "the first W steps run at lr (step + 1) / W");
  v("decay_fraction", c.schedule.decay_fraction, kMaths, "wsd: share of the run that decays");
  v("final_ratio", c.schedule.final_ratio, kMaths, "of lr, reached at the last step");
  v.section("training", "Length, batch and machine.");
  v("name", c.training.name, kNone, "folder of the run below `runs`: one name, not a path");
  v("runs", c.training.runs, kNone, "folder of all runs");
  v("steps", c.training.steps, kMaths, "optimizer steps");
  v("batch", c.training.batch, kMaths, "sequences of a step");
  v("micro_batch", c.training.micro_batch, kMaths, "sequences at a time, a divisor of batch; 0: all at once");
  v("sequence", c.training.sequence, kMaths, "tokens of a sequence");
  v("seed", c.training.seed, kMaths, "of start values and data order");
  v("threads", c.training.threads, kNone,
    "threads; 0: as many as the machine has. Results do not depend on it");
  v("backend", c.training.backend, kMaths, "ref, cpu or cuda");
  v("recompute", c.training.recompute, kNone,
    "what backward computes again instead of keeping it: none, light (outputs of norms, SwiGLU and gates) or "
    "block "
    "(all inside a sublayer). The same bits, less memory, more time");
  v("record_steps", c.training.record_steps, kNone,
    "record a step once and issue the record again (CUDA graphs). The same bits");
  v("repeatable", c.training.repeatable, kMaths,
    "the same bits in every run; false: attention's backward pass on cuda adds in any order, which is "
    "faster");
  v("gemm_tuning", c.training.gemm_tuning, kNone,
    "file of `nibble bench --backend cuda --tune-gemms FILE`: measured choices of GEMM algorithms for this "
    "card. "
    "Its contents are part of the run's identity");
}

template <class O, class V>
void visit_override(O& o, V& v) {
  v("layers", o.layers, kMaths, "glob over names of linears");
  v("gemm", o.gemm, kMaths, "fprop, dgrad or wgrad; unset: all");
  v("operand", o.operand, kMaths, "a or b; unset: both");
  v("from_step", o.from_step, kMaths, "first step it holds for");
  v("until_step", o.until_step, kMaths, "first step it no longer holds for; unset: the end");
  v("format", o.format, kMaths,
    "bf16, nvfp4, mxfp4, mxfp6_e2m3, mxfp8_e4m3, fp8_e4m3, fp8_block_e4m3 (docs/recipes.md); unset: as the "
    "recipe has it");
  v("tile", o.tile, kMaths, "row, or square (nvfp4, fp8_block_e4m3)");
  v("rounding", o.rounding, kMaths, "nearest, or of nvfp4 and mxfp4: stochastic, stochastic_exact");
  v("rotation", o.rotation, kMaths, "0, or a power of two from 2 to 128");
}

template <class S, class V>
void visit_switch(S& s, V& v) {
  v("at", s.at, kMaths,
    "steps done before it: a count, or a share of training.steps such as \"82%\", rounded to the nearest "
    "step");
  v("recipe", s.recipe, kMaths, "a name of docs/recipes.md, as it stands there");
  v("gemms", s.gemms, kMaths, "which of fprop, dgrad and wgrad follow it; the others stay as they were");
}

/// The keys of one table of a list.
template <class Entry, class V>
void visit_entry(Entry& entry, V& v) {
  if constexpr (std::is_same_v<std::remove_const_t<Entry>, OverrideSection>)
    visit_override(entry, v);
  else
    visit_switch(entry, v);
}

template <class C, class V>
void visit_precision(C& c, V& v) {
  v.section("precision", "The recipe and its switches. An unset switch is as the recipe has it.");
  v("recipe", c.precision.recipe, kMaths, "a name of docs/recipes.md; of a comparison, the candidate's");
  v("sr_seed", c.precision.sr_seed, kMaths, "of stochastic rounding, apart from training.seed");
  v("native_fp8", c.precision.native_fp8, kMaths,
    "multiply FP8 codes on tensor cores that have FP8; false: exact BF16 operands, as on the other backends");
  v("native_fp4", c.precision.native_fp4, kWhereSet,
    "multiply NVFP4 codes on tensor cores that have FP4 (unset: true); false: exact BF16 operands");
  v("native_mxfp8", c.precision.native_mxfp8, kWhereSet, "likewise MXFP8 codes");
  v("weights_2d", c.precision.weights_2d, kMaths, "16x16 weight tiles");
  v("rht", c.precision.rht, kMaths,
    "random Hadamard transforms: those of the recipe, or of the wgrad operands; false: none");
  v("rht_size", c.precision.rht_size, kMaths, "of the transforms: a power of two from 2 to 128");
  v("rht_signs", c.precision.rht_signs, kMaths, "fixed, redrawn (for each step, layer and GEMM) or none");
  v("rht_gemms", c.precision.rht_gemms, kMaths,
    "whose operands are rotated, of fprop, dgrad and wgrad; empty: as the recipe has it");
  v("sr", c.precision.sr, kMaths, "stochastic rounding of both copies of dy; false: of nothing");
  v("sr_exact", c.precision.sr_exact, kMaths, "24 random bits a value instead of the hardware's 8");
  v("sr_bits", c.precision.sr_bits, kMaths, "random bits a value, 2 to 16");
  v("sr_headroom", c.precision.sr_headroom, kMaths,
    "scales of stochastically rounded nvfp4 17/16 as large, so that nothing is clipped");
  v("bf16_first", c.precision.bf16_first, kMaths,
    "first blocks in BF16; unset: the preset's, or 2 of 62 scaled");
  v("bf16_last", c.precision.bf16_last, kMaths,
    "last blocks in BF16; unset: the preset's, or 8 of 62 scaled");
  v("keep_bf16", c.precision.keep_bf16, kMaths,
    "globs over names of linears kept in BF16, such as \"*.mamba.out\"");
  v("profile", c.precision.profile, kMaths,
    "whose arithmetic: nvfp4.te, .te213, .exact, .torchao, .modelopt or .ct");
  v("non_finite", c.precision.non_finite, kMaths, "a NaN or infinity in an operand: detect (stop), or as_te");
  v("residual", c.precision.residual, kMaths, "residual stream: bf16 or fp32");
  v("residual_gradient", c.precision.residual_gradient, kWhereSet,
    "gradient of the residual stream: fp32 (unset), or bf16, which is faster on a GPU");
  v("logits", c.precision.logits, kMaths,
    "logits of a training step: fp32, or bf16, which is faster on a GPU; evaluation has fp32");
  v("attention_qk", c.precision.attention_qk, kMaths,
    "attention's q k^T and its gradients' products: bf16, fp8, nvfp4 or mxfp8; emulated");
  v("attention_pv", c.precision.attention_pv, kMaths,
    "attention's P v and its gradients' products: likewise");
  v("attention_backward", c.precision.attention_backward, kMaths,
    "false: the gradients' products of attention are not quantised");
  v("tensor_scale", c.precision.tensor_scale, kMaths,
    "what the tensor scale of nvfp4 operands comes from: current (their amax), previous (the step before's), "
    "row (a scale a row) or none");
  v("amax_history", c.precision.amax_history, kMaths,
    "fp8-delayed: steps whose largest amax counts; unset: 1024");
  v("amax_margin", c.precision.amax_margin, kMaths, "fp8-delayed: scales are 2^margin smaller; unset: 0");
  v("accumulate", c.precision.accumulate, kMaths,
    "sums of FP4 products: fp32, or truncating (Blackwell's, by its published model; slow)");
  v.tables("override", c.precision.overrides,
           "Exceptions for some layers, GEMMs, operands and steps; a table each, later ones win.");
  v.tables("switch", c.precision.switches,
           "Another recipe from a step on, without a restart; a table each, in the order of their steps.");
}

template <class A, class V>
void visit_alarms(A& a, V& v) {
  v.section("telemetry.alarms",
            "Thresholds of the alarms; a protocol freezes them. A Fault among them fails a verdict.");
  v("drift_octaves", a.drift_octaves, kNone,
    "warning: log2 amax above its mean over recent measurements: of the second half of the steps so far, 10 "
    "at most");
  v("drift_after", a.drift_after, kNone, "measurements of an operand before its amax is judged");
  v("rise_octaves", a.rise_octaves, kNone,
    "warning: log2 amax above the smallest of its recent measurements");
  v("rise_window", a.rise_window, kNone, "most recent measurements that rise_octaves looks at");
  v("flushed", a.flushed, kNone, "warning: share of non-zero values that decode to zero");
  v("sqnr_db", a.sqnr_db, kNone, "warning: SQNR of an operand below it");
  v("scale_max", a.scale_max, kNone, "warning: share of block scales at the largest code");
  v("scale_zero", a.scale_zero, kNone, "warning: share of blocks that are not zero but whose scale is");
  v("output_error", a.output_error, kNone, "warning: relative error of a GEMM's output against BF16");
  v("gemm_warning", a.gemm_warning, kNone, "warning: times the error that the operands' SQNR explains");
  v("gemm_warning_floor", a.gemm_warning_floor, kNone, "never below this error");
  v("gemm_fault", a.gemm_fault, kNone, "fault: times the error that the operands' SQNR explains");
  v("gemm_fault_floor", a.gemm_fault_floor, kNone, "never below this error");
  v("gain_fault", a.gain_fault, kNone, "fault: distance of an operand's gain from 1");
  v("bias_fault", a.bias_fault, kNone, "fault: growth or shrink under stochastic rounding");
  v("bias_sigmas", a.bias_sigmas, kNone, "beyond so many standard errors");
  v("full_codes", a.full_codes, kNone, "fault: values at the largest code, a block, below it");
  v("gradient_steps", a.gradient_steps, kNone, "first steps whose gradient norms two arms compare");
  v("gradient_fault", a.gradient_fault, kNone, "fault: distance of their median ratio from 1");
}

template <class C, class V>
void visit_around(C& c, V& v) {
  v.section("parallel", "Ranks.");
  v("data", c.parallel.data, kNone, "ranks of data parallelism; 1");
  v.section("checkpoint", "Saving.");
  v("every", c.checkpoint.every, kNone, "steps between checkpoints; 0: at the end alone");
  v("keep", c.checkpoint.keep, kNone, "newest checkpoints that are kept");
  v("resume", c.checkpoint.resume, kNone, "continue from the newest checkpoint");
  v.section("metrics", "The progress line; metrics.jsonl has a row a step.");
  v("progress", c.metrics.progress, kNone, "steps between progress lines");
  v("tensorboard", c.metrics.tensorboard, kNone,
    "also write TensorBoard event files, into tensorboard/ of the run's folder");
  v.section("telemetry", "What quantisation does, a layer, GEMM and operand at a time.");
  v("every", c.telemetry.every, kNone, "steps between measurements; 0: never");
  v("layers", c.telemetry.layers, kNone, "globs over names of linears; empty: all");
  v("gemms", c.telemetry.gemms, kNone, "of fprop, dgrad, wgrad; empty: all");
  v("tensors", c.telemetry.tensors, kNone, "of x, w, dy (or activation, weight, gradient); empty: all");
  v("statistics", c.telemetry.statistics, kNone,
    "names of docs/howto/telemetry.md; empty: all. What alarms need of an operand is logged with any other");
  visit_alarms(c.telemetry.alarms, v);
  v.section("eval", "Validation loss on fixed sequences, and tasks.");
  v("every", c.eval.every, kNone,
    "of `nibble train`: steps between evaluations; 0: every 5 % of the run. `nibble validate` evaluates at "
    "the "
    "steps of its protocol");
  v("sequences", c.eval.sequences, kNone, "validation sequences");
  v("tasks", c.eval.tasks, kNone,
    "folder with a tasks.jsonl, such as data/tasks: its tasks are scored while training "
    "(docs/howto/evaluate.md); empty: none");
  v("every_steps", c.eval.every_steps, kNone,
    "of `nibble train`: steps between evaluations of the tasks, besides the one at the end; 0: that alone");
  v("limit", c.eval.limit, kNone, "examples of each task; 0: all");
  v.section("protocol", "The comparison that `nibble validate` runs.");
  v("baseline", c.protocol.baseline, kNone, "the recipe to compare with");
  v("pairs", c.protocol.pairs, kNone, "pairs of runs, each with its own seed");
  v("aa_arm", c.protocol.aa_arm, kNone, "run the candidate again with another stochastic-rounding seed");
  v("abort", c.protocol.abort, kNone, "stop after a sustained gap above the limit");
  v("limit", c.protocol.limit, kNone, "largest relative gap accepted; 0: from the model's size");
  v("noise_floor", c.protocol.noise_floor, kNone,
    "noise_floor.json of earlier runs of this experiment, from the working directory or the configuration's; "
    "not used, and said so, when the experiment is another");
  v("task_points", c.protocol.task_points, kNone,
    "last evaluations at which both arms score eval.tasks; their mean is compared");
  v.section("ablation", "The arms of `nibble ablate`; its options take their place when given.");
  v("without", c.ablation.without, kNone,
    "ingredients to leave out, one an arm: rht, sr, weights_2d, bf16_blocks; none; empty: all");
  v("arms", c.ablation.arms, kNone, "further arms: 'NAME=key=value;key=value'");
  v("seeds", c.ablation.seeds, kNone, "seeds an arm; 0: protocol.pairs");
  v("baseline_again", c.ablation.baseline_again, kNone,
    "train the baseline with another seed too: other start values and batches, so what a seed alone does");
  v.section("faults", "Planted faults, to see the guards work.");
  v("inject_nan_step", c.faults.inject_nan_step, kMaths, "step whose gradients get a NaN; -1: none");
  v("wgrad_sign_mismatch", c.faults.wgrad_sign_mismatch, kMaths,
    "rotate the wgrad operands by different signs");
  v("stuck_random_bits", c.faults.stuck_random_bits, kMaths, "stochastic rounding draws zeros");
  v("scale_binade_layers", c.faults.scale_binade_layers, kMaths,
    "glob over names of linears whose products read block scales one binade too large");
  v("lost_micro_batches", c.faults.lost_micro_batches, kMaths,
    "the candidate keeps the gradients of its last micro-batch alone");
}

template <class C, class V>
void visit_keys(C& c, V& v) {
  visit_what(c, v);
  visit_how(c, v);
  visit_precision(c, v);
  visit_around(c, v);
}

}  // namespace nibble::config
