"""The options of dot-product attention are declared once, and every function shows and checks its part of them."""

from __future__ import annotations

import inspect
import typing

import numpy as np
import pytest

from heed import ops
from heed.distributed import ring_attention
from heed.ops import options

X = np.ones((1, 2, 1, 4), "float32")
# Each function, the options that it takes, and one that it does not.
TAKERS = {
    ops.attention_weights: (options.AttentionOptions, "return_lse"),
    ops.attention_statistics: (options.StatisticsOptions, "dropout"),
    ring_attention: (options.RingOptions, "bias"),
}


def test_the_declared_options_are_the_keyword_arguments_of_the_op():
    parameters = dict(inspect.signature(ops.dot_product_attention).parameters)
    for name in ("query", "key", "value", "return_lse"):
        del parameters[name]
    declared = typing.get_type_hints(options.AttentionOptions, include_extras=True)
    hints = typing.get_type_hints(ops.dot_product_attention, include_extras=True)
    assert {name: hints[name] for name in parameters} == declared


@pytest.mark.parametrize("function", TAKERS)
def test_a_function_shows_its_options_as_the_op_does(function):
    declared, _ = TAKERS[function]
    shown = inspect.signature(function).parameters
    of_op = inspect.signature(ops.dot_product_attention).parameters
    assert "options" not in shown
    for name in of_op:
        if name in declared.__annotations__:
            assert shown[name] == of_op[name]
            assert name in inspect.getdoc(function)
    assert typing.get_type_hints(function, include_extras=True).keys() - {"return"} == set(shown)


@pytest.mark.parametrize("function", TAKERS)
def test_a_function_refuses_what_is_no_option_of_it(function):
    tensors = [X] * (3 if function is ring_attention else 2)
    for name in (TAKERS[function][1], "soft_caps"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            function(*tensors, **{name: 0.5})
