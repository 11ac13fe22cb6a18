"""`torch.func`, forward mode, mapped gradients, hooks, bits and recorded code. Run with KERAS_BACKEND=torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.backend import BACKEND

if BACKEND != "torch":
    pytest.skip("is about PyTorch", allow_module_level=True)

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import heed
from heed import Mask, ops
from tests.ops.backends import functions
from tests.ops.backends.functions import as_heads
from tests.slow import slow

# PyTorch warns of its own parts: of `torch.jit`, of quantized tensors, of the graphs of `linearize`.
pytestmark = pytest.mark.filterwarnings("ignore")
IMPLEMENTATIONS = ["native", *slow(["portable"])]
LENGTHS = torch.tensor([4, 6])
CAUSAL = torch.ones(5, 6).tril().bool()


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 4, 3), (2, 6, 2, 3), (2, 6, 2, 4))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def heeds(query: Any, key: Any, value: Any) -> Any:
    return ops.dot_product_attention(query, key, value, mask=Mask.lengths(LENGTHS) & Mask.causal())


def plain(query: Any, key: Any, value: Any) -> Any:
    key, value = (x.repeat_interleave(2, 2) for x in (key, value))
    scores = torch.einsum("btnh,bsnh->bnts", query, key) / 3**0.5
    mask = CAUSAL & (torch.arange(6) < LENGTHS[:, None])[:, None, None]
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("bnts,bsnv->btnv", weights, value)


def gradient(function: Any) -> Any:
    return torch.func.grad(lambda *x: function(*x).sin().sum(), argnums=(0, 1, 2))


def small(function: Any) -> Any:
    """Return a function of the query alone, with few results."""
    _, key, value = inputs()
    return lambda query: function(query, key, value)[:, :2, 0].sin()


def tangent(function: Any) -> Any:
    def run(*tensors: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, x.cos()) for x in tensors]
            return forward_ad.unpack_dual(function(*duals)).tangent

    return run


def batched(function: Any) -> Any:
    def run(*tensors: torch.Tensor) -> Any:
        leaves = [x.clone().requires_grad_() for x in tensors]
        output = function(*leaves)
        incoming = torch.stack([output.cos(), output.sin(), output]).detach()
        return torch.autograd.grad(output, leaves, incoming, is_grads_batched=True)

    return run


def linearized(function: Any) -> Any:
    def run(*tensors: torch.Tensor) -> Any:
        output, push = torch.func.linearize(function, *tensors)
        return output, push(*tensors), push(*[x.cos() for x in tensors])

    return run


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "forward_ad": tangent,
    "jvp": lambda f: lambda *x: torch.func.jvp(f, x, tuple(y.cos() for y in x)),
    "vjp": lambda f: lambda *x: torch.func.vjp(f, *x)[1](f(*x).cos()),
    "hessian": lambda f: lambda *x: torch.func.hessian(small(f))(x[0]),
    "jacrev of jacfwd": lambda f: lambda *x: torch.func.jacrev(torch.func.jacfwd(small(f)))(x[0]),
    "jacrev of jacrev": lambda f: lambda *x: torch.func.jacrev(torch.func.jacrev(small(f)))(x[0]),
    "vmap": lambda f: (
        lambda q, k, v: torch.vmap(f, (1, None, 0))(
            torch.stack([q, q * 2], 1), k, torch.stack([v, v + 1])
        )
    ),
    "gradients of each sample": lambda f: (
        lambda q, k, v: torch.vmap(gradient(f), (0, None, 0))(
            torch.stack([q, q * 2]), k, torch.stack([v, v + 1])
        )
    ),
    "is_grads_batched": batched,
    "linearize": linearized,
    "make_fx": lambda f: lambda *x: make_fx(gradient(f))(*[y * 2 for y in x])(*x),
}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


NESTED = ["jacrev of jacfwd", "jacrev of jacrev"]


@pytest.mark.parametrize("name", [*(x for x in TRANSFORMS if x not in NESTED), *slow(NESTED)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_transformations_are_those_of_a_plain_expression(implementation: str, name: str) -> None:
    transform = TRANSFORMS[name]
    expected = transform(plain)(*inputs())
    with heed.set_implementation(implementation):
        found = transform(heeds)(*inputs())
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["additive", "dropout", "bias"])
@pytest.mark.parametrize("name", ["jvp", "jacrev", *slow(["jacfwd"])])
def test_other_attentions_are_transformed(kind: str, name: str) -> None:
    query, key, value = inputs()
    vector = query[0, 0, 0]

    def call(query: Any) -> Any:
        if kind == "additive":
            return ops.additive_attention(query[:, :, 0], key[:, :, 0], value[:, :, 0], vector)
        options = (
            {"dropout": 0.4, "seed": 3}
            if kind == "dropout"
            else {"bias": query[:, :1, :, :1].transpose(1, 2)}
        )
        return ops.dot_product_attention(query, key, value, **options)

    def transformed(query: torch.Tensor) -> Any:
        if name == "jvp":
            return torch.func.jvp(call, (query,), (query.cos(),))[1]
        return getattr(torch.func, name)(call)(query)

    step = 1e-6 * query.cos()
    numeric = (call(query + step) - call(query - step)) / 2e-6
    found = transformed(query)
    if name != "jvp":
        found = torch.tensordot(found, query.cos(), query.ndim)
    # Central differences err by their step squared, and by rounding over the step.
    torch.testing.assert_close(found, numeric, atol=1e-8, rtol=1e-6)


ROWS = torch.tensor(functions.ROWS)
OTHERS: dict[str, Callable[[Any], Any]] = {
    **functions.FUNCTIONS,
    "additive weights": lambda x: ops.additive_attention_weights(x[None], x[None], x[0]),
    "any leading axes": lambda x: ops.scaled_dot_product_attention(x, x, x, return_weights=True)[1],
}
OF_OTHERS: dict[str, Callable[[Any], Any]] = {
    "jacfwd": torch.func.jacfwd,
    "jacrev": torch.func.jacrev,
    "forward_ad": lambda f: lambda x: tangent(f)(x),
    "is_grads_batched": lambda f: lambda x: batched(f)(x)[0],
    "linearize": lambda f: lambda x: linearized(f)(x)[2],
    "make_fx": lambda f: make_fx(lambda x: torch.func.vjp(f, x)[1](f(x).cos())[0])(2 * ROWS),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sin().sum()),
    "vmap": lambda f: lambda x: torch.vmap(f, 1)(torch.stack([x, 2 * x], 1)),
    "gradients of each sample": lambda f: (
        lambda x: torch.vmap(torch.func.grad(lambda x: f(x).sin().sum()))(torch.stack([x, 2 * x]))
    ),
}


def differences(function: Callable[[Any], Any], x: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian by central differences."""
    steps = (1e-6 * torch.eye(x.numel(), dtype=x.dtype)).reshape(-1, *x.shape)
    columns = [(function(x + step) - function(x - step)).detach() / 2e-6 for step in steps]
    return torch.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def expected_of(name: str, function: Callable[[Any], Any]) -> torch.Tensor:
    def slope(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().clone().requires_grad_()
        return torch.autograd.grad(function(leaf).sin().sum(), leaf)[0]

    if name == "hessian":
        return differences(slope, ROWS)
    if name in ("vmap", "gradients of each sample"):
        each = function if name == "vmap" else slope
        return torch.stack([each(ROWS), each(2 * ROWS)])
    jacobian, y = differences(function, ROWS), function(ROWS)
    if name.startswith("jac"):
        return jacobian
    if name in ("forward_ad", "linearize"):
        return torch.tensordot(jacobian, ROWS.cos(), 2)
    incoming = y.cos() if name == "make_fx" else torch.stack([y.cos(), y.sin(), y])
    return torch.tensordot(incoming, jacobian, y.ndim)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("transform", ["jacfwd", *slow([x for x in OF_OTHERS if x != "jacfwd"])])
def test_other_ops_are_transformed(transform: str, name: str) -> None:
    function = OTHERS[name]
    found = OF_OTHERS[transform](function)(ROWS)
    # Central differences err by their step squared, and by rounding over the step.
    torch.testing.assert_close(found, expected_of(transform, function), atol=1e-8, rtol=1e-6)


def check_gradients(function: Callable[..., Any], leaves: list[torch.Tensor]) -> None:
    every = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(
        function, leaves, check_forward_ad=True, check_batched_forward_grad=True, **every
    )
    assert torch.autograd.gradgradcheck(
        function, leaves, check_fwd_over_rev=True, check_rev_over_rev=True, **every
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_gradcheck_of_other_ops(name: str) -> None:
    check_gradients(OTHERS[name], [ROWS.clone().requires_grad_()])


def test_nothing_flows_through_statistics() -> None:
    def call(x: torch.Tensor) -> Any:
        return ops.attention_statistics(as_heads(x), as_heads(x), keys=[1])

    for found in torch.func.jvp(call, (ROWS,), (ROWS,))[1], torch.func.jacrev(call)(ROWS):
        assert not any(x.any() for x in found)
    mapped = torch.vmap(call)(torch.stack([ROWS, 2 * ROWS]))
    assert_same(tuple(x[1] for x in mapped), tuple(call(2 * ROWS)))


def test_masks_and_biases_are_mapped() -> None:
    query, key, value = inputs()
    lengths = torch.tensor([[4, 6], [1, 2], [6, 0]])

    def call(lengths: Any, bias: Any) -> Any:
        mask = Mask.lengths(lengths)
        return ops.dot_product_attention(query, key, value, mask=mask, bias=bias)

    bias = torch.arange(3 * 4 * 6, dtype=torch.float64).reshape(3, 1, 4, 1, 6).sin()
    expected = torch.stack([call(*pair) for pair in zip(lengths, bias, strict=True)])
    assert_same(torch.vmap(call)(lengths, bias), expected)
    one = torch.func.grad(lambda bias, lengths: call(lengths, bias).sin().sum())
    found = torch.vmap(one, (None, 0))(bias[0], lengths)
    assert_same(found, torch.stack([one(bias[0], x) for x in lengths]))


def test_derivatives_that_there_are_not_are_refused() -> None:
    query, key, value = inputs()

    def forward(query: Any) -> Any:
        return torch.func.jvp(lambda x: heeds(x, key, value), (query,), (query,))[1]

    with pytest.raises(NotImplementedError, match="forward mode over forward mode"):
        torch.func.jvp(forward, (query,), (query,))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["native", "portable"])
def test_gradcheck(implementation: str) -> None:
    leaves = [x[:1, :3, :2, :2].requires_grad_() for x in inputs()]

    def call(*tensors: Any) -> Any:
        return ops.dot_product_attention(*tensors, is_causal=True)

    with heed.set_implementation(implementation):
        check_gradients(call, leaves)


class Own(torch.Tensor):
    pass


def conjugate(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, -x).conj().imag


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negated": conjugate,
    "dense negated": lambda x: conjugate(x).as_strided(x.shape, x.stride()),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "permuted": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "subclass": lambda x: x.as_subclass(Own),
    "expanded": lambda x: x[:1].expand(x.shape),
    "zeros": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
}


