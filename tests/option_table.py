"""Two values of every setting and option, whose effects must differ in a given command.

A row gives a command (a scene of `SCENES`) and two ways to call it. What is printed, saved or refused must differ; if the row
gives a reason in `same`, it must be identical.
"""

from __future__ import annotations

from typing import NamedTuple

from option_world import OBJECTIVES, OTHERS, Scene

TEXT = "The post office sees an old house. A small café finds the bright garden. The cat follows the window."
TUNE = "--quiet --training.device cpu --training.precision fp32 --training.batch_size 4 --training.learning_rate 0.01"


def _finetune(task: str, records: str, more: str = "", model: str = "unilmv2") -> Scene:
    files = f"--train {{{records}.jsonl}} --dev {{{records}.jsonl}}"
    return Scene(f"finetune --task {task} --model {{RUN:{model}}} {files} {TUNE} --finetuning.epochs 1 {more}")


SEVERAL = (
    "'[{label: one, train: classes.jsonl, metrics: [accuracy]}, "
    "{label: two, train: questions.jsonl, source: {text: context}, target: question}]'"
)

SCENES = {
    **{name: Scene(f"pretrain --recipe {{{name}.yaml}} --quiet --out run") for name in (*OBJECTIVES, *OTHERS)},
    **{
        f"inspect {name}": Scene(
            f"inspect --recipe {{{name}.yaml}} --seed 1 --data.window 48 --objective.mask_rate 0.5 --text '{TEXT}'"
        )
        for name in OBJECTIVES
    },
    "named": Scene("pretrain --recipe {unilmv2.yaml} --quiet"),
    "reported": Scene("pretrain --recipe {unilmv2.yaml} --quiet --out run", then="report run"),
    "used": Scene(
        "pretrain --recipe {unilmv2.yaml} --quiet --out run",
        then=f"finetune --task classification --model run --train {{classes.jsonl}} --out tuned {TUNE}",
    ),
    "embedded": Scene(
        "pretrain --recipe {unilmv2.yaml} --quiet --out run", then="embed --model run --text 'The small'"
    ),
    "writing": Scene(
        "pretrain --recipe {causal.yaml} --quiet --out run", then="generate --model run --text 'The small' --json"
    ),
    "prepare": Scene("prepare --recipe {prepare.yaml} --quiet --out data"),
    "classes": _finetune("classification", "classes", "--task.max_length 24"),
    "numbers": _finetune("regression", "numbers", "--task.pooling first"),
    "choices": _finetune("choice", "choices", "--task.head dense"),
    "tags": _finetune("tagging", "tags", "--task.metrics tag-accuracy --task.head dense"),
    "two ways": _finetune("tagging", "tags", "--task.metrics tag-accuracy", model="two_ways"),
    "questions": _finetune("squad-v2", "questions", "--task.max_length 20 --task.head dense"),
    "turns": _finetune("coqa-extractive", "turns", "--task.max_length 20 --task.head dense"),
    "sources": _finetune("generation", "sources", "--decoding.beams 1 --decoding.max_length 6"),
    "several": Scene(
        "finetune --task generation --model {RUN:unilmv2} --train {.} --decoding.beams 1 --decoding.max_length 6 "
        f"{TUNE} --finetuning.epochs 1 --task.parts {SEVERAL}"
    ),
    "writer": _finetune("generation", "sources", "--finetuning.epochs 20 --finetuning.evaluations 0.05"),
    "predict": Scene("predict --model {TASK:classes} --file {classes.jsonl} --quiet"),
    "unanswerable": Scene("unanswerable --file {answered.jsonl} --out made.jsonl"),
    "measure": Scene("measure-task classification --predictions {said.jsonl} --references {classes.jsonl}"),
    "compare": Scene("compare {unilmv2.yaml} --budget steps=2 --seeds 1 --out all --quiet"),
    "go on": Scene("generate --model {RUN:causal} --text 'The small' --json"),
    "rewrite": Scene("generate --model {TASK:writer} --file {sources.jsonl} --json --quiet"),
    "fill up": Scene("generate --model {RUN:unilmv2} --file {sources.jsonl} --json --quiet"),
}


