"""Starts runs, and extends them by more steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from heed.errors import TaskError, UsageError, convert_value_errors
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs._architectures import architecture as known_architecture
from heed.seq2seq.runs._architectures import model_values
from heed.seq2seq.runs._model_size import check_training
from heed.seq2seq.runs.config_file import ConfigFile
from heed.seq2seq.runs.fine_tuning import INITIAL, inherit_model, make_initial_weights
from heed.seq2seq.runs.origins import Origin, RunOrigin
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.text.scoring import choose_bleu_tokenizer, load_sacrebleu
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, START_ID


def start_run(
    path: Path | str,
    task: Task,
    *,
    architecture: str | None = None,
    preset: str | None = None,
    init_from: RunFolder | Origin | None = None,
    config_file: ConfigFile | None = None,
    write: bool = True,
    **options: Any,
) -> RunFolder:
    """Make a new run. Options override the preset, the preset the task's recipe, and the recipe the defaults.

    Args:
        path: the run folder to make.
        task: the task to learn: `NumbersTask(("en", "de"))`, `TextTask.create(source, target)`.
        architecture: "transformer" (the default) or "recurrent".
        preset: the size of the model: "mini", "tiny", "base" or "big"; None takes that of the task's recipe.
        init_from: a trained run to start from, or the result of `open_origin`. The new run takes its model and weights;
            embeddings of tokens that only the new vocabulary has are initialised.
        config_file: the file that asked for the run, kept in its folder.
        write: whether to write the folder; otherwise `RunFolder.write` does later.
        **options: fields of `TrainingOptions`, or of the model's config (`TransformerConfig`,
            `RecurrentTranslatorConfig`).

    Raises:
        TaskError: if the folder is in use or cannot be made, a value is bad, or the model does not fit into memory.
            Nothing has been written then.

    Example:
        >>> import tempfile
        >>> from heed.seq2seq import NumbersTask
        >>> run = start_run(tempfile.mkdtemp(), NumbersTask(), steps=10)
        >>> run.options.steps, run.config["model"]["width"]
        (10, 128)
    """
    recipe = dict(task.recipe)
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    training = {
        name: values.pop(name)
        for values in (recipe, options)
        for name in names & set(values)
    }  # fmt: skip
    origin = RunOrigin(init_from) if isinstance(init_from, RunFolder) else init_from
    if origin is None:
        architecture = "transformer" if architecture is None else architecture
        values = model_values(architecture, preset, recipe, options)
    else:
        chosen = {"architecture": architecture, "preset": preset, **options}
        architecture, values = inherit_model(origin, chosen)
    if values.get("share_embeddings") and not task.shares_vocabulary:
        raise UsageError(
            "`share_embeddings` must be False if each side has its own vocabulary "
            "(own text: --vocabulary shared). Received: share_embeddings=True"
        )
    values |= {"pad_id": PAD_ID, "start_id": START_ID, "end_id": END_ID}
    values["source_vocabulary_size"] = task.source_vocabulary_size
    values["target_vocabulary_size"] = task.target_vocabulary_size
    with convert_value_errors():
        model = known_architecture(architecture).config.from_dict(values)
    if task.has_alignments:
        if getattr(model, "attention", None) == "none":
            raise UsageError(
                "an alignment guides attention, and a model with attention='none' has none"
            )
    elif "alignment_weight" in training:
        raise UsageError("`alignment_weight` is for text with an alignment: give --alignment too")
    training_options = TrainingOptions(**training)
    if training_options.validate_with != "loss":
        load_sacrebleu(training_options.validate_with)
        if training_options.validate_with == "bleu":
            # Another machine may have other tokenizers: its scores would be compared with these.
            references = [text for _, text in task.validation_texts()]
            tokenizer = choose_bleu_tokenizer(references, training_options.bleu_tokenizer)
            training_options = dataclasses.replace(training_options, bleu_tokenizer=tokenizer)
    if write:
        RunFolder.check_free(Path(path))
    check_training(model, task, training_options)
    task.check_batches(training_options)
    others = {} if config_file is None else {"train.yaml": config_file.data}
    if origin is not None:
        others[INITIAL] = make_initial_weights(
            origin, task, architecture, model, training_options.seed
        )
    run = RunFolder.draft(path, task, training_options, model.to_dict(), architecture, others)
    if write:
        run.write()
    return run


def extend_run(run: RunFolder, steps: int) -> RunFolder:
    """Extend a run by more steps, in its folder; the run is no longer complete.

    The learning rate of further steps is that of a run that was as long from the start. With "constant" and
    "inverse_sqrt" the extended run equals such a run bit for bit. A cosine, which was near zero, jumps to its value in
    the middle of the longer run and falls to zero again. The warm-up keeps its length. A run that stopped early
    continues from its last weights and remembers its best.

    Args:
        run: the run folder.
        steps: the number of steps in all, more than before.

    Raises:
        TaskError: if these are no more steps, there is no checkpoint to continue from, or the text has changed. The run
            is then as it was.
        OSError: if the folder cannot be written.
    """
    before = run.options
    options = TrainingOptions.from_dict({**before.to_dict(), "steps": steps})
    if options.steps <= before.steps:
        raise UsageError(
            f"`steps` must be more than the {before.steps:,} of {run.path} to extend it. "
            f"Received: steps={steps}"
        )
    task = run.task()
    latest = checkpoint.load_latest(run.checkpoints, lambda _: None)
    if latest is None and run.weights.exists():
        raise TaskError(f"{run.path} has no checkpoint to continue from")
    task.check_batches(options, 0 if latest is None else latest[1]["step"])
    config = {**run.config, "training": options.to_dict()}
    with run.lock():
        run.weights.unlink(missing_ok=True)  # first: a run that has them is complete
        run.write_json("config.json", config)
    return RunFolder(run.path, config, task)