@given(st.tuples(*[st.sampled_from(sorted(VIEWS))] * 3))
@example(("dense negated", "parameter", "parameter"))
@example(("parameter", "dense negated", "parameter"))
@example(("parameter", "parameter", "dense negated"))
@example(("zeros", "parameter", "parameter"))
@example(("parameter", "zeros", "parameter"))
@example(("parameter", "parameter", "zeros"))
def test_views_are_read_by_their_numbers(names: tuple[str, ...]) -> None:
    views = [VIEWS[name](x) for name, x in zip(names, inputs(), strict=True)]
    copies = [x.as_subclass(torch.Tensor).detach().clone() for x in views]
    copies = [x.resolve_neg().contiguous() + 0 for x in copies]
    assert_same(heeds(*views).as_subclass(torch.Tensor), heeds(*copies))


@given(st.sampled_from(["negated", "strided", "expanded", "zeros"]))
def test_incoming_gradients_are_read_by_their_numbers(name: str) -> None:
    def first(incoming: torch.Tensor) -> Any:
        leaves = [x.requires_grad_() for x in inputs()]
        return torch.autograd.grad(heeds(*leaves), leaves, incoming)

    view = VIEWS[name](heeds(*inputs()))
    assert_same(first(view), first(view.clone().contiguous() + 0))


