"""Suggestions for names that do not exist: by their meaning, then by their letters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 2  # suggestions

# Names that people know from other tools, and what they are called here, the likeliest first. Only the names that exist
# where the question arises are suggested, so one table serves commands, options, keys of files and values.
_MEANINGS = {
    # commands
    "predict infer inference decode generate": "translate",
    "score eval validate benchmark": "evaluate",
    "fit learn finetune fine-tune resume": "train",
    "convert": "export",
    "server web api http host start": "serve",
    "visualize visualise plot attention show": "explain",
    "version doctor env status": "info",
    "prepare preprocess dataset": "data",
    "swa mean": "average",
    "example tutorial quickstart": "demo",
    # training
    "lr rate peak-lr max-lr": "learning-rate",
    "epoch epochs num-epochs max-epochs max-steps train-steps num-steps iteration iterations iters max-iter "
    "max-iters updates max-update max-updates": "steps",
    "bs batch minibatch mini-batch": "batch-size",
    "max-tokens": "batch-tokens max-length longest",
    "grad-accum gradient-accumulation gradient-accumulation-steps update-freq accumulate-grad-batches": "accumulate",
    "grad-clip gradient-clip gradient-clipping clip max-grad-norm": "clip-norm",
    "scheduler lr-scheduler lr-schedule decay": "schedule",
    "smoothing": "label-smoothing",
    "dtype amp mixed-precision fp16 bf16 half": "precision weights",
    "early-stopping early-stop early-stopping-patience": "patience",
    "eval-every eval-steps eval-interval val-every valid-freq validation-interval": "validate-every",
    "metric monitor": "validate-with",
    "save-every save-steps save-interval checkpoint-interval": "checkpoint-every",
    "keep-last keep-checkpoints save-total-limit": "keep",
    "random-seed": "seed",
    # the model
    "model arch network model-type": "architecture preset run runs",
    "model-size": "preset",
    "hidden hidden-size hidden-dim d-model dim model-dim embed-dim embedding-dim embedding-size emb-size": "width",
    "ffn ffn-dim d-ff ff-dim feed-forward feed-forward-size intermediate-size": "feed-forward-width",
    "heads n-heads attention-heads num-attention-heads": "num-heads",
    "layer layers num-layers n-layers depth": "encoder-layers decoder-layers",
    # data
    "src from source-file src-file train-src train-source training-data train-data data corpus": "source",
    "tgt trg to target-file tgt-file train-tgt train-target": "target",
    "ref refs reference references": "target",
    "dev valid validation dev-source valid-src": "valid-source",
    "dev-target valid-tgt": "valid-target",
    "test test-src": "test-source evaluate",
    "test-tgt": "test-target",
    "vocab vocab-size bpe-size merges num-merges": "vocabulary-size",
    "shared-vocab joint joint-vocab": "vocabulary shared",
    "tokenizer spm spm-model sentencepiece": "source-tokenizer unit",
    "max-len max-length max-seq-len max-sequence-length": "longest max-length",
    "lang langs tgt-lang target-lang": "language languages target-language",
    # runs and files
    "run runs checkpoint ckpt model-path model-dir": "run runs resume",
    "init pretrained from-pretrained warm-start load": "init-from",
    "continue restore resume-from": "resume",
    "yaml config-file": "config",
    "file input-file in src source stdin sentence": "input source text",
    "out output output-file output-dir out-dir save-dir save-to destination": "output out run",
    "html": "report out",
    "image plot figure draw": "png picture",
    # decoding and serving
    "beam beams num-beams beam-width": "beam-size",
    "nbest n-hyps alternatives num-return-sequences": "n-best",
    "threads num-threads cpus n-jobs": "device-threads processes workers",
    "gpus devices jobs nproc num-workers world-size": "workers processes device-threads",
    "quantize quantization quant": "weights precision",
    "silent no-progress": "quiet",
    "bind ip address listen": "host",
    "fmt type runtime": "format",
    # values
    "tflite tf-lite lite": "litert",
    "tf tensorflow savedmodel pb keras": "saved-model",
    "ort onnxruntime": "onnx",
    "ct2": "ctranslate2",
    "fp32 float single": "float32",
    "float16": "bfloat16",
    "int4 uint8 q8 8bit": "int8",
    "rnn lstm gru seq2seq": "recurrent",
    "bahdanau": "additive",
    "luong": "general",
    "small": "tiny mini",
    "medium": "base",
    "large": "big",
    "bpe unigram wordpiece subwords": "subword",
    "char chars byte bytes": "character",
    "noam": "inverse-sqrt",
    "swish": "silu",
    "translation mt own": "text",
    "arabic": "ar",
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german deutsch": "de",
    "hindi": "hi",
    "italian": "it",
    "japanese jp": "ja",
    "persian farsi": "fa",
    "portuguese": "pt pt-br",
    "russian": "ru",
    "spanish": "es",
}
_WORDS = {word: names.split() for words, names in _MEANINGS.items() for word in words.split()}


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that a name may stand for, the likeliest first; at most two.

    Example:
        >>> closest("--lr", ["--run", "--learning-rate"]), closest("setps", ["steps", "seed"])
        (['--learning-rate'], ['steps'])
        >>> closest("tflite", ["onnx", "litert"]), closest("num_layers", ["encoder_layers", "width"])
        (['litert'], ['encoder_layers'])
    """
    names = {_simplify(one): one for one in reversed(list(known))}  # of equals the first stays
    word = _simplify(name)
    found = [names[word]] if word in names else []
    found += [names[one] for one in _WORDS.get(word, ()) if one in names]
    if not found:
        found = [names[one] for one in difflib.get_close_matches(word, names, n=1)]
    if not found and len(word) > 2:  # "rate" of "learning-rate"
        found = [one for simple, one in names.items() if word in simple.split("-")][::-1]
    return list(dict.fromkeys(found))[:_MOST]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `: did you mean ...` if a known name is similar or means the same, else "".

    Example:
        >>> nearest("epochs", ["steps", "seed"])
        ': did you mean `steps`?'
    """
    return ask(closest(name, known))


def ask(names: Iterable[str]) -> str:
    """Return `: did you mean ...` for names that may be meant, "" for none."""
    found = " or ".join(f"`{name}`" for name in names)
    return f": did you mean {found}?" if found else ""


def _simplify(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()
