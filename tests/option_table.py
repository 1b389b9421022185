"""Two values of every setting and option, whose effects must differ in a given command.

A row gives a command (a scene of `SCENES`) and two ways to call it. What is printed, saved or refused must differ; if the row
gives a reason in `same`, it must be identical.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Row:
    """A setting or an option with two values.

    Args:
        on: The scene.
        second: The second value of a setting; the words of the second call for an option.
        first: The first value or call; if empty, the scene is unchanged.
        beside: Options of both calls.
        same: Why the results must be identical, if they must.
    """

    on: str
    second: str
    first: str = ""
    beside: str = ""
    same: str = ""


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

SETTINGS = {
    "name": Row("named", "other"),
    "provenance.paper": Row("reported", "A-paper"),
    "provenance.place": Row("reported", "A-place"),
    "provenance.note": Row("reported", "A-note"),
    "data.corpus": Row("prepare", "{other.txt}"),
    "data.weights": Row(
        "unprepared", "1 3", "1 1", beside="--data.corpus {text.txt} {other.txt} --data.deduplicate false"
    ),
    "data.text_field": Row("prepare", "body", beside="--data.corpus {fields.jsonl}"),
    "data.spans_field": Row("prepare", "marked", beside="--data.corpus {fields.jsonl}"),
    "data.prepared": Row("unprepared", "{prepared}"),
    "data.window": Row("unilmv2", "16"),
    "data.segments": Row("unilmv2", "1"),
    "data.documents": Row("unilmv2", "joined"),
    "data.order": Row("streams", "shuffled"),
    "data.overlap": Row("streams", "0.5", beside="--data.documents joined"),
    "data.directions": Row("streams", "both"),
    "data.lengths": Row("recurrent", "random", beside="--data.documents joined"),
    "data.heldout_share": Row("prepare", "0.4"),
    "data.deduplicate": Row("prepare", "false"),
    "data.decontaminate": Row("prepare", "{other.txt}"),
    "data.decontaminate_ngram": Row("prepare", "400", "20", beside="--data.decontaminate {other.txt}"),
    "data.phrases": Row("unilmv2", "{phrases-2.txt}", "{phrases.txt}", beside="--objective.mask_unit phrase"),
    "tokenizer.path": Row("prepare", "{vocab.txt}"),
    "tokenizer.kind": Row("prepare", "bpe", beside="--tokenizer.vocab_size 400"),
    "tokenizer.vocab_size": Row("prepare", "100"),
    "tokenizer.lowercase": Row("prepare", "false"),
    "tokenizer.strip_accents": Row("prepare", "true"),
    "tokenizer.extra_tokens": Row("prepare", "2"),
    "objective.name": Row("unilmv2", "permuted", beside="--objective.targets par"),
    "objective.targets": Row("unilmv2", "ae"),
    "objective.masking": Row("unilmv2", "token"),
    "objective.mask_unit": Row("unilmv2", "word"),
    "objective.unmarked_unit": Row(
        "unprepared",
        "word",
        beside="--data.corpus {fields.jsonl} --objective.mask_unit entity --data.spans_field marked",
    ),
    "objective.mask_rate": Row("unilmv2", "0.6"),
    "objective.final_mask_rate": Row("unilmv2", "0.6"),
    "objective.block_probability": Row("unilmv2", "0.9"),
    "objective.max_span": Row("unilmv2", "2"),
    "objective.geometric_p": Row("unilmv2", "0.9", beside="--objective.masking geometric"),
    "objective.factorization": Row("unilmv2", "token"),
    "objective.masks_in_context": Row("unilmv2", "false", beside="--objective.targets par"),
    "objective.pseudo_token": Row("unilmv2", "mask"),
    "objective.mask_share": Row("unilmv2", "0.3"),
    "objective.random_share": Row("unilmv2", "0.2"),
    "objective.corruption_unit": Row("unilmv2", "span"),
    "objective.visibility": Row("masked", "left_to_right"),
    "objective.local_width": Row("local", "2"),
    "objective.segment_ids": Row("masked", "[1,0]"),
    "objective.pairs": Row("unilmv2", "next_sentence"),
    "objective.static_copies": Row("unilmv2", "1"),
    "objective.mean_span": Row("denoising", "1.0"),
    "objective.noise": Row("denoising", "delete"),
    "objective.mode_token": Row("prefix", "20"),
    "objective.source_start": Row("denoising", "false"),
    "objective.target_start": Row("denoising", "eos sos"),
    "objective.restart_positions": Row("denoising", "true"),
    "objective.block_size": Row("block_diffusion", "2"),
    "objective.mixture": Row("unilmv2", "'[{mask_rate: 0.5}, {mask_rate: 0.15, label: less}]'"),
    "objective.coefficients": Row("unilmv2", "'{par: 0.2}'"),
    "model.kind": Row("causal", "recurrent"),
    "model.hidden_size": Row("unilmv2", "32"),
    "model.num_layers": Row("unilmv2", "3"),
    "model.decoder_layers": Row("denoising", "2", beside="--objective.target_start eos"),
    "model.num_heads": Row("unilmv2", "4"),
    "model.head_size": Row("unilmv2", "4"),
    "model.intermediate_size": Row("unilmv2", "16"),
    "model.max_positions": Row("unilmv2", "40"),
    "model.num_segments": Row("unilmv2", "3"),
    "model.embedding_size": Row("unilmv2", "8"),
    "model.embeddings": Row("recurrent", "characters", "table", beside="--model.tied_output false"),
    "model.character_size": Row("recurrent", "4", beside=CHARACTERS),
    "model.character_filters": Row("recurrent", "4 8", "4 4", beside=CHARACTERS.rpartition(" --")[0]),
    "model.character_highways": Row("recurrent", "1", beside=CHARACTERS),
    "model.positions": Row("unilmv2", "none"),
    "model.scale_embeddings": Row("unilmv2", "true"),
    "model.memory": Row("streams", "8"),
    "model.share_layers": Row("unilmv2", "attention"),
    "model.layer_visibility": Row("local", "full local"),
    "model.activation": Row("unilmv2", "relu"),
    "model.gated": Row("unilmv2", "true"),
    "model.biases": Row("unilmv2", "false"),
    "model.scale_scores": Row("unilmv2", "false"),
    "model.head": Row("unilmv2", "linear"),
    "model.head_bias": Row("unilmv2", "false"),
    "model.layer_mix": Row("classes", "true"),
    "model.tied_output": Row("unilmv2", "false"),
    "model.scale_output": Row("unilmv2", "true"),
    "model.pooler": Row("unilmv2", "true"),
    "model.generator_size": Row("electra", "1.0"),
    "model.norm": Row("unilmv2", "pre"),
    "model.norm_kind": Row("unilmv2", "rms"),
    "model.embedding_norm": Row("unilmv2", "false"),
    "model.relative_bias": Row("unilmv2", "true"),
    "model.relative_start": Row("unilmv2", "neighbours", beside=RELATIVE),
    "model.relative_buckets": Row("unilmv2", "8", beside=RELATIVE),
    "model.relative_max_distance": Row("unilmv2", "12", beside=RELATIVE),
    "model.directions": Row("recurrent", "both"),
    "model.projection": Row("recurrent", "true"),
    "model.residual": Row("recurrent", "true", beside=PROJECTED),
    "model.cell_clip": Row("recurrent", "0.01"),
    "model.projection_clip": Row("recurrent", "0.01", beside=PROJECTED),
    "model.dropout": Row("unilmv2", "0.3"),
    "model.embedding_dropout": Row("recurrent", "0.5"),
    "model.input_dropout": Row("recurrent", "0.5"),
    "model.hidden_dropout": Row("recurrent", "0.5"),
    "model.weight_dropout": Row("recurrent", "0.5"),
    "model.activation_penalty": Row("recurrent", "2.0"),
    "model.temporal_penalty": Row("recurrent", "2.0"),
    "model.attention_dropout": Row("unilmv2", "0.3"),
    "model.activation_dropout": Row("unilmv2", "0.3"),
    "model.final_dropout": Row("unilmv2", "0.3"),
    "model.layer_norm_eps": Row("unilmv2", "0.01"),
    "model.initializer": Row("unilmv2", "truncated_normal"),
    "model.initializer_range": Row("unilmv2", "0.1"),
    "model.adapter_size": Row("unilmv2", "8"),
    "model.scaled_init": Row("unilmv2", "true"),
    "training.steps": Row("unilmv2", "4"),
    "training.batch_size": Row("unilmv2", "8"),
    "training.micro_batch_size": Row("unilmv2", "2"),
    "training.leaves": Row("unilmv2", "1", beside="--training.micro_batch_size 1"),
    "training.optimizer": Row("unilmv2", "muon"),
    "training.average_patience": Row(
        "unilmv2",
        "1",
        beside="--training.optimizer nt_asgd --training.evaluate_every 1 --training.learning_rate 8 --training.steps 6",
    ),
    "training.learning_rate": Row("unilmv2", "0.02"),
    "training.momentum": Row("unilmv2", "0.1", beside="--training.optimizer sgd --training.weight_decay 0"),
    "training.muon_learning_rate": Row("unilmv2", "0.02", beside=MUON),
    "training.muon_momentum": Row("unilmv2", "0.5", beside=MUON),
    "training.betas": Row("unilmv2", "0.5 0.6"),
    "training.epsilon": Row("unilmv2", "0.01"),
    "training.weight_decay": Row("unilmv2", "0.5"),
    "training.schedule": Row("unilmv2", "constant"),
    "training.warmup_steps": Row("unilmv2", "2"),
    "training.decay_steps": Row("unilmv2", "2", beside=WSD),
    "training.final_rate": Row("unilmv2", "0.5"),
    "training.layer_decay": Row("unilmv2", "0.5"),
    "training.clip_norm": Row("unilmv2", "0.1"),
    "training.on_spike": Row(
        "unilmv2", "skip", "go_back", beside="--training.steps 24 --training.save_every 2 --training.spike_factor 1"
    ),
    "training.spike_factor": Row("unilmv2", "1", beside="--training.steps 24 --training.on_spike skip"),
    "training.label_smoothing": Row("unilmv2", "0.2"),
    "training.phases": Row("unilmv2", "'[{share: 1}, {share: 1, objective.mask_rate: 0.5}]'"),
    "training.initialize_from": Row("unilmv2", "{RUN:masked}"),
    "training.word_vectors": Row("unilmv2", "{vectors.txt}"),
    "training.frozen": Row("unilmv2", "backbone.layers.0"),
    "training.seed": Row("unilmv2", "1"),
    "training.device": Row("unilmv2", "cuda:97"),
    "training.threads": Row("unilmv2", "2", "1"),
    "training.parallel": Row(
        "unilmv2", "shard", "replicate", same="a single process holds the whole model", beside=ADAMW
    ),
    "training.precision": Row("unilmv2", "bf16"),
    "training.attention": Row("unilmv2", "explicit", beside="--model.attention_dropout 0"),
    "training.checkpoint_activations": Row("unilmv2", "true", same="memory only: no bit changes"),
    "training.compile": Row("unilmv2", "true"),
    "training.deterministic": Row("unilmv2", "false", same="a CPU repeats its bits anyway"),
    "training.evaluate_every": Row("unilmv2", "1"),
    "training.evaluate_windows": Row("unilmv2", "2"),
    "training.log_every": Row("unilmv2", "2"),
    "training.save_every": Row("unilmv2", "1"),
    "training.keep_checkpoints": Row("unilmv2", "1", beside="--training.save_every 1"),
    "training.copy_to": Row("unilmv2", "memory://copies", same="a copy changes nothing of the run"),
    "use.visibility": Row("used", "left_to_right"),
    "use.pooling": Row("used", "last"),
    "use.separators": Row("used", "2"),
    "use.normalize": Row("embedded", "true"),
    "use.prompt": Row("embedded", "The"),
    "task.kind": Row("classes", "choice"),
    "task.format": Row("classes", "tsv"),
    "task.fields": Row("classes", "'{text: pair}'"),
    "task.optional": Row("classes", "pair predicate"),
    "task.labels": Row("classes", "same other third"),
    "task.class_weights": Row("classes", "balanced"),
    "task.metrics": Row("classes", "matthews"),
    "task.max_length": Row("classes", "8"),
    "task.head": Row("classes", "plain"),
    "task.layers": Row("two ways", "all"),
    "task.pooling": Row("classes", "last"),
    "task.head_dropout": Row("classes", "0.5"),
    "task.head_size": Row("classes", "8", "4", beside="--task.head biattentive"),
    "task.delimiter": Row("classes", "true"),
    "task.both_orders": Row("classes", "true", beside="--task.pooling first"),
    "task.predicate": Row("tags", "repeat"),
    "task.encoder_size": Row("tags", "4"),
    "task.output_mix": Row("tags", "true", beside="--task.encoder_size 4 --model.layer_mix true"),
    "task.max_question": Row("questions", "1"),
    "task.stride": Row("questions", "2"),
    "task.max_answer": Row("questions", "1"),
    "task.n_best": Row("questions", "2"),
    "task.unanswerable": Row("questions", "false"),
    "task.no_answer": Row("questions", "class", "span"),
    "task.no_answer_threshold": Row("questions", "5.0"),
    "task.metric_options": Row("classes", "'{positive: other}'", "'{positive: same}'", beside="--task.metrics f1"),
    "task.evaluate_records": Row("classes", "4"),
    "task.train_records": Row("classes", "4"),
    "generation.learning": Row("sources", "next"),
    "generation.source": Row("sources", "source hint"),
    "generation.keep": Row("sources", "end", beside="--generation.max_source 6"),
    "generation.chunk_by": Row(
        "sources", "source", beside="--generation.keep chunk --generation.source source hint --generation.max_source 8"
    ),
    "generation.targets": Row("sources", "all", beside="--task.fields '{target: references}'"),
    "generation.max_source": Row("sources", "6"),
    "generation.max_target": Row("sources", "3"),
    "generation.mask_rate": Row("sources", "0.3", beside="--generation.learning masked"),
    "generation.mask_share": Row("sources", "0.3"),
    "generation.random_share": Row("sources", "0.2"),
    "generation.target_noise": Row("sources", "0"),
    "generation.block_size": Row("sources", "2"),
    "generation.any_order": Row("sources", "true"),
    "generation.segment_ids": Row("sources", "[1,0]"),
    "decoding.beams": Row("go on", "4"),
    "decoding.sample": Row("go on", "true"),
    "decoding.temperature": Row("go on", "0.1", beside=SAMPLE),
    "decoding.top_k": Row("go on", "2", beside=SAMPLE),
    "decoding.top_p": Row("go on", "0.1", beside=SAMPLE),
    "decoding.min_length": Row("rewrite", "5"),
    "decoding.max_length": Row("go on", "4"),
    "decoding.length_penalty": Row("go on", "5", beside=f"{BEAMS} --decoding.num_results 4"),
    "decoding.no_repeat_ngram": Row("go on", "1"),
    "decoding.may_repeat": Row("go on", "the . old", beside="--decoding.no_repeat_ngram 1"),
    "decoding.early_stop": Row("rewrite", "first", beside=f"{BEAMS} --decoding.length_penalty 5"),
    "decoding.num_results": Row("go on", "2", beside=BEAMS),
    "decoding.parallel": Row("fill up", "2"),
    "decoding.seed": Row("go on", "1", beside=SAMPLE),
    "decoding.batch_size": Row("rewrite", "3", same="speed only: a text does not depend on others in its batch"),
    "decoding.precision": Row("rewrite", "bf16", beside=f"{BEAMS} --decoding.num_results 4"),
    "finetuning.epochs": Row("classes", "2"),
    "finetuning.warmup_share": Row("classes", "0.5"),
    "finetuning.evaluations": Row("classes", "3"),
    "finetuning.patience": Row("classes", "1", beside="--finetuning.epochs 4"),
    "finetuning.auxiliary": Row("classes", "'{ae: 1.0}'"),
    "finetuning.unlabelled": Row("two ways", "{tags.jsonl}"),
    "finetuning.views": Row("two ways", "past", beside=UNLABELLED),
    "finetuning.unlabelled_dropout": Row("two ways", "0.0", beside=UNLABELLED),
    "finetuning.average_last": Row("classes", "2", beside="--finetuning.epochs 2"),
    "finetuning.layer_decay": Row("classes", "0.5"),
    "finetuning.unfreeze_epochs": Row("classes", "0.4"),
    "task.parts": Row("sources", SEVERAL),
    "task.mixing_cap": Row("several", "1"),
    "task.mixing_temperature": Row("several", "9"),
    "distillation.teacher": Row("classes", "{TASK:classes}"),
    "distillation.temperature": Row("classes", "9", beside=TAUGHT),
    "distillation.weight": Row("classes", "0.9", beside=TAUGHT),
    "finetuning.lora_rank": Row("classes", "2"),
    "finetuning.lora_alpha": Row("classes", "8", beside=LORA),
    "finetuning.lora_dropout": Row("classes", "0.5", beside=LORA),
    "finetuning.lora_projections": Row("classes", "key outer", beside=LORA),
    "finetuning.adapter_size": Row("classes", "2"),
}
"""Every dotted setting."""

VERBS = {
    "prepare": "prepare",
    "pretrain": "unilmv2",
    "inspect": "inspect unilmv2",
    "finetune": "classes",
    "predict": "predict",
    "generate": "rewrite",
    "unanswerable": "unanswerable",
    "measure-task": "measure",
}
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