@pytest.mark.parametrize("name", ["strided", "permuted"])
def test_saved_tensors_may_come_back_in_other_strides(name: str) -> None:
    def first(pack: Any) -> Any:
        leaves = [x.requires_grad_() for x in inputs()]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = heeds(*leaves)
        return torch.autograd.grad(output.sin().sum(), leaves)

    assert_same(first(VIEWS[name]), first(lambda x: x))
    with pytest.raises(ValueError, match="Hooks of saved tensors must"):
        first(lambda x: x.half() if x.is_floating_point() else x)


def test_what_the_core_cannot_read_is_refused() -> None:
    query, key, value = inputs()
    for wrong in (query.to_sparse(), torch.quantize_per_tensor(query.float(), 0.1, 0, torch.qint8)):
        with pytest.raises(TypeError, match="`query` must be a tensor or array"):
            ops.dot_product_attention(wrong, key, value)
    with pytest.raises(ValueError, match=r"`key` must .* device of `query`"):
        ops.dot_product_attention(query, key.to("meta"), value)
    with pytest.raises(ValueError, match=r"`mask` must .* device of `query`"):
        ops.dot_product_attention(query, key, value, mask=CAUSAL.to("meta"))
    found = ops.dot_product_attention(*[x.to("meta") for x in inputs()])
    assert found.is_meta
    assert found.shape == (2, 5, 4, 4)


