"""heed's reader of SentencePiece models reads what protobuf reads, and needs no protobuf."""

import subprocess
import sys

import pytest

from heed.seq2seq.tokens._sentencepiece_model import SentencePieceModel
from tests.seq2seq.tokens.test_vocabularies import OF_OTHERS, OWN

MODELS = {**OF_OTHERS, **{f"own {unit}": one.model for unit, one in OWN.items()}}
# protobuf's own names and numbers, by which its messages are read without the generated module.
PIECE, TRAINER, NORMALIZER = "SentencePiece", "TrainerSpec", "NormalizerSpec"


@pytest.fixture(scope="module")
def parse():
    """Return the parser of protobuf, for the part of sentencepiece_model.proto that heed reads."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="part.proto", package="part", syntax="proto2")

    def add(name, *fields):
        message = file.message_type.add(name=name)
        for field, number, kind, default in fields:
            one = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".part.{kind}"
                one.label = kinds.LABEL_REPEATED if kind == PIECE else kinds.LABEL_OPTIONAL
            else:
                one.type = kind
            if default is not None:
                one.default_value = default

    add(PIECE, ("piece", 1, kinds.TYPE_STRING, None), ("type", 3, kinds.TYPE_INT32, "1"))
    add(TRAINER, ("model_type", 3, kinds.TYPE_INT32, "1"))
    add(
        NORMALIZER,
        ("precompiled_charsmap", 2, kinds.TYPE_BYTES, None),
        ("add_dummy_prefix", 3, kinds.TYPE_BOOL, "true"),
        ("remove_extra_whitespaces", 4, kinds.TYPE_BOOL, "true"),
        ("escape_whitespaces", 5, kinds.TYPE_BOOL, "true"),
    )
    add(
        "Model",
        ("pieces", 1, PIECE, None),
        ("trainer", 2, TRAINER, None),
        ("normalizer", 3, NORMALIZER, None),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("part.Model")).FromString


@pytest.mark.parametrize("kind", MODELS)
def test_it_reads_what_protobuf_reads(kind, parse):
    wanted = parse(MODELS[kind])
    found = SentencePieceModel.parse(MODELS[kind])
    assert found.pieces == [(one.piece, one.type) for one in wanted.pieces]
    assert found.model_type == wanted.trainer.model_type
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        assert getattr(found, name) == getattr(wanted.normalizer, name)
    assert found.changes_characters == bool(wanted.normalizer.precompiled_charsmap)


def test_what_is_not_written_has_its_default():
    found = SentencePieceModel.parse(b"")
    assert found.model_type == 1
    assert found.add_dummy_prefix
    assert found.pieces == []


@pytest.mark.parametrize("damaged", [b"\x0a", b"\x0a\x05abc", b"\x80", b"\x0b", b"\x15\x00"])
def test_what_is_cut_is_refused(damaged):
    with pytest.raises(ValueError, match="damaged"):
        SentencePieceModel.parse(damaged)


def test_tokenizers_need_no_protobuf():
    """Older TensorFlows come with an older one than sentencepiece's own module wants, PyTorch and JAX with none."""
    code = (
        "import sys; sys.modules['google'] = sys.modules['google.protobuf'] = None\n"
        "from heed.seq2seq.tokens.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.train(['the cat sat', 'the dog sat'], 40)\n"
        "print(tokenizer.decode(tokenizer.encode(['the cat'])), tokenizer.splits_at_spaces)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "['the cat'] True\n", done.stderr[-2000:]
