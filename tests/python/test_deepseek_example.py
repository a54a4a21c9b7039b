"""examples/deepseek_generate.py: the comparison holds, it notices planted faults, and the committed capture is sound.

The prompts are shorter than the example's own, the number of steps is not.
"""

import copy
import importlib.util
import pathlib
import subprocess
import sys
import types

import pytest
import torch
from safetensors import safe_open
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb

import flash_mla
import mla
import reference

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "deepseek_generate.py"
CAPTURE = ROOT / "tests" / "data" / "deepseek_decode.safetensors"
LENGTHS, STEPS = [200, 90, 40], 64


def load_example():
    spec = importlib.util.spec_from_file_location("deepseek_generate", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


@pytest.fixture(scope="module")
def story():
    """The model, its prompts, what follows them in the text, and what the library makes of them: computed once."""
    requests = example.make_requests(LENGTHS, STEPS)
    model = example.make_model(0, requests, STEPS)
    prompts = example.make_prompts(requests)
    text = example.TEXT.read_bytes()
    following = [text[begin + length :][: STEPS + 1] for begin, length in requests]
    library, _, bytes_per_token = example.generate_library(model, prompts, STEPS)
    return types.SimpleNamespace(
        model=model, prompts=prompts, following=following, library=library, bytes_per_token=bytes_per_token
    )


def compare(story, dtype_name="bf16", steps=STEPS, latent=None, record_layer=None):
    latent = latent or example.make_latent(story.model)
    return example.compare(story.model, latent, story.prompts, story.library, steps, dtype_name, 0, record_layer)


# ---- both paths agree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype_name, steps", [("bf16", STEPS), ("f16", 16), ("f32", 24)])
def test_paths_agree(story, dtype_name, steps):
    results, comparison, _, _ = compare(story, dtype_name, steps)  # raises Mismatch where the example would
    assert comparison.n_step == len(LENGTHS) * (steps + 1)
    assert [result.tokens for result in results] == [result.tokens[: steps + 1] for result in story.library]
    # The model recites the text: attention carries what it must, in both.
    assert [bytes(result.tokens) for result in results] == [text[: steps + 1] for text in story.following]
    # No choice was so close that an error within the bound could have turned it.
    assert comparison.margin > 2 * comparison.logit_bound.max()
    assert comparison.n_rerouted <= 0.1 * comparison.n_step
    if dtype_name == "f32":
        assert comparison.n_rerouted == 0 and comparison.difference < 2e-4


def test_library_keeps_latent_rows(story):
    """What the example prints as the library's cache: 512 + 64 numbers of fp32."""
    assert story.bytes_per_token == 4 * 576


def test_score_spread(story):
    """The constant in the bound is the model's: the spread of the scores of a late token over the keys."""
    model = copy.deepcopy(story.model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(story.prompts[0][None], output_attentions=True).attentions
    spread = torch.stack([layer[0, :, -1].log().std(-1).mean() for layer in weights])
    assert ((spread / example.SCORE_SPREAD - 1).abs() < 0.2).all(), spread


# ---- and would not, if something were wrong --------------------------------------------------------------------------


def attentions(model):
    return [layer.self_attn for layer in model.model.layers]


def set_scale(scale):
    def plant(model, _):
        for attention in attentions(model):
            attention.inner.scaling = scale

    return plant


def forget_latent_norm(model, _):
    for attention in attentions(model):
        attention.inner.kv_a_layernorm = torch.nn.Identity()


def confuse_rotary_pairs(_, monkeypatch):
    monkeypatch.setattr(example, "apply_rotary_pos_emb_interleave", apply_rotary_pos_emb)


def forget_key_rotation(_, monkeypatch):
    rotate = example.apply_rotary_pos_emb_interleave
    monkeypatch.setattr(
        example,
        "apply_rotary_pos_emb_interleave",
        lambda q, k, *args, **kwargs: (rotate(q, k, *args, **kwargs)[0], k),
    )


def shift_value_heads(model, _):
    for attention in attentions(model):
        attention.w_uv = attention.w_uv.roll(1, 0)


def exchange_key_and_value_tables(model, _):
    for attention in attentions(model):
        attention.w_uk, attention.w_uv = attention.w_uv, attention.w_uk


def hide_newest_key(_, monkeypatch):
    class Short(example.Call):
        def __init__(self, *args):
            super().__init__(*args)
            self.lengths = self.lengths - 1

    monkeypatch.setattr(example, "Call", Short)


def overwrite_neighbour(_, monkeypatch):
    """While decoding, every new row goes to the first slot of its page."""

    class Stuck(example.Call):
        def __init__(self, cache, requests, position, n_head):
            super().__init__(cache, requests, position, n_head)
            if position.shape[1] == 1:
                cache.pool = [pool.nan_to_num() for pool in cache.pool]
                self.slot = self.slot // example.PAGE * example.PAGE

    monkeypatch.setattr(example, "Call", Stuck)


def see_the_future(_, monkeypatch):
    def without_causal(*args, causal, **kwargs):
        return flash_mla.flash_mla_with_kvcache(*args, causal=False, **kwargs)

    monkeypatch.setattr(
        example,
        "flash_mla",
        types.SimpleNamespace(get_mla_metadata=flash_mla.get_mla_metadata, flash_mla_with_kvcache=without_causal),
    )


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(set_scale(576**-0.5), id="the scale that flash_mla assumes"),
        pytest.param(set_scale(192**-0.5), id="scale without mscale"),
        forget_latent_norm,
        confuse_rotary_pairs,
        forget_key_rotation,
        shift_value_heads,
        exchange_key_and_value_tables,
        hide_newest_key,
        overwrite_neighbour,
        see_the_future,
    ],
)
def test_planted_fault_is_noticed(story, monkeypatch, plant):
    latent = example.make_latent(story.model)
    plant(latent, monkeypatch)
    with pytest.raises(example.Mismatch):
        compare(story, steps=16, latent=latent)