def test_a_traced_function_computes_again() -> None:
    traced = torch.jit.trace(heeds, tuple(x * 2 for x in inputs()))
    assert_same(traced(*inputs()), plain(*inputs()))


def with_permuted_operands(query: Any, key: Any, value: Any) -> Any:
    bias = query.mean() * key.new_ones(query.shape[1], key.shape[1], 4)
    return ops.dot_product_attention(
        (query * 2).transpose(1, 3).contiguous().transpose(1, 3),
        key,
        value,
        mask=Mask.window(3, 0) & Mask.lengths(LENGTHS),
        bias=bias.permute(2, 0, 1)[None],
    )


COMPILED: dict[str, tuple[Callable[..., Any], bool | None]] = {
    # For the first length as it is, for the second one as a symbol.
    "permuted": (with_permuted_operands, None),
    "permuted, symbols from the start": (with_permuted_operands, True),
    "dropout": (lambda q, k, v: ops.dot_product_attention(q, k, v, dropout=0.3, seed=5), None),
    "jvp": (lambda q, k, v: torch.func.jvp(lambda x: heeds(x, k, v), (q,), (q,))[1], None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", *slow(["inductor"])])
@pytest.mark.parametrize("name", ["permuted", *slow([*COMPILED][1:])])
def test_compiled_functions_give_the_same(name: str, backend: str) -> None:
    function, dynamic = COMPILED[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=name != "jvp")
    for length in (5, 4):
        query, *others = inputs()
        leaves = [x.requires_grad_() for x in (query[:, :length], *others)]
        outputs = compiled(*leaves), function(*leaves)
        found, expected = (torch.autograd.grad(x.sin().sum(), leaves) for x in outputs)
        assert_same(outputs[0], outputs[1])
        assert_same(found, expected)


@pytest.mark.slow
def test_an_exported_program_takes_other_sizes() -> None:
    class Net(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return ops.dot_product_attention(query, key, value, mask=Mask.window(4, 0))

    batch, length = torch.export.Dim("b", min=1, max=9), torch.export.Dim("t", min=2, max=64)
    x = inputs()[0]
    shapes = ({0: batch, 1: length},) * 3
    program = torch.export.export(Net(), (x, x, x), dynamic_shapes=shapes).module()
    longer = torch.cat([x, x], 1)[:1]
    assert_same(program(longer, longer, longer), Net()(longer, longer, longer))
