"""Requests and answers over HTTP; the OpenAPI description is made of these."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)

from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.options.serving import ServingOptions

MOST_ATTENTION = 16  # each may take a megabyte


def _count(name: str, most: int | None = None) -> Any:
    """Return the field of a count that is an option of decoding."""
    field = DecodingOptions.__dataclass_fields__[name]
    text = ". ".join(filter(None, (field.metadata["help"], field.metadata["details"])))
    return Field(default=field.default, ge=1, le=most, description=text)


class TranslateRequest(BaseModel):
    """The body of `POST /translate`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"texts": ["1 2 3 4", "42"], "beam_size": 4, "n_best": 2}],
            # A schema cannot compare two fields; it can say this much of "`n_best` is at most `beam_size`".
            "if": {"properties": {"n_best": {"minimum": 2}}, "required": ["n_best"]},
            "then": {"properties": {"beam_size": {"minimum": 2}}, "required": ["beam_size"]},
        },
    )

    texts: list[str] = Field(description="texts to translate")
    run: str | None = Field(
        default=None,
        max_length=200,
        description="name of the run; none: the first one served",
    )
    language: str | None = Field(
        default=None,
        max_length=40,
        description="target language, if the run has several",
    )
    beam_size: int = _count("beam_size")
    n_best: int = _count("n_best")
    alignment: bool = Field(default=False, description="whether to align words, in Pharaoh format")
    attention: bool = Field(
        default=False,
        description=f"whether to return attention; for at most {MOST_ATTENTION} translations of a request",
    )
    stream: bool = Field(
        default=False,
        description="whether to send the translation of one text in pieces, as server-sent events; not with a beam",
    )

    @model_validator(mode="after")
    def _check_together(self) -> TranslateRequest:
        if self.n_best > self.beam_size:
            raise ValueError("`n_best` must be at most `beam_size`, which is 1 if it is not given")
        if self.attention and len(self.texts) * self.n_best > MOST_ATTENTION:
            raise ValueError(
                f"`attention` is given for at most {MOST_ATTENTION} translations of a request: ask for fewer"
            )
        if self.stream and (len(self.texts) != 1 or self.beam_size != 1):
            raise ValueError(
                "`stream` is for one text, and for no beam search, which may replace any word until it ends"
            )
        return self


def limit_request(options: ServingOptions) -> type[TranslateRequest]:
    """Return `TranslateRequest` with the limits of a server.

    Example:
        >>> schema = limit_request(ServingOptions(max_texts=2)).model_json_schema()
        >>> schema["properties"]["texts"]["maxItems"]
        2
    """
    text = Annotated[str, Field(max_length=options.max_characters)]
    told = TranslateRequest.model_fields["texts"].description
    lengths: dict[str, Any] = {"min_length": 1, "max_length": options.max_texts}
    return create_model(
        "TranslateRequest",
        __base__=TranslateRequest,
        __doc__=TranslateRequest.__doc__,
        texts=(list[text], Field(**lengths, fail_fast=True, description=told)),
        beam_size=(int, _count("beam_size", options.max_beam)),
        n_best=(int, _count("n_best", options.max_beam)),
    )


class Attention(BaseModel):
    """Every head of a translation.

    `weights` is the base64 of the deflated codes, a byte each, of all layers in turn, heads by rows by keys; a code c
    stands for the weight (c / levels)^2. A layer's rows and keys are indices of `sequences`, which hold their labels.
    """

    levels: int
    sequences: list[list[str]]
    layers: list[dict[str, Any]]
    note: str = Field(description="how exact the weights are")
    weights: str


_CUT = "true if the translation ends because it has the most tokens"


class Hypothesis(BaseModel):
    """One of several translations of a text."""

    text: str
    score: float = Field(
        description="log-probability divided by the length penalty, which ranks them"
    )
    cut: bool | None = Field(default=None, description=_CUT)
    alignment: str | None = None
    attention: Attention | None = None


class TranslatedText(BaseModel):
    """The result for one text."""

    text: str = Field(description="the most likely translation; empty for a blank text")
    cut: bool | None = Field(default=None, description=f"of `text`: {_CUT}")
    hypotheses: list[Hypothesis] | None = Field(
        default=None,
        description="if `n_best` is above 1: the most likely first, each with its attention; none for a blank text",
    )
    alignment: str | None = Field(
        default=None,
        description='of `text`, if `n_best` is 1: "0-1 1-0", words of the source and of it',
    )
    attention: Attention | None = Field(default=None, description="of `text`, if `n_best` is 1")


class TranslateAnswer(BaseModel):
    """The answer of `POST /translate`: a translation for each text, in their order."""

    run: str
    translations: list[TranslatedText]


class Piece(BaseModel):
    """A piece of a translation that is streamed; the pieces join to its text."""

    piece: str


class Problem(BaseModel):
    """Why a request was refused, in one line."""

    detail: str


class ServedRun(BaseModel):
    """A served run."""

    task: str
    step: int = Field(description="training steps behind its weights")
    languages: list[str] = Field(description="languages of requests")


class Health(BaseModel):
    """The answer of `GET /health`."""

    status: str = Field(description="ok, or stopping")
    version: str
    runs: dict[str, ServedRun] = Field(description="by name; the first is the default")


Model = TypeVar("Model", bound=BaseModel)
_FIELDS = TypeAdapter(dict[str, Any])


def read(model: type[Model], body: bytes) -> Model:
    """Parse a request's body; raise a ValidationError if it is not JSON, or a field is wrong.

    It describes only one mistake: to describe each of ten thousand unknown fields, as pydantic does, takes tenths of a
    second in which no other request is answered.
    """
    fields = _FIELDS.validate_json(body.removeprefix(codecs.BOM_UTF8))
    unknown = next((name for name in fields if name not in model.model_fields), None)
    if unknown is not None:
        raise ValidationError.from_exception_data(
            model.__name__,
            [{"type": "extra_forbidden", "loc": (_shorten(unknown),), "input": None}],
        )
    return model.model_validate(fields)


def _shorten(name: str) -> str:
    """Return the name of an unknown field, short and in one line."""
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name[:41])
    return printable if len(name) <= 40 else f"{printable[:40]}..."


def describe_error(error: ValidationError) -> str:
    """Describe the first mistake of a request."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the body"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg'].removeprefix('Value error, ')}{more}"


def is_json_error(error: ValidationError) -> bool:
    """Return whether the body is not JSON at all."""
    return error.errors(include_url=False)[0]["type"] == "json_invalid"
