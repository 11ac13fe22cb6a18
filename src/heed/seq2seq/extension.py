"""Training on: more steps for a run than it was made with."""

from __future__ import annotations

from heed.seq2seq import checkpoint
from heed.seq2seq.errors import TaskError
from heed.seq2seq.options import TrainingOptions
from heed.seq2seq.run_folder import RunFolder


def extended(run: RunFolder, steps: int) -> RunFolder:
    """The run with more steps to take. Its folder says so from now on, and it is complete no longer.

    The rates of steps to come are those of a run that had as many steps from its beginning: what "constant" and
    "inverse_sqrt" do goes on smoothly, and a run that was trained on is, bit for bit, one that was made so long. The
    warm-up stays as long as it was. A cosine, which was near zero, is where it would be in the middle of a longer run:
    the rate rises at once, and falls to zero anew. A run that was stopped early goes on from its last weights, and
    remembers its best.

    Args:
        run: the run folder.
        steps: how many in all, more than before.

    Raises:
        TaskError: if these are no more steps, there is no checkpoint to go on from, or the text is no longer what it
            was. The run is then as it was.
        OSError: if the folder cannot be written.
    """
    before = run.options
    options = TrainingOptions.from_dict({**before.to_dict(), "steps": steps})
    if options.steps <= before.steps:
        raise TaskError(
            f"`steps` must be more than the {before.steps:,} of {run.path} to train on. "
            f"Received: steps={steps}"
        )
    task = run.task()
    latest = checkpoint.load_latest(run.checkpoints, lambda _: None)
    if latest is None and run.weights.exists():
        raise TaskError(f"{run.path} has no checkpoint to train on from")
    task.check_batches(options, 0 if latest is None else latest[1]["step"])
    config = {**run.config, "training": options.to_dict()}
    with run.lock():
        run.weights.unlink(missing_ok=True)  # first: a run that has them is complete
        run.write_json("config.json", config)
    return RunFolder(run.path, config, task)