class Row(NamedTuple):
    """A setting with two values."""

    on: str  # the scene
    second: str  # the second value
    first: str = ""  # the first value; if empty, the scene is unchanged
    beside: str = ""  # options of both calls
    same: str = ""  # why the results must be identical, if they must


WSD = "--training.schedule wsd"
RELATIVE = "--model.relative_bias true"
CHARACTERS = "--model.embeddings characters --model.tied_output false --model.character_filters 4 4"
PROJECTED = "--model.projection true"
TAUGHT = "--distillation.teacher {TASK:classes}"
LORA = "--finetuning.lora_rank 2"
UNLABELLED = "--finetuning.unlabelled {tags.jsonl}"
MUON = "--training.optimizer muon"
ADAMW = "--training.optimizer adamw"
SAMPLE = "--decoding.sample true"
BEAMS = "--decoding.beams 4"


def _on(scene: str, values: dict[str, str]) -> dict[str, Row]:
    """Settings whose given value must differ from that of a scene."""
    return {key: Row(scene, value) for key, value in values.items()}


SETTINGS = {
    **_on("named", {"name": "other"}),
    **_on("reported", {"provenance.paper": "A-paper", "provenance.place": "A-place", "provenance.note": "A-note"}),
    **_on("prepare", {
        "data.corpus": "{other.txt}", "data.heldout_share": "0.4", "data.deduplicate": "false",
        "data.decontaminate": "{other.txt}", "tokenizer.path": "{vocab.txt}", "tokenizer.vocab_size": "100",
        "tokenizer.lowercase": "false", "tokenizer.strip_accents": "true", "tokenizer.extra_tokens": "2",
    }),
    **_on("unprepared", {"data.prepared": "{prepared}"}),
    **_on("unilmv2", {
        "data.window": "16", "data.segments": "1", "data.documents": "joined", "objective.targets": "ae",
        "objective.masking": "token", "objective.mask_unit": "word", "objective.mask_rate": "0.6",
        "objective.final_mask_rate": "0.6", "objective.block_probability": "0.9", "objective.max_span": "2",
        "objective.factorization": "token", "objective.pseudo_token": "mask", "objective.mask_share": "0.3",
        "objective.random_share": "0.2", "objective.corruption_unit": "span", "objective.pairs": "next_sentence",
        "objective.static_copies": "1", "objective.mixture": "'[{mask_rate: 0.5}, {mask_rate: 0.15, label: less}]'",
        "objective.coefficients": "'{par: 0.2}'", "model.hidden_size": "32", "model.num_layers": "3",
        "model.num_heads": "4", "model.head_size": "4", "model.intermediate_size": "16", "model.max_positions": "40",
        "model.num_segments": "3", "model.embedding_size": "8", "model.positions": "none",
        "model.scale_embeddings": "true", "model.share_layers": "attention", "model.activation": "relu",
        "model.gated": "true", "model.biases": "false", "model.scale_scores": "false", "model.head": "linear",
        "model.head_bias": "false", "model.tied_output": "false", "model.scale_output": "true", "model.pooler": "true",
        "model.norm": "pre", "model.norm_kind": "rms", "model.embedding_norm": "false", "model.relative_bias": "true",
        "model.dropout": "0.3", "model.attention_dropout": "0.3", "model.activation_dropout": "0.3",
        "model.final_dropout": "0.3", "model.layer_norm_eps": "0.01", "model.initializer": "truncated_normal",
        "model.initializer_range": "0.1", "model.adapter_size": "8", "model.scaled_init": "true", "training.steps": "4",
        "training.batch_size": "8", "training.micro_batch_size": "2", "training.optimizer": "muon",
        "training.learning_rate": "0.02", "training.betas": "0.5 0.6", "training.epsilon": "0.01",
        "training.weight_decay": "0.5", "training.schedule": "constant", "training.warmup_steps": "2",
        "training.final_rate": "0.5", "training.layer_decay": "0.5", "training.head_learning_rate": "0.05",
        "training.start": "counts", "training.clip_norm": "0.1",
        "training.label_smoothing": "0.2", "training.phases": "'[{share: 1}, {share: 1, objective.mask_rate: 0.5}]'",
        "training.initialize_from": "{RUN:masked}", "training.word_vectors": "{vectors.txt}",
        "training.frozen": "backbone.layers.0", "training.seed": "1", "training.device": "cuda:97",
        "training.precision": "bf16", "training.compile": "true", "training.evaluate_every": "1",
        "training.evaluate_windows": "2", "training.log_every": "2", "training.save_every": "1",
    }),
    **_on("streams", {"data.order": "shuffled", "data.directions": "both", "model.memory": "8"}),
    **_on("masked", {"objective.visibility": "left_to_right", "objective.segment_ids": "[1,0]"}),
    **_on("local", {"objective.local_width": "2", "model.layer_visibility": "full local"}),
    **_on("denoising", {
        "objective.mean_span": "1.0", "objective.noise": "delete", "objective.source_start": "false",
        "objective.target_start": "eos sos", "objective.restart_positions": "true",
    }),
    **_on("prefix", {"objective.mode_token": "20"}),
    **_on("block_diffusion", {"objective.block_size": "2"}),
    **_on("causal", {"model.kind": "recurrent"}),
    **_on("classes", {
        "model.layer_mix": "true", "task.kind": "choice", "task.format": "tsv", "task.fields": "'{text: pair}'",
        "task.optional": "pair predicate", "task.labels": "same other third", "task.class_weights": "balanced",
        "task.metrics": "matthews", "task.max_length": "8", "task.head": "plain", "task.pooling": "last",
        "task.head_dropout": "0.5", "task.delimiter": "true", "task.evaluate_records": "4", "task.train_records": "4",
        "finetuning.epochs": "2", "finetuning.warmup_share": "0.5", "finetuning.evaluations": "3",
        "finetuning.fit_head": "true", "finetuning.auxiliary": "'{ae: 1.0}'", "finetuning.layer_decay": "0.5",
        "finetuning.unfreeze_epochs": "0.4", "distillation.teacher": "{TASK:classes}", "finetuning.lora_rank": "2",
        "finetuning.adapter_size": "2",
    }),
    **_on("electra", {"model.generator_size": "1.0"}),
    **_on("recurrent", {
        "model.directions": "both", "model.projection": "true", "model.cell_clip": "0.01",
        "model.embedding_dropout": "0.5", "model.input_dropout": "0.5", "model.hidden_dropout": "0.5",
        "model.weight_dropout": "0.5", "model.activation_penalty": "2.0", "model.temporal_penalty": "2.0",
    }),
    **_on("used", {"use.visibility": "left_to_right", "use.pooling": "last", "use.separators": "2"}),
    **_on("embedded", {"use.normalize": "true", "use.prompt": "The"}),
    **_on("two ways", {"task.layers": "all", "finetuning.unlabelled": "{tags.jsonl}"}),
    **_on("tags", {"task.predicate": "repeat", "task.encoder_size": "4"}),
    **_on("questions", {
        "task.max_question": "1", "task.stride": "2", "task.max_answer": "1", "task.n_best": "2",
        "task.unanswerable": "false", "task.no_answer_threshold": "5.0",
    }),
    **_on("sources", {
        "generation.learning": "next", "generation.source": "source hint", "generation.max_source": "6",
        "generation.max_target": "3", "generation.mask_share": "0.3", "generation.random_share": "0.2",
        "generation.target_noise": "0", "generation.block_size": "2", "generation.any_order": "true",
        "generation.segment_ids": "[1,0]", "task.parts": SEVERAL,
    }),
    **_on("go on", {
        "decoding.beams": "4", "decoding.sample": "true", "decoding.max_length": "4", "decoding.no_repeat_ngram": "1",
    }),
    **_on("rewrite", {"decoding.min_length": "5"}),
    **_on("fill up", {"decoding.parallel": "2"}),
    **_on("several", {"task.mixing_cap": "1", "task.mixing_temperature": "9"}),
    "data.weights": Row("unprepared", "1 3", "1 1",
        beside="--data.corpus {text.txt} {other.txt} --data.deduplicate false" ),
    "data.text_field": Row("prepare", "body", beside="--data.corpus {fields.jsonl}"),
    "data.spans_field": Row("prepare", "marked", beside="--data.corpus {fields.jsonl}"),
    "data.overlap": Row("streams", "0.5", beside="--data.documents joined"),
    "data.lengths": Row("recurrent", "random", beside="--data.documents joined"),
    "data.decontaminate_ngram": Row("prepare", "400", "20", beside="--data.decontaminate {other.txt}"),
    "data.phrases": Row("unilmv2", "{phrases-2.txt}", "{phrases.txt}", beside="--objective.mask_unit phrase"),
    "tokenizer.kind": Row("prepare", "bpe", beside="--tokenizer.vocab_size 400"),
    "objective.name": Row("unilmv2", "permuted", beside="--objective.targets par"),
    "objective.unmarked_unit": Row("unprepared", "word",
        beside="--data.corpus {fields.jsonl} --objective.mask_unit entity --data.spans_field marked"),
    "objective.geometric_p": Row("unilmv2", "0.9", beside="--objective.masking geometric"),
    "objective.masks_in_context": Row("unilmv2", "false", beside="--objective.targets par"),
    "model.decoder_layers": Row("denoising", "2", beside="--objective.target_start eos"),
    "model.embeddings": Row("recurrent", "characters", "table", beside="--model.tied_output false"),
    "model.character_size": Row("recurrent", "4", beside=CHARACTERS),
    "model.character_filters": Row("recurrent", "4 8", "4 4", beside=CHARACTERS.rpartition(" --")[0]),
    "model.character_highways": Row("recurrent", "1", beside=CHARACTERS),
    "model.relative_start": Row("unilmv2", "neighbours", beside=RELATIVE),
    "model.relative_buckets": Row("unilmv2", "8", beside=RELATIVE),
    "model.relative_max_distance": Row("unilmv2", "12", beside=RELATIVE),
    "model.residual": Row("recurrent", "true", beside=PROJECTED),
    "model.projection_clip": Row("recurrent", "0.01", beside=PROJECTED),
    "training.leaves": Row("unilmv2", "1", beside="--training.micro_batch_size 1"),
    "training.average_patience": Row("unilmv2", "1",
        beside="--training.optimizer nt_asgd --training.evaluate_every 1 --training.learning_rate 8 --training.steps 6"),
    "training.momentum": Row("unilmv2", "0.1", beside="--training.optimizer sgd --training.weight_decay 0"),
    "training.muon_learning_rate": Row("unilmv2", "0.02", beside=MUON),
    "training.muon_momentum": Row("unilmv2", "0.5", beside=MUON),
    "training.decay_steps": Row("unilmv2", "2", beside=WSD),
    "training.on_spike": Row("unilmv2", "skip --training.spike_factor 1", beside="--training.steps 24"),
    "training.spike_factor": Row("unilmv2", "1", beside="--training.steps 24 --training.on_spike skip"),
    "training.threads": Row("unilmv2", "2", "1"),
    "training.parallel": Row("unilmv2", "shard", "replicate", same="a single process holds the whole model",
        beside=ADAMW ),
    "training.attention": Row("unilmv2", "explicit", beside="--model.attention_dropout 0"),
    "training.checkpoint_activations": Row("unilmv2", "true", same="memory only: no bit changes"),
    "training.deterministic": Row("unilmv2", "false", same="a CPU repeats its bits anyway"),
    "training.keep_checkpoints": Row("unilmv2", "1", beside="--training.save_every 1"),
    "training.copy_to": Row("unilmv2", "memory://copies", same="a copy changes nothing of the run"),
    "task.head_size": Row("classes", "8", "4", beside="--task.head biattentive"),
    "task.both_orders": Row("classes", "true", beside="--task.pooling first"),
    "task.output_mix": Row("tags", "true", beside="--task.encoder_size 4 --model.layer_mix true"),
    "task.no_answer": Row("questions", "class", "span"),
    "task.metric_options": Row("classes", "'{positive: other}'", "'{positive: same}'", beside="--task.metrics f1"),
    "generation.keep": Row("sources", "end", beside="--generation.max_source 6"),
    "generation.chunk_by": Row("sources", "source",
        beside="--generation.keep chunk --generation.source source hint --generation.max_source 8" ),
    "generation.targets": Row("sources", "all", beside="--task.fields '{target: references}'"),
    "generation.mask_rate": Row("sources", "0.3", beside="--generation.learning masked"),
    "decoding.temperature": Row("go on", "0.1", beside=SAMPLE),
    "decoding.top_k": Row("go on", "2", beside=SAMPLE),
    "decoding.top_p": Row("go on", "0.1", beside=SAMPLE),
    "decoding.length_penalty": Row("go on", "5", beside=f"{BEAMS} --decoding.num_results 4"),
    "decoding.may_repeat": Row("go on", "the . old", beside="--decoding.no_repeat_ngram 1"),
    "decoding.early_stop": Row("rewrite", "first", beside=f"{BEAMS} --decoding.length_penalty 5"),
    "decoding.num_results": Row("go on", "2", beside=BEAMS),
    "decoding.seed": Row("go on", "1", beside=SAMPLE),
    "decoding.batch_size": Row("rewrite", "3", same="speed only: a text does not depend on others in its batch"),
    "decoding.precision": Row("rewrite", "bf16", beside=f"{BEAMS} --decoding.num_results 4"),
    "finetuning.patience": Row("classes", "1", beside="--finetuning.epochs 4 --training.learning_rate 1e-12"),
    "finetuning.views": Row("two ways", "past", beside=UNLABELLED),
    "finetuning.unlabelled_dropout": Row("two ways", "0.0", beside=UNLABELLED),
    "finetuning.average_last": Row("classes", "2", beside="--finetuning.epochs 2"),
    "distillation.temperature": Row("classes", "9", beside=TAUGHT),
    "distillation.weight": Row("classes", "0.9", beside=TAUGHT),
    "finetuning.lora_alpha": Row("classes", "8", beside=LORA),
    "finetuning.lora_dropout": Row("classes", "0.5", beside=LORA),
    "finetuning.lora_projections": Row("classes", "key outer", beside=LORA),
}  # fmt: skip
"""Every dotted setting."""

