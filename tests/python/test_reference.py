"""The referee must be able to say no."""

import math

import pytest
import reference
import torch


def test_attend_is_the_softmax_average():
    q, k = torch.tensor([[[2.0]]]), torch.tensor([[[0.0]], [[1.0]]])
    v = torch.tensor([[[10.0]], [[20.0]]])
    out, lse = reference.attend(q, k, v, 0.5, torch.ones(1, 2, dtype=torch.bool))
    weight = math.e / (1 + math.e)
    assert out.item() == pytest.approx(10 * (1 - weight) + 20 * weight, rel=1e-15)
    assert lse.item() == pytest.approx(math.log(1 + math.e), rel=1e-15)


def test_nothing_visible_gives_zero_and_plus_inf():
    out, lse = reference.attend(
        torch.ones(1, 2, 3), torch.ones(4, 1, 3), torch.ones(4, 1, 2), 1.0, torch.zeros(1, 4, dtype=torch.bool)
    )
    assert torch.equal(out, torch.zeros(1, 2, 2, dtype=torch.float64)) and torch.isposinf(lse).all()


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda x: x.float(), "dtype"),
        (lambda x: x[:-1], "shape"),
        (lambda x: x.index_fill(0, torch.tensor(0), float("nan")), "NaN"),
        (lambda x: x.index_fill(0, torch.tensor(0), float("inf")), r"\+inf"),
        (lambda x: x.index_fill(0, torch.tensor(0), float("-inf")), "-inf"),
        (lambda x: x.index_fill(0, torch.tensor(7), 0.5), "1 of 64 elements are off, the first at"),
        (lambda x: x * 1.005, "cosine distance"),
    ],
)
def test_the_rule_of_comparison_refuses(spoil, words):
    right = torch.linspace(1, 2, 64, dtype=torch.float64)
    reference.assert_close("x", right.clone(), right, 1e-3, 1e-2)
    with pytest.raises(AssertionError, match=words):
        reference.assert_close("x", spoil(right), right, 1e-3, 1e-2)
