"""heed's reader of SentencePiece models reads what was written, and needs no protobuf."""

import subprocess
import sys

import pytest
import sentencepiece

from heed.seq2seq.tokens._sentencepiece_model import ModelType, PieceType, SentencePieceModel
from tests.seq2seq.tokens.test_vocabularies import OF_OTHERS, SETTINGS


@pytest.mark.parametrize("kind", SETTINGS)
def test_it_reads_the_pieces_and_the_settings_of_the_training(kind):
    found, settings = SentencePieceModel.parse(OF_OTHERS[kind]), SETTINGS[kind]
    theirs = sentencepiece.SentencePieceProcessor(model_proto=OF_OTHERS[kind])
    ids = range(theirs.get_piece_size())
    assert [text for text, _ in found.pieces] == [theirs.id_to_piece(i) for i in ids]
    kinds = {
        PieceType.UNKNOWN: theirs.is_unknown,
        PieceType.CONTROL: theirs.is_control,
        PieceType.UNUSED: theirs.is_unused,
        PieceType.BYTE: theirs.is_byte,
    }
    for one, is_one in kinds.items():
        assert [number == one for _, number in found.pieces] == [is_one(i) for i in ids]
    symbols = [text for text, number in found.pieces if number == PieceType.USER_DEFINED]
    assert symbols == settings.get("user_defined_symbols", [])
    assert found.model_type == ModelType[settings.get("model_type", "bpe").upper()]
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        assert getattr(found, name) == settings.get(name, True)
    assert found.changes_characters == ("normalization_rule_name" not in settings)


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
