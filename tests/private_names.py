"""Private names of other libraries that heed and its tests use: the only list of them.

`tests/test_private_names.py` says which of them an installed version lacks, and finds those that are not listed.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# By place: a module, or "module:expression" for what the expression gives there. BACKEND is Keras' own. A name moves
# between versions: of several places, joined by " | ", one has the names.
NAMES = {
    # Python and NumPy
    "numpy._core | numpy.core": "_multiarray_umath",  # tests
    "argparse": "_AppendAction _SubParsersAction",
    "argparse:ArgumentParser()": "_actions _get_positional_actions _option_string_actions",
    "sys": "_getframe",
    # Keras
    "keras:Operation()": "_outbound_nodes",
    "keras:ops.abs(KerasTensor(()))": "_keras_history",
    "keras.src": "backend layers",
    "keras.src.backend": "rnn",
    "keras.src.backend.common": "global_state",
    "keras.src.backend.common.global_state": "get_global_attribute",
    "keras.src.backend.common.masking": "get_keras_mask set_keras_mask",
    "keras.src.backend.common.symbolic_scope": "in_symbolic_scope",
    **{
        f"keras.src.backend.BACKEND.ops.{module} | keras.src.backend.BACKEND.{module}": names
        for module, names in {
            "core": "fori_loop map scan shape slice_update while_loop",
            "nn": "dot_product_attention softmax",
            "numpy": "argmax einsum matmul repeat searchsorted stack take_along_axis transpose",
        }.items()
    },
    "keras.src.layers": "attention",  # tests
    "tests.private_names:built_dense()": "_kernel",
    "tests.private_names:built_embedding()": "_embeddings",
    "keras.src.layers.attention.multi_head_attention": "_build_attention_equation",
    "keras.src.ops": "nn",
    "keras.src.ops.nn": "DotProductAttention dot_product_attention",
    "keras.src.saving.object_registration": "get_registered_object",
    "keras:layers.Layer()": "_flatten_layers _layers _non_trainable_variables _trainable_variables",
    "keras:layers.MultiHeadAttention": "_build_attention _compute_attention _compute_attention_mask "
    "_compute_causal_mask _masked_softmax",
    "keras:layers.GroupQueryAttention": "_compute_attention _compute_attention_mask _compute_causal_mask "
    "_masked_softmax",
    "keras:layers.Attention": "_apply_scores _calculate_score_mask _calculate_scores _validate_inputs",
    "tests.private_names:built_attention('MultiHeadAttention')": "_attention_axes "
    "_combine_equation _dot_product_equation _dropout_layer _flash_attention _inverse_sqrt_key_dim _key_dense "
    "_output_dense _query_dense _value_dense",
    "tests.private_names:built_attention('GroupQueryAttention')": "_combine_equation "
    "_dot_product_equation _dropout_layer _flash_attention _inverse_sqrt_head_dim _key_dense _output_dense "
    "_query_dense _value_dense",
    # Keras' backends
    "jax._src": "core",
    "jax._src.core": "set_current_trace trace_ctx",
    "tensorflow.lite.python": "convert schema_py_generated",
    "tensorflow.lite.python.convert": "mlir_quantize",
    "tensorflow.lite.python.schema_py_generated": "BuiltinOperator ModelT",
    "tensorflow.python": "pywrap_tfe",
    "tensorflow.python.eager": "context",
    "tensorflow.python.eager.context:context()": "_thread_local_data",
    "tensorflow.python.eager.context:context()._thread_local_data": "is_eager op_callbacks",
    "tensorflow.python.pywrap_tfe": "TFE_Py_PackJVPs",
    "tensorflow.python.framework": "config op_callbacks ops type_spec type_spec_registry",
    "tensorflow.python.framework.config": "disable_op_determinism enable_op_determinism",
    "tensorflow.python.framework.convert_to_constants": "convert_variables_to_constants_v2",  # tests
    "tensorflow.python.framework.ops": "gradient_registry",
    "tensorflow.python.framework.ops:gradient_registry": "_registry",
    "tensorflow.python.framework.type_spec": "BatchableTypeSpec",
    "tensorflow.python.framework.type_spec_registry": "_NAME_TO_TYPE_SPEC register",
    "tensorflow.python.ops": "control_flow_util custom_gradient gen_math_ops",
    "tensorflow.python.ops.control_flow_util": "GraphOrParentsInXlaContext",
    "tensorflow.python.ops.custom_gradient": "_eager_mode_decorator _graph_mode_decorator",
    "tensorflow.core.protobuf.saved_model_pb2": "SavedModel",  # tests
    "tensorflow:Graph()": "_get_function",
    "tensorflow:__internal__": "EagerTensor",
    "tensorflow:constant(0)": "_datatype_enum _shape_tuple",
    "tensorflow:lite.TFLiteConverter([], None)": "_experimental_calibrate_only",
    "torch": "_C _add_batch_dim _dynamo _foreach_norm _remove_batch_dim",
    "torch:Tensor": "_is_zerotensor",
    "torch:nn.Module()": "_forward_hooks _forward_pre_hooks _modules",
    "torch._C": "DispatchKey DispatchKeySet _are_functorch_transforms_active "
    "_dispatch_tls_local_include_set _functorch _vmapmode_decrement_nesting _vmapmode_increment_nesting",
    "torch._C._functorch": "is_functorch_wrapped_tensor unwrap_if_dead",
    "torch.autograd.forward_ad": "_current_level",
    "torch.nn.attention.flex_attention": "_validate_device",
    "torch.utils.checkpoint": "_checkpoint_without_reentrant_generator",
    # KerasHub
    "keras_hub.src.models.blip2": "blip2_custom_opt blip2_flan_t5_lm blip2_qformer blip2_vision_encoder",  # tests
    "keras_hub.src.models.causal_lm:CausalLM": "_post_quantize make_generate_function",
    "keras_hub.src.models.llama.llama_attention:LlamaAttention": "_compute_vllm_attention",
    "keras_hub.src.models.gemma.gemma_attention:CachedGemmaAttention": "_compute_attention "
    "_mask_sliding_window _use_fused_attention_op",
    "keras_hub.src.models.gpt_neo_x.gpt_neo_x_attention:GPTNeoXAttention": "_compute_attention _masked_softmax",
    "tests.private_names:built_attention_of_hub('gpt_neo_x')": "_attn_dropout_layer _inv_norm_factor _softmax",
    "tests.private_names:built_attention_of_hub('llama')": "_combine_equation _dot_product_equation "
    "_inv_norm_factor _softmax",
    "keras_hub.src.vllm.context": "get_vllm_context",
    "keras_hub.src.layers.modeling.rotary_embedding:RotaryEmbedding": "_compute_cos_sin_embedding",
    "keras_hub.src.layers.modeling.alibi_bias:AlibiBias": "_get_slopes",
    "tests.private_names:layer_of_hub('BLOOM')": "_mlp_intermediate_dense _mlp_output_dense _post_attention_layernorm "
    "_pre_attention_layernorm _self_attention_layer",
    "tests.private_names:layer_of_hub('BLOOM')._self_attention_layer": "_alibi_layer",
    "tests.private_names:layer_of_hub('GPT-2')": "_cross_attention_layer _feedforward_dropout "
    "_feedforward_intermediate_dense _feedforward_layer_norm _feedforward_output_dense _self_attention_dropout "
    "_self_attention_layer_norm",
    "tests.private_names:layer_of_hub('GPT-NeoX')._self_attention_layer": "_qkv_dense",
    "tests.private_names:layer_of_hub('GPT-OSS').self_attention_layer": "_head_dim _rotary_dim",
    "tests.private_names:layer_of_hub('Llama')": "_feedforward_gate_dense _feedforward_layernorm "
    "_self_attention_layernorm",
    "tests.private_names:layer_of_hub('Mistral')._self_attention_layer": "_num_key_value_heads _num_query_heads",
    "tests.private_names:layer_of_hub('Mixtral')": "_sparse_moe_block",
    "tests.private_names:layer_of_hub('Mixtral')._sparse_moe_block": "_sparse_feedforward_gate_dense",
    "tests.private_names:layer_of_hub('Mixtral')._sparse_moe_block.expert_bank": "_expert_feedforward_gate_dense "
    "_expert_feedforward_intermediate_dense _expert_feedforward_output_dense",
    "tests.private_names:layer_of_hub('Qwen 3')._self_attention_layer": "_key_dense_layer_norm _query_dense_layer_norm",
    "keras_hub.src.models.t5.t5_multi_head_attention:T5MultiHeadAttention": "call",
    "keras_hub.src.models.t5gemma.t5gemma_attention:T5GemmaAttention": "_compute_attention "
    "_compute_attention_without_fused_op",
    "keras_hub.src.samplers.beam_sampler:BeamSampler": "__call__",
    "keras_hub.src.samplers.sampler:Sampler": "__call__ run_loop",
    "keras_hub.src.utils.keras_utils": "fused_attention_op_available gelu_approximate",
    # The server
    "uvicorn:Server": "on_tick startup",
    "uvicorn.protocols.http.httptools_impl": "HttpToolsProtocol STATUS_LINE",
    "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol": "connection_made data_received on_body "
    "on_headers_complete on_response_complete send_400_response",
    "tests.private_names:connection_of_uvicorn()": "client connections cycle pipeline transport",
    "uvicorn.server": "ServerState",  # tests
    "uvicorn.server:ServerState()": "connections",
}
# Names that heed reads where they exist: other versions of Keras have none.
OPTIONAL = {
    "_cache_update_index",
    "_compute_sliding_window_mask",
    "_gate_dense",
    "_return_attention_scores",
}
# Documented, or no name of an attribute.
PUBLIC = {
    "_asdict",
    "_exit",
    "_fields",
    "_fields_",
    "_gradient_op_type",
    "_implements",
    "_replace",
    "_repr_png_",
}

_PRIVATE_MODULE = re.compile(
    r"(?!.*_test$)(?:(keras|keras_hub)\.src\.|tensorflow\.(core|lite\.python|python)\.|uvicorn\.(protocols|server)\."
    r"|(?!heed|tests|benchmarks|keras\.layers|keras_hub\.[A-Z]|self)\w+(\.\w+)*\._(?!_))"
)
_HINT = re.compile(
    r"\bsrc\.|\.src import|tensorflow\.[clp]|uvicorn\.|(from|import) (?!heed|tests|bench)[\w.]+\._"
)
_PRIVATE_NAME = re.compile(r"_[a-zA-Z]\w*$")


def built_attention(name: str) -> Any:
    """Return a layer of Keras with its projections."""
    import keras

    layer = getattr(keras.layers, name)(
        **{
            "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
            "GroupQueryAttention": {"head_dim": 4, "num_query_heads": 2, "num_key_value_heads": 1},
        }[name]
    )
    layer.build((1, 3, 8), (1, 3, 8))
    return layer


def built_dense() -> Any:
    """Return a dense layer of Keras."""
    import keras

    layer = keras.layers.Dense(2)
    layer.build((1, 3))
    return layer


def built_embedding() -> Any:
    """Return a table of Keras that also makes logits."""
    import keras

    layer = keras.layers.ReversibleEmbedding(3, 2)
    layer.build()
    return layer


@functools.cache
def layer_of_hub(name: str) -> Any:
    """Return a layer of a small model of KerasHub."""
    pytest.importorskip("keras_hub", exc_type=ImportError)
    from tests.acceleration import hub_models

    return hub_models.build(name).transformer_layers[0]


def built_attention_of_hub(name: str) -> Any:
    """Return a layer of KerasHub with its projections."""
    module = pytest.importorskip(f"keras_hub.src.models.{name}.{name}_attention")
    layer = {
        "gpt_neo_x": lambda: module.GPTNeoXAttention(num_heads=2, hidden_dim=16),
        "llama": lambda: module.LlamaAttention(num_query_heads=2, num_key_value_heads=2),
    }[name]()
    layer.build((1, 3, 16))
    return layer


def connection_of_uvicorn() -> Any:
    """Return a connection that waits for its client."""
    uvicorn = pytest.importorskip("uvicorn")
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.server import ServerState

    config = uvicorn.Config(
        lambda *_: None, http=HttpToolsProtocol, log_config=None, lifespan="off"
    )
    loop = asyncio.new_event_loop()  # other tests may have left the thread without one
    loop.close()
    return HttpToolsProtocol(config, ServerState(), {}, _loop=loop)


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def unlisted(folder: Path, attributes: bool = True) -> list[str]:
    """Return one line for each private name in a folder of sources that is neither its own nor in the list.

    Args:
        folder: the sources.
        attributes: whether to look for attributes, too, not only for modules.
    """
    paths = sorted(folder.rglob("*.py"))
    if not attributes:  # parsing takes most of the time
        paths = [path for path in paths if _HINT.search(path.read_text(encoding="utf-8"))]
    listed = {part: names.split() for place, names in NAMES.items() for part in place.split(" | ")}
    modules = {place.partition(":")[0] for place in listed}
    known = OPTIONAL | PUBLIC | {name for names in listed.values() for name in names}
    if attributes:
        known |= {name for path in paths for name in _definitions(_nodes(path))}
        known |= {part for path in folder.rglob("*") for part in (path.name, path.stem)}
        known.add("_lib")  # the build makes it
    found = []
    for path in paths:
        for line, name in _uses(_nodes(path)):
            module, _, attribute = name.rpartition(".")
            if module:
                is_known = name in modules or attribute in listed.get(module, ())
            else:
                is_known = not attributes or name in known or name.startswith("_heed_")
            if not is_known:
                found.append(f"{path.relative_to(folder).as_posix()}:{line}: {name}")
    return found


def _definitions(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).rpartition(".")[2]


def _uses(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield each private module or name imported from one, as "module.name", and private attribute, in strings too."""
    pieces = {id(x) for node in nodes if isinstance(node, ast.JoinedStr) for x in ast.walk(node)}
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in pieces
        ):
            names = node.value.split()
            if not all(re.fullmatch(r"[\w.]+", name) for name in names):  # prose
                continue

        elif isinstance(node, ast.Import):
            names = [f"{x.name}." for x in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{x.name}" for x in node.names]
        for name in names:
            private = _PRIVATE_MODULE if "." in name else _PRIVATE_NAME
            if private.match(name):
                yield node.lineno, name.removesuffix(".")
