"""Writes the list of KerasHub's code that heed knows: `python -m tests.acceleration.write_fingerprints`.

Run it for a new version of KerasHub after the changes of its models have been read: it adds to the list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heed.acceleration.hub import _fingerprints, recognition
from tests.acceleration import hub_models

FILE = Path(_fingerprints.__file__ or "")


class _Recorder(dict[str, tuple[str, ...]]):
    """Knows every class, and notes what it is asked for."""

    def get(self, name: str, default: Any = None) -> Any:
        self.setdefault(name, ())
        recorder = self

        class Anything:
            def __contains__(self, fingerprint: str) -> bool:
                if fingerprint not in recorder[name]:
                    recorder[name] += (fingerprint,)
                return True

        return Anything()


def find_fingerprints() -> dict[str, tuple[str, ...]]:
    """Return the classes of all models and samplers that the engine runs, in this version of KerasHub."""
    import keras_hub

    from heed.acceleration.hub import _samplers, families

    known, recognition.FINGERPRINTS = recognition.FINGERPRINTS, _Recorder()
    try:
        models: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in hub_models.MODELS]
        for name, changes in [*models, *hub_models.VARIANTS]:
            cls = getattr(keras_hub.models, f"{hub_models.MODELS[name].prefix}CausalLM", None)
            if cls is not None and recognition.class_name(cls) in families.FAMILIES:
                families.describe(hub_models.task(name, hub_models.build(name, **changes)))
        for sampler in _samplers._MODULES:
            _samplers.make_search(getattr(keras_hub.samplers, sampler)(), 3, 50, ())
        return dict(recognition.FINGERPRINTS)
    finally:
        recognition.FINGERPRINTS = known


def write() -> None:
    """Add the fingerprints of this version to the list."""
    known = _fingerprints.FINGERPRINTS
    found = find_fingerprints()
    lines = []
    for name in sorted({*known, *found}):
        hashes = dict.fromkeys((*known.get(name, ()), *found.get(name, ())))
        lines.append(f'    "{name}": ({"".join(f"{x!r}," for x in hashes)}),\n')
    text = FILE.read_text(encoding="utf-8")
    head = text[: text.index("FINGERPRINTS:")]
    body = "".join(lines).replace("'", '"')
    FILE.write_text(
        f"{head}FINGERPRINTS: dict[str, tuple[str, ...]] = {{\n{body}}}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    write()
