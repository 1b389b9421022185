"""Settings of the training loop and of learning from a teacher."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from unicloze.settings.values import Auto, Precision


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The training loop, its optimiser and its output.

    Args:
        steps: Optimiser steps.
        batch_size: Windows, or rows of records, per step, over all its micro-batches.
        micro_batch_size: Windows or rows per forward pass; default: `batch_size`. Smaller values need less memory.
        leaves: Maximum number (a power of 2) of groups of consecutive micro-batches in which a step's gradients are summed;
            the groups are added in a binary tree, so that any number of processes computes the same bits. Also the maximum
            number of processes; each holds about log2(leaves) gradients.
        parallel: What each of several processes of pre-training holds. `replicate`: all weights, gradients and moments; any
            number of processes then computes the same bits. `shard`: a share of them (FSDP2), for models that do not fit on
            one device; results differ in rounding. `auto`: `replicate` while they fit.
        optimizer: `adamw`; `adamax`, Adam with the infinity norm (Kingma and Ba 2015, Section 7.1), without weight decay;
            `lamb`, Adam with each tensor's update scaled to the tensor's norm (You et al. 2020; ALBERT); `adafactor`, with
            learning rates relative to the size of each tensor (Shazeer and Stern 2018; T5); `muon`: Muon for the hidden
            matrices and AdamW for the rest; `sgd`: gradient descent with `momentum`, without weight decay (CVT); or
            `nt_asgd`: gradient descent that starts to average the weights when evaluations stop improving, in pre-training
            only (AWD-LSTM).
        momentum: Momentum of `sgd`.
        average_patience: With `nt_asgd`, averaging starts at an evaluation that is worse than the best one so far, not
            counting this many of the latest.
        learning_rate: Peak learning rate. In fine-tuning, `auto` chooses it by the size of the model.
        muon_learning_rate: Peak learning rate of Muon's matrices; default: `learning_rate` (Muon's update is scaled to the
            size of AdamW's).
        muon_momentum: Momentum of Muon.
        betas: Decay rates of the moments of AdamW, Adamax and LAMB.
        epsilon: Epsilon of AdamW, Adamax and LAMB.
        weight_decay: Decoupled weight decay of every matrix, but not of biases and layer normalisation.
        schedule: `linear`, `cosine`, `wsd` (warm-up, stable, decay) or `constant`, each after a linear warm-up; or
            `slanted_triangular`, from 1/32 of the peak up to the peak within the warm-up and back down (ULMFiT).
            `inverse_sqrt` falls with the inverse square root of the step after the warm-up (Transformer), and
            `flat_inverse_sqrt` does so from the peak, which it keeps for `warmup_steps` (T5). `slow_inverse_sqrt` is 1 / (1 +
            0.005 sqrt(steps)) of the peak, times the warm-up (CVT).
        warmup_steps: Steps of the warm-up.
        decay_steps: Steps of the decay. Default: a tenth of all steps for `wsd`, all steps after the warm-up for `cosine`. A
            shorter `cosine` then stays at its final rate (GPT-3).
        final_rate: Share of the peak learning rate at which `linear`, `cosine` and `wsd` end.
        layer_decay: Factor of the learning rate from each layer to the one below, in pre-training; as of
            `finetuning.layer_decay`.
        clip_norm: Maximum norm of the gradient; 0 disables clipping.
        on_spike: What happens at a step whose gradient spikes, or whose loss, gradient or update is not finite. `accept`
            makes every finite update and stops the run at a number that is not finite. `skip` leaves out the update of the
            step. `go_back` returns to the last checkpoint at a multiple of `save_every` and continues with the text after
            that of the step; before the first checkpoint it skips. The run stops after 10 spikes in a row.
        spike_factor: A gradient spikes if its norm is more than this many times the median of the last 64 updates (of the
            first 16 updates, none is a spike).
        label_smoothing: Share of each predicted token's label that is spread evenly over the vocabulary, in training only
            (Szegedy et al. 2016, Section 7); rejected if no token is predicted.
        phases: Changes over time: each a mapping of the settings (of `objective`, and `data.window`,
            `training.batch_size` and `training.micro_batch_size`) that differ from the recipe's, with `share`, its share of
            the steps (shares are scaled to sum to 1). Default: one phase with the recipe's settings.
        initialize_from: Run, checkpoint or Hugging Face model folder to take initial weights from, wherever name and shape
            match. The model then has that shape unless the command line overrides it.
        word_vectors: File of word vectors from which the embeddings of a new model start: on each line a word and its
            numbers (GloVe's text format); it may be .gz. `frozen: [backbone.embeddings]` keeps them as they are.
        frozen: Parts of the model that are not trained, given as prefixes of weight names: `[generator]`,
            `[backbone.embeddings, backbone.layers.0]`, or `[backbone]` to train only a task's head.
        seed: Seed of initial weights, order, masks and dropout.
        device: cpu, cuda, cuda:N; xpu, xpu:N or mps, which have not been tested; `auto` chooses a CUDA device if there is
            one.
        threads: CPU threads per process; default: torch's own choice. The number affects how sums are rounded.
        precision: `auto`, `bf16` (autocast) or `fp32`.
        attention: `auto`, or an implementation: `explicit` computes all scores, `sdpa` is torch's kernel, `flex` is
            FlexAttention, which skips masked blocks but has no dropout. `auto` takes FlexAttention on a GPU where
            `model.attention_dropout` is 0 and `deterministic` false, else `sdpa`; on a CPU the faster of the other two.
        deterministic: Avoid attention whose gradient is summed in no fixed order: false allows FlexAttention on a GPU, where
            that of the relative position bias has no such order. It changes nothing on a CPU, where runs repeat bit for bit.
        checkpoint_activations: Keep only the input of each layer for the backward pass, which computes the layer again: less
            memory, more time, the same results. Transformers only.
        compile: Compile each layer with torch.compile; default: on a GPU, in pre-training.
        evaluate_every: Steps between evaluations on the held-out windows; 0 evaluates at the end only.
        evaluate_windows: Number of held-out windows to evaluate on.
        log_every: Steps between ledger lines.
        save_every: Steps between checkpoints; 0 saves at the end only.
        keep_checkpoints: Number of most recent checkpoints to keep.
        copy_to: URL of a folder, such as `s3://bucket/runs/mine`, to which each checkpoint of pre-training is copied.
            A run whose own folder is lost resumes from there. Each run needs its own.
    """

    steps: int = 500_000
    batch_size: int = 7680
    micro_batch_size: int | None = None
    leaves: int = 64
    parallel: Literal["auto", "replicate", "shard"] = "auto"
    optimizer: Literal["adamw", "adamax", "lamb", "adafactor", "muon", "sgd", "nt_asgd"] = "adamw"
    momentum: float = 0.9
    average_patience: int = 5
    learning_rate: float | Auto = 6e-4
    muon_learning_rate: float | None = None
    muon_momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    schedule: Literal[
        "linear",
        "cosine",
        "wsd",
        "constant",
        "slanted_triangular",
        "inverse_sqrt",
        "flat_inverse_sqrt",
        "slow_inverse_sqrt",
    ] = "linear"
    warmup_steps: int = 24_000
    decay_steps: int | None = None
    final_rate: float = 0.0
    layer_decay: float = 1.0
    clip_norm: float = 0.0
    on_spike: Literal["accept", "skip", "go_back"] = "accept"
    spike_factor: float = 10.0
    label_smoothing: float = 0.0
    phases: list[dict[str, Any]] = field(default_factory=list)
    initialize_from: str | None = None
    word_vectors: str | None = None
    frozen: list[str] = field(default_factory=list)
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    precision: Precision = "auto"
    attention: Literal["auto", "explicit", "sdpa", "flex"] = "auto"
    deterministic: bool = True
    checkpoint_activations: bool = False
    compile: bool | None = None
    evaluate_every: int = 1000
    evaluate_windows: int = 256
    log_every: int = 10
    save_every: int = 1000
    keep_checkpoints: int = 2
    copy_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """Learning from the predictions of a trained model, the teacher, as well as from the labels (Hinton et al. 2015).

    Args:
        teacher: Run, checkpoint or Hugging Face model folder of the teacher, which has the same tokenizer; for a task, a
            model fine-tuned for it. Default: no teacher.
        temperature: Divisor of the logits of both models in the loss of soft labels.
        weight: Share of the loss that compares with the teacher's predictions; the rest compares with the labels.
    """

    teacher: str | None = None
    temperature: float = 2.0
    weight: float = 0.5