VERBS = {
    "prepare": "prepare", "pretrain": "unilmv2", "inspect": "inspect unilmv2", "finetune": "classes",
    "predict": "predict", "generate": "rewrite", "unanswerable": "unanswerable", "measure-task": "measure",
}  # fmt: skip
"""A scene of each verb that takes settings, except `compare`."""

SAVED = "kept in the run's recipe, from which `generate` takes it"
TITLE = "kept in the run's recipe, from which `report` takes it"
RULES = "read by the rules that the recipe is held to"
NO_EFFECT = {
    ("prepare", "name"): "names the folder only where --out is not given",
    **{("pretrain", key): SAVED for key in SETTINGS if key.startswith("decoding.")},
    ("inspect", "data.prepared"): "what the recipe has",
    ("inspect", "data.documents"): RULES,
    ("inspect", "tokenizer.extra_tokens"): RULES,
    ("inspect", "model.num_segments"): RULES,
    ("inspect", "objective.pairs"): "a single text is never paired with another; " + RULES,
    **{("finetune", f"provenance.{name}"): TITLE for name in ("paper", "place", "note")},
    ("finetune", "training.checkpoint_activations"): "memory only: no bit changes",
    ("finetune", "training.deterministic"): "a CPU repeats its bits anyway",
    (
        "measure-task",
        "task.fields",
    ): "predictions are compared with labels; a role that the task does not have is refused",
}
"""Settings that a verb accepts but that change nothing in its scene, and why."""