def changed(result, **fields):
    """The result with other values at step 0."""
    altered = copy.deepcopy(result)
    for name, value in fields.items():
        getattr(altered, name)[0] = value
    return altered


def test_comparison_judges_each_rule(story):
    """One step, altered by hand: what is tolerated and what is not."""
    right = story.library[0]
    bound = example.Comparison(story.model, "bf16").logit_bound

    def check(ours):
        example.Comparison(story.model, "bf16").check("here", 0, right, ours)

    check(right)
    check(changed(right, logits=right.logits[0] + 0.9 * bound))
    with pytest.raises(example.Mismatch, match="logit .* differs"):
        check(changed(right, logits=right.logits[0] + 1.1 * bound))
    with pytest.raises(example.Mismatch, match="not finite"):
        check(changed(right, logits=right.logits[0] * float("nan")))
    with pytest.raises(example.Mismatch, match="libmla byte 0"):
        check(changed(right, tokens=0))
    # Its worst expert for its best, as if that had been a near tie.
    score, chosen = right.score[0][0], right.chosen[0].clone()
    chosen[0, score.argmax()], chosen[0, score.argmin()] = False, True
    with pytest.raises(example.Mismatch, match="expert .* instead of"):
        check(changed(right, chosen=chosen))


# ---- captures --------------------------------------------------------------------------------------------------------


def read_capture(path):
    with safe_open(path, "pt") as file:
        return types.SimpleNamespace(**{name: file.get_tensor(name) for name in file.keys()}, metadata=file.metadata())


def replay(capture):
    metadata = capture.metadata
    arguments = capture.q, capture.k_cache, capture.block_table, capture.cache_seqlens, int(metadata["head_dim_v"])
    scale = float(metadata["softmax_scale"])
    if capture.q.dtype == torch.float32:  # flash_mla takes 16-bit types only
        out, lse = mla.attention(
            capture.q,
            capture.k_cache,
            page_table=capture.block_table,
            lengths=capture.cache_seqlens,
            d_v=int(metadata["head_dim_v"]),
            softmax_scale=scale,
            causal=True,
        )
        answer = out, lse.mT
    else:
        answer = flash_mla.flash_mla_with_kvcache(*arguments, None, None, softmax_scale=scale, causal=True)
    return answer, reference.decode(*arguments, scale=scale, causal=True)


def check_capture(capture):
    assert capture.metadata["op"] == "flash_mla_with_kvcache" and capture.metadata["causal"] == "true"
    assert capture.metadata["source"]
    # The table of docs/capture-format.md.
    (b, s_q, h_q, d), (_, page, h_kv, d_cache) = capture.q.shape, capture.k_cache.shape
    assert capture.q.dtype == capture.k_cache.dtype == capture.out.dtype
    assert capture.block_table.dtype == capture.cache_seqlens.dtype == torch.int32
    assert capture.lse.dtype == torch.float32
    assert (page, h_kv, d_cache) == (64, 1, d) and len(capture.block_table) == b and capture.cache_seqlens.shape == (b,)
    assert capture.out.shape == (b, s_q, h_q, int(capture.metadata["head_dim_v"]))
    assert capture.lse.shape == (b, h_q, s_q)
    answer, expected = replay(capture)
    reference.assert_decode_close((capture.out, capture.lse), expected, capture.q.dtype)
    reference.assert_decode_close(answer, expected, capture.q.dtype)


def test_committed_capture():
    capture = read_capture(CAPTURE)
    assert CAPTURE.stat().st_size < 1_000_000
    assert capture.q.shape == (3, 1, 16, 576) and capture.q.dtype == torch.bfloat16
    assert capture.cache_seqlens.tolist() == [300, 150, 90]
    check_capture(capture)
    # It would show a kernel that reads one row too many: whatever no request owns is NaN, and no page repeats.
    owned = torch.zeros(capture.k_cache.shape[:2], dtype=torch.bool)
    for length, table in zip(capture.cache_seqlens.tolist(), capture.block_table):
        for position in range(length):
            page, slot = int(table[position // 64]), position % 64
            assert not owned[page, slot]
            owned[page, slot] = True
    assert torch.equal(capture.k_cache.isnan().all(-1)[..., 0], ~owned)
    assert (capture.block_table >= len(capture.k_cache)).any()


@pytest.mark.parametrize("dtype_name", example.DTYPES)
def test_command(tmp_path, dtype_name):
    """As a user calls it, with a capture of its own."""
    path = tmp_path / "capture.safetensors"
    command = [sys.executable, EXAMPLE, "--prompts", "70,20", "--steps", "8", "--cache-dtype", dtype_name]
    command += ["--capture", path, "--capture-layer", "0"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout.splitlines()[-1]
    capture = read_capture(path)
    assert capture.q.dtype == example.DTYPES[dtype_name]
    check_capture(capture)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--prompts", "9190"], "do not fit into bytes 0 to 9190"),
        (["--prompts", "20,4600"], "do not fit into bytes 4595 to 9190"),
        (["--prompts", "0"], "do not fit"),
        (["--prompts", "many"], "invalid lengths value: 'many'"),
        (["--steps", "0"], "must be at least 1"),
    ],
)
def test_command_refuses(monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr(sys, "argv", ["deepseek_generate.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        example.main()
    assert ended.value.code != 0
    assert sentence in f"{ended.value.code} {capsys.readouterr().err}"
