"""Writes the table of docs/measurements/keras_hub.md: `python -m tests.acceleration.write_engine_table`.

It builds each language model of KerasHub with random weights, and says whether heed's engine generates with it.
"""

from __future__ import annotations

from pathlib import Path

from tests.acceleration import hub_models

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "keras_hub.md"
ENGINE_ROW = "heed's engine"
_HEAD = "| language model | runs on |\n| --- | --- |\n"


def find_language_models() -> list[str]:
    """Return the names of all models with a `CausalLM`."""
    import keras_hub

    hub = hub_models.MODELS.items()
    return [name for name, one in hub if hasattr(keras_hub.models, f"{one.prefix}CausalLM")]


def make_rows() -> dict[str, str]:
    """Return what each model runs on."""
    import keras_hub

    from heed.acceleration.hub import families
    from heed.acceleration.hub.recognition import LeftToKerasError

    rows = {}
    for name in find_language_models():
        try:
            families.find_family(
                getattr(keras_hub.models, f"{hub_models.MODELS[name].prefix}CausalLM")
            )
            families.describe(hub_models.task(name, hub_models.build(name)))
            rows[name] = ENGINE_ROW
        except LeftToKerasError as reason:
            rows[name] = f"KerasHub's loop: {reason}"
    return rows


def read_rows() -> dict[str, str]:
    """Return what the page says."""
    table = PAGE.read_text(encoding="utf-8").partition(_HEAD)[2].partition("\n\n")[0]
    rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    return dict(rows)


def write() -> None:
    """Write the table to the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, head, rest = text.partition(_HEAD)
    table = "\n".join(f"| {name} | {runs} |" for name, runs in make_rows().items())
    PAGE.write_text(f"{before}{head}{table}\n\n{rest.partition(chr(10) * 2)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write()
