"""llama.cpp with the weights of heed's language model, in a GGUF file.

The same computations, with two differences: "int8" is Q8_0 there, a factor for each 32 weights of an output, where heed
has one for each output. And llama.cpp uses the instruction set that it was built for. To hold it to AVX2, build it so:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \
        pip install --no-binary llama-cpp-python llama-cpp-python
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from heed.decoding.engine.stacks import describe_decoder

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _language_model, _tensorflow, threads

_tensorflow.set_threads()
_silent = llama_cpp.llama_log_callback(lambda *_: None)  # kept, as llama.cpp calls it
llama_cpp.llama_log_set(_silent, ctypes.c_void_p())
_FORMATS = {"float32": gguf.GGMLQuantizationType.F32, "int8": gguf.GGMLQuantizationType.Q8_0}
_FILES = {"float32": gguf.LlamaFileType.ALL_F32, "int8": gguf.LlamaFileType.MOSTLY_Q8_0}


def prepare(case: Case) -> Prepared:
    """Reads a prompt of S tokens and decodes T tokens greedily, of a batch of one."""
    if case.batch != 1:
        raise ValueError(f"`batch` must be 1. Received: {case.batch}")
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "model.gguf"
        write(_language_model.model(case), case, file)
        context = _context(file, case)
    prompt = [_language_model.START, *_language_model.prompts(case)[0].tolist()]

    def run() -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        tokens: list[int] = []
        step = prompt
        for _ in range(case.length):
            array = (ctypes.c_int32 * len(step))(*step)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(step))):
                raise RuntimeError("llama.cpp could not decode")
            logits = llama_cpp.llama_get_logits_ith(context, -1)
            step = [int(np.ctypeslib.as_array(logits, (_language_model.VOCABULARY,)).argmax())]
            tokens += step
        return tokens

    return Prepared(
        run, lambda tokens: [_generate.to_comparable(case, np.array([tokens], np.float32))]
    )


def _context(file: Path, case: Case) -> Any:
    """A context with keys and values in float32, as heed's are."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(file).encode(), llama_cpp.llama_model_default_params()
    )
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = case.key_length + case.length
    options.n_threads = options.n_threads_batch = threads() or os.cpu_count() or 1
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, options)
    if not context:
        raise RuntimeError("llama.cpp could not load the model")
    return context


def write(model: Any, case: Case, file: Path) -> None:
    """Writes a language model of Llama's form as a GGUF file without a tokenizer."""
    stack: Any = describe_decoder(model.decoder, "float32")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(case.key_length + case.length)
    writer.add_embedding_length(case.heads * case.head_dim)
    writer.add_block_count(len(stack.layers))
    writer.add_feed_forward_length(_language_model.FEED_FORWARD)
    writer.add_head_count(stack.heads)
    writer.add_head_count_kv(stack.kv_heads)
    writer.add_layer_norm_rms_eps(stack.layers[0].self_norm.epsilon)
    writer.add_rope_dimension_count(stack.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(_language_model.VOCABULARY)
    writer.add_tokenizer_model("none")
    writer.add_file_type(_FILES[case.weights])

    def add(name: str, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array, np.float32)
        kind = _FORMATS["float32"] if array.ndim == 1 else _FORMATS[case.weights]
        stored = gguf.quants.quantize(array, kind)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)

    def add_dense(name: str, dense: Any, heads: int = 0) -> None:
        """As (outputs, inputs); the features of `heads` in the order in which Llama rotates pairs of neighbours."""
        inputs = (
            case.heads * case.head_dim if "ffn_down" not in name else _language_model.FEED_FORWARD
        )
        array = np.array(dense.kernel).reshape(inputs, -1).T
        if heads:
            halves = array.reshape(heads, 2, -1, inputs)
            array = halves.swapaxes(1, 2).reshape(-1, inputs)
        add(name, array)

    add("token_embd", np.array(stack.embedding) * stack.embedding_scale)
    for i, layer in enumerate(stack.layers):
        attention = layer.self_attention
        add(f"blk.{i}.attn_norm", np.array(layer.self_norm.gamma))
        add_dense(f"blk.{i}.attn_q", attention.query, stack.heads)
        add_dense(f"blk.{i}.attn_k", attention.key, stack.kv_heads)
        add_dense(f"blk.{i}.attn_v", attention.value)
        add_dense(f"blk.{i}.attn_output", attention.output)
        add(f"blk.{i}.ffn_norm", np.array(layer.feed_forward_norm.gamma))
        add_dense(f"blk.{i}.ffn_gate", layer.hidden)
        add_dense(f"blk.{i}.ffn_up", layer.up)
        add_dense(f"blk.{i}.ffn_down", layer.back)
    assert stack.final_norm is not None
    add("output_norm", np.array(stack.final_norm.gamma))
    add_dense("output", stack.logits)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
