#!/usr/bin/env python3
"""DeepSeek-V3 decodes text over a paged latent cache, and every step is compared with the library's own attention.

    PYTHONPATH=build/python python examples/deepseek_generate.py

The model is the DeepSeek-V3 architecture of the package `transformers`: latent attention of the real geometry (512
latent and 64 rotary columns, 128 columns per head for keys without position and for values, YaRN), a dense layer and
two layers of experts, with a small hidden size so that it runs on a laptop. It generates twice from the same bytes:

  library  the model as it is, each request with the library's own cache, in fp32;
  libmla   the same weights with `LatentAttention` in the place of each attention: the *absorbed* form over a cache of
           64-row pages in shuffled order, all requests as one batch, bf16 cache and queries.

The absorbed form. The library unfolds every latent row c into a key W_UK c and a value W_UV c for each head, again at
every step. But q . (W_UK c) = (W_UK^T q) . c and sum_j p_j W_UV c_j = W_UV (sum_j p_j c_j): the query is projected
into the latent space once, compared with the rows as they lie in the cache, and the average of rows is unfolded once.

    query  [ q_nope W_UK | rotated q_rope ]             576 columns per head
    row    [ latent after its norm | rotated k_rope ]   576 columns for all heads, key and value at once
    out    (sum_j p_j latent_j) W_UV                    128 columns per head

The softmax scale is the model's own, (128 + 64)^-1/2 times the square of YaRN's mscale: not 576^-1/2, which
`flash_mla_with_kvcache` would assume.

Weights. They are drawn from a seed, except the output layer. With that drawn too, a model speaks noise and picks its
tokens from near ties, which no comparison of two roundings could survive. It is instead fitted in closed form (ridge
regression from the library's last hidden states), so that the model *recites* what follows each prompt in the text.
Every choice then has a wide margin, which is printed; and since the next byte depends on what was read far back, a
reader sees at a glance whether attention works. Range of the weights, ridge and number of experts were chosen on
seed 0 for wide margins; seeds 1 to 6 pass as well.

What is checked, at every step:
  1. both paths choose the same byte;
  2. no logit differs by more than the bound below;
  3. where a token goes to other experts (near ties cannot be excluded: there are thousands of choices), the library's
     own scores of those experts were closer than the same bound. From there on the two paths compute different
     functions of this token, so rule 2 does not apply to it; rule 1 does.

The bound. Logits and expert scores are inner products <w, h> with a normalised hidden state h of rms 1. If h carries a
relative error of rms e in random directions, <w, h> moves by a random amount of standard deviation |w| e. We allow six.
For e: a layer rounds four things, the value and the output (each a relative error r of the attention output) and the
query and the key (each moves a score by r times the spread of the scores, hence the output by as much). Their squares
add up within a layer and over layers, and what follows a layer passes on a relative error:

    e = r sqrt(n_layer (2 + 2 spread^2))     r = 0.42 * 2^-8 for bf16, the rms of rounding to 8 bits (f16: 11 bits)
    |difference of a logit| <= 6 e |w|       spread = 1.5, the standard deviation of this model's scores

This is a model of the error, not a proof. Errors reach about half of it (43 to 68 % in trials of seeds 0 to 6), while
a wrong scale, a wrong order of the rotary columns or a forgotten norm exceed it at once:
tests/python/test_deepseek_example.py plants these and more. With --cache-dtype f32 nothing is rounded to 16 bits; r
is then sqrt(n) 2^-24, the growth of the n = 2048 rounding errors of a long sum, and the bound six hundred times
tighter.
"""

import argparse
import copy
import itertools
import math
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: configuration and weights are made here

import torch
import transformers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

import flash_mla
import mla

TEXT = Path(__file__).resolve().parent.parent / "tests" / "data" / "text.txt"
PAGE = 64  # rows of a page
PREFILL_CHUNK = 512  # query tokens of one prefill call
SCORE_SPREAD = 1.5  # standard deviation of the attention scores of this model
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ROUNDING = {"bf16": 0.42 * 2**-8, "f16": 0.42 * 2**-11, "f32": math.sqrt(2048) * 2**-24}


class Mismatch(Exception):
    """The two paths disagree."""


# ---- the model -------------------------------------------------------------------------------------------------------


def make_config():
    return DeepseekV3Config(
        vocab_size=256,  # bytes
        hidden_size=512,
        intermediate_size=1024,
        moe_intermediate_size=128,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=256,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=4,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )


def make_model(seed, requests, n_step):
    """The library's model in fp32. `requests`: pairs (begin, prompt length) of positions in the text."""
    torch.manual_seed(seed)
    model = DeepseekV3ForCausalLM(make_config()).eval()
    fit_output_layer(model, requests, n_step)
    return model


def read_text():
    return torch.tensor(list(TEXT.read_bytes()))


@torch.no_grad()
def fit_output_layer(model, requests, n_step):
    """Ridge regression from the last hidden states onto the bytes that follow in the text, around each prompt's end."""
    text = read_text()
    states, following = [], []
    for begin, length in requests:
        span = text[begin : begin + length + n_step + 1]
        states.append(model.model(span[None, :-1]).last_hidden_state[0, length - 1 :].double())
        following.append(torch.nn.functional.one_hot(span[length:], model.config.vocab_size).double())
    h, y = torch.cat(states), torch.cat(following)
    ridge = 1e-4 * len(h) * torch.eye(h.shape[1], dtype=h.dtype)
    model.lm_head.weight.copy_(torch.linalg.solve(h.T @ h + ridge, h.T @ y).T)


# ---- the paged latent cache and the attention that reads it ----------------------------------------------------------


class PagedCache:
    """One pool of pages per layer, and one page table for all of them.

    pool[layer]  [page][slot][1][576]   rows never written stay NaN, so that reading one too many shows
    table        i32 [request][page of the request], physical pages in random order; unused entries are no page at all
    """

    def __init__(self, config, capacity, dtype, seed):
        n_page = [-(-n // PAGE) for n in capacity]
        total = sum(n_page) + 1  # one page belongs to nobody
        shape = (total, PAGE, 1, config.kv_lora_rank + config.qk_rope_head_dim)
        self.pool = [torch.full(shape, math.nan, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.table = torch.full((len(capacity), max(n_page)), 2147480000, dtype=torch.int32)
        shuffled = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).int()
        for request, pages in enumerate(shuffled[:-1].split(n_page)):
            self.table[request, : len(pages)] = pages


class Call:
    """Where the tokens of one model call belong: rows of a page table and positions, shared by all layers."""

    def __init__(self, cache, requests, position, n_head):
        self.cache = cache
        self.table = cache.table[requests]  # i32 [b][max_page]
        self.slot = self.table.gather(1, position // PAGE).long() * PAGE + position % PAGE  # [b][s_q]
        self.lengths = (position[:, -1] + 1).int()  # keys of each request, the new ones included
        self.metadata, self.num_splits = flash_mla.get_mla_metadata(self.lengths, position.shape[1] * n_head, 1)


class LatentAttention(torch.nn.Module):
    """Stands in for the library's attention module and uses its projections."""

    call = None  # the running Call; set before each model call
    record = None  # a dict that receives tensors and parameters of the next attention call

    def __init__(self, attention):
        super().__init__()
        self.inner = attention
        w = attention.kv_b_proj.weight.unflatten(0, (attention.num_heads, -1))  # [head][128 + 128][512]
        self.w_uk, self.w_uv = w.detach().split([attention.qk_nope_head_dim, attention.v_head_dim], dim=1)

    def forward(self, hidden_states, position_embeddings, **_):
        a, call = self.inner, self.call
        pool = call.cache.pool[a.layer_idx]

        q = a.q_b_proj(a.q_a_layernorm(a.q_a_proj(hidden_states))).unflatten(-1, (a.num_heads, a.qk_head_dim))
        q_nope, q_rope = q.split([a.qk_nope_head_dim, a.qk_rope_head_dim], dim=-1)
        latent, k_rope = a.kv_a_proj_with_mqa(hidden_states).split([a.kv_lora_rank, a.qk_rope_head_dim], dim=-1)
        latent = a.kv_a_layernorm(latent)
        cos, sin = position_embeddings
        q_rope, k_rope = apply_rotary_pos_emb_interleave(q_rope, k_rope.unsqueeze(2), cos, sin, unsqueeze_dim=2)

        q = torch.cat([torch.einsum("bthn,hnc->bthc", q_nope, self.w_uk), q_rope], dim=-1).to(pool.dtype)
        pool.flatten(0, 1)[call.slot, 0] = torch.cat([latent, k_rope.squeeze(2)], dim=-1).to(pool.dtype)

        out = self.attend(q, pool, call)

        out = torch.einsum("bthc,hvc->bthv", out.to(hidden_states.dtype), self.w_uv)
        return a.o_proj(out.flatten(2)), None

    def attend(self, q, pool, call):
        """q [b][s_q][head][576] against the pages of each request; returns [b][s_q][head][512]."""
        d_v, scale = self.inner.kv_lora_rank, self.inner.scaling
        if pool.dtype == torch.float32:  # flash_mla takes 16-bit types only
            out, lse = mla.attention(
                q, pool, page_table=call.table, lengths=call.lengths, d_v=d_v, softmax_scale=scale, causal=True
            )
            lse = lse.transpose(1, 2)  # [b][head][s_q], as flash_mla has it
        else:
            out, lse = flash_mla.flash_mla_with_kvcache(
                q, pool, call.table, call.lengths, d_v, call.metadata, call.num_splits, softmax_scale=scale, causal=True
            )
        if self.record is not None:
            tensors = dict(
                q=q, k_cache=pool, block_table=call.table, cache_seqlens=call.lengths, out=out, lse=lse.contiguous()
            )
            self.record.update(tensors={name: tensor.clone() for name, tensor in tensors.items()}, scale=scale, d_v=d_v)
        return out


# ---- two ways to generate --------------------------------------------------------------------------------------------


class Watch:
    """Listens to a model: the experts it chooses and the time spent in its attention modules."""

    def __init__(self, model):
        self.seconds = 0.0
        self.routes = []
        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(self._start)
            layer.self_attn.register_forward_hook(self._stop)
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_hook(self._route)

    def _start(self, *_):
        self.since = time.perf_counter()

    def _stop(self, *_):
        self.seconds += time.perf_counter() - self.since

    def _route(self, _module, _inputs, output):
        score, _weight, chosen = output
        self.routes.append((score, torch.zeros_like(score, dtype=torch.bool).scatter_(1, chosen, True)))

    def take(self, n_request):
        """Of the tokens since the last call: scores and choices, [request][token][expert layer][expert]; seconds."""
        score, chosen = (torch.stack(part, dim=1).unflatten(0, (n_request, -1)) for part in zip(*self.routes))
        seconds, self.seconds, self.routes = self.seconds, 0.0, []
        return score, chosen, seconds


class Generated:
    """What one path made of one request. logits, score and chosen begin with the token that ends the prompt."""

    def __init__(self):
        self.tokens = []  # n_step + 1 bytes
        self.logits = []  # n_step + 1 times [byte]
        self.score = []  # of each token: expert scores [expert layer][expert]
        self.chosen = []  # and which experts it went to, as a mask

    def add(self, logits, score, chosen):
        self.tokens.append(int(logits.argmax()))
        self.logits.append(logits)
        self.score.append(score)
        self.chosen.append(chosen)


class Timing:
    """Seconds in attention modules."""

    prefill = 0.0
    decode = 0.0


@torch.no_grad()
def generate_library(model, prompts, n_step, on_step=None):
    """Greedy decoding by the library alone, request by request."""
    model = copy.deepcopy(model)
    watch, timing, results, cache_bytes, n_token = Watch(model), Timing(), [], 0, 0
    for prompt in prompts:
        cache, result, ids = DynamicCache(config=model.config), Generated(), prompt[None]
        for step in range(n_step + 1):
            logits = model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            score, chosen, seconds = watch.take(1)
            result.add(logits, score[0, -1], chosen[0, -1])
            if step == 0:
                timing.prefill += seconds
            else:
                timing.decode += seconds
            ids = torch.tensor([[result.tokens[-1]]])
        results.append(result)
        cache_bytes += sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        n_token += cache.get_seq_length()
        if on_step:
            on_step(len(results) - 1, result)
    return results, timing, cache_bytes / n_token / len(model.model.layers)


def make_latent(model):
    """The same model with every attention replaced."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.self_attn = LatentAttention(layer.self_attn)
    return model


@torch.no_grad()
def generate_latent(model, prompts, n_step, dtype, seed, on_step=None, record_layer=None):
    """Greedy decoding over the paged cache by a model of make_latent(): prefill in chunks, then all requests as one
    batch. The last call of layer `record_layer` is returned too."""
    n_head = model.config.num_attention_heads
    watch, timing, results = Watch(model), Timing(), [Generated() for _ in prompts]
    cache = PagedCache(model.config, [len(prompt) + n_step for prompt in prompts], dtype, seed)
    record = {}

    def run(requests, ids, position):
        call = Call(cache, requests, position, n_head)
        for layer in model.model.layers:
            layer.self_attn.call = call
        logits = model(ids, position_ids=position, use_cache=False, logits_to_keep=1).logits[:, -1]
        return logits, *watch.take(len(requests))

    for request, prompt in enumerate(prompts):
        for begin in range(0, len(prompt), PREFILL_CHUNK):
            ids = prompt[None, begin : begin + PREFILL_CHUNK]
            position = torch.arange(begin, begin + ids.shape[1])[None]
            logits, score, chosen, seconds = run([request], ids, position)
            timing.prefill += seconds
        results[request].add(logits[0], score[0, -1], chosen[0, -1])

    everyone = list(range(len(prompts)))
    position = torch.tensor([[len(prompt)] for prompt in prompts])
    if on_step:
        on_step(0, results)
    for step in range(1, n_step + 1):
        if step == n_step and record_layer is not None:
            model.model.layers[record_layer].self_attn.record = record
        ids = torch.tensor([[result.tokens[-1]] for result in results])
        logits, score, chosen, seconds = run(everyone, ids, position)
        timing.decode += seconds
        for request, result in enumerate(results):
            result.add(logits[request], score[request, -1], chosen[request, -1])
        position = position + 1
        if on_step:
            on_step(step, results)
    return results, timing, record


# ---- the comparison --------------------------------------------------------------------------------------------------


class Comparison:
    """Checks steps one by one and remembers the extremes. Raises Mismatch."""

    def __init__(self, model, dtype_name):
        n_layer = model.config.num_hidden_layers
        self.error = ROUNDING[dtype_name] * math.sqrt(n_layer * (2 + 2 * SCORE_SPREAD**2))
        self.logit_bound = 6 * self.error * model.lm_head.weight.detach().norm(dim=1)  # [byte]
        self.gates = [layer.mlp.gate.weight.detach() for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self.difference = 0.0  # largest difference of a logit, where the experts agree
        self.used = 0.0  # the same as a share of its bound
        self.difference_rerouted = 0.0  # where they do not
        self.margin = math.inf  # smallest distance between the library's best and second best logit
        self.n_step = self.n_rerouted = 0

    def check(self, where, step, library, latent):
        """One step of one request."""
        ours, theirs = latent.logits[step], library.logits[step]
        if not bool(ours.isfinite().all()):
            raise Mismatch(f"{where}: a logit is not finite")
        difference = (ours - theirs).abs()
        best = theirs.topk(2).values
        self.margin = min(self.margin, float(best[0] - best[1]))
        self.n_step += 1
        if self._rerouted(where, library.score[step], library.chosen[step], latent.chosen[step]):
            self.n_rerouted += 1
            self.difference_rerouted = max(self.difference_rerouted, float(difference.max()))
        else:
            self.difference = max(self.difference, float(difference.max()))
            self.used = max(self.used, float((difference / self.logit_bound.clamp_min(1e-30)).max()))
            worst = int((difference - self.logit_bound).argmax())
            if difference[worst] > self.logit_bound[worst]:
                raise Mismatch(
                    f"{where}: logit {worst} differs by {difference[worst]:.3g}, bound {self.logit_bound[worst]:.3g}"
                )
        if library.tokens[step] != latent.tokens[step]:
            raise Mismatch(f"{where}: library chooses byte {library.tokens[step]}, libmla byte {latent.tokens[step]}")

    def _rerouted(self, where, score, theirs, ours):
        """Did the paths choose different experts for a token? Only the first layer in which they do can be judged."""
        for layer, gate in enumerate(self.gates):
            left = (theirs[layer] & ~ours[layer]).nonzero().flatten().tolist()
            taken = (ours[layer] & ~theirs[layer]).nonzero().flatten().tolist()
            for a, b in itertools.product(left, taken):
                gap = float(score[layer, a] - score[layer, b])
                bound = 6 * self.error * float((gate[a] - gate[b]).norm())
                if gap > bound:
                    raise Mismatch(
                        f"{where}: expert {b} instead of {a} in expert layer {layer}, "
                        f"scores {gap:.3g} apart, bound {bound:.3g}"
                    )
            if left:
                return True
        return False


# ---- the program -----------------------------------------------------------------------------------------------------


def make_requests(lengths, n_step):
    """Prompts start at evenly spaced places of the text."""
    n_text = TEXT.stat().st_size
    requests = [(i * n_text // len(lengths), length) for i, length in enumerate(lengths)]
    for begin, length in requests:
        if length < 1 or begin + length + n_step + 1 > n_text:
            sys.exit(
                f"{length} bytes of prompt and {n_step} steps do not fit into bytes {begin} to {n_text} of the text"
            )
    return requests


def make_prompts(requests):
    text = read_text()
    return [text[begin : begin + length] for begin, length in requests]


def save_capture(path, record, args):
    """The format is described in docs/capture-format.md."""
    from safetensors.torch import save_file

    metadata = {
        "op": "flash_mla_with_kvcache",
        "head_dim_v": str(record["d_v"]),
        "softmax_scale": repr(record["scale"]),
        "causal": "true",
        "source": f"examples/deepseek_generate.py, seed {args.seed}, "
        f"prompts of {', '.join(map(str, args.prompts))} bytes, layer {args.capture_layer}, decode step {args.steps}",
    }
    save_file(record["tensors"], path, metadata=metadata)


def compare(model, latent_model, prompts, library, n_step, dtype_name, seed, record_layer=None, say=lambda line: None):
    """Generates with `latent_model` (of make_latent()) and checks every step against `library`, the results of
    generate_library(). Returns results, comparison, timing and the recorded call; raises Mismatch."""
    comparison = Comparison(model, dtype_name)
    say("  step   largest difference of a logit   smallest margin   bytes so far, request 0")

    def on_step(step, results):
        for request, (theirs, ours) in enumerate(zip(library, results)):
            comparison.check(f"request {request}, step {step}", step, theirs, ours)
        if step % 8 == 0 or step == n_step:
            shown = bytes(results[0].tokens)[-40:]
            say(f"  {step:4d}   {comparison.difference:29.2e}   {comparison.margin:15.3f}   {shown}")

    results, timing, record = generate_latent(
        latent_model, prompts, n_step, DTYPES[dtype_name], seed, on_step, record_layer
    )
    return results, comparison, timing, record


def report(args, config, library_time, library_bytes, latent_time, comparison, n_request):
    """What was measured, for people."""
    n_head, n_layer = config.num_attention_heads, config.num_hidden_layers
    row = (config.kv_lora_rank + config.qk_rope_head_dim) * DTYPES[args.cache_dtype].itemsize
    per_head = n_head * (config.qk_head_dim + config.v_head_dim)
    print("\ncache, bytes per token and layer")
    for name, size, remark in (
        (f"libmla, latent rows in {args.cache_dtype}", row, ""),
        ("library, as measured", library_bytes, f"fp32, unfolded to {per_head * 4} at every step"),
        ("keys and values of each head, 16 bit", per_head * 2, "what a cache without the latent form holds"),
    ):
        print(f"  {name:<38} {size:6.0f}   {remark}".rstrip())

    print("\nseconds in the attention modules, projections included")
    print("             prefill   decode   per decoded token and layer")
    for name, timing, remark in (
        ("library", library_time, "one request at a time"),
        ("libmla", latent_time, f"in a batch of {n_request}"),
    ):
        milliseconds = timing.decode * 1e3 / (args.steps * n_request * n_layer)
        print(f"  {name:<9} {timing.prefill:8.2f} {timing.decode:8.2f}   {milliseconds:8.3f} ms, {remark}")

    c = comparison
    there = f", largest difference of a logit there {c.difference_rerouted:.2e}" if c.n_rerouted else ""
    print(
        f"\n{c.n_step} greedy choices, all identical; smallest margin between the two best logits {c.margin:.3f}\n"
        f"largest difference of a logit {c.difference:.2e}, at most {100 * c.used:.0f} % of its bound "
        f"({c.logit_bound.max():.2e} for the longest row)\n"
        f"steps in which a token went to other experts after a near tie: {c.n_rerouted}{there}"
    )


def parse_arguments():
    def lengths(text):
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=64, help="decode steps after the prefill (default %(default)s)")
    parser.add_argument("--prompts", type=lengths, default="1024,400,160", help="bytes of each (default %(default)s)")
    parser.add_argument("--cache-dtype", choices=DTYPES, default="bf16", help="f32 goes through the native module mla")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the page order (default %(default)s)")
    parser.add_argument("--capture", metavar="FILE", help="write the last decode call of one layer as safetensors")
    parser.add_argument("--capture-layer", type=int, choices=range(3), default=1, help="default %(default)s")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps} must be at least 1")
    return args


def main():
    args = parse_arguments()
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        sys.exit(f"needs transformers 5.24 or newer, this is {transformers.__version__}")
    sys.stdout.reconfigure(line_buffering=True)
    started = time.perf_counter()

    requests = make_requests(args.prompts, args.steps)
    model = make_model(args.seed, requests, args.steps)
    config = model.config
    print(
        f"DeepSeek-V3 of transformers {transformers.__version__}: {config.num_hidden_layers} layers, "
        f"{config.num_attention_heads} heads, hidden {config.hidden_size}, latent {config.kv_lora_rank} + "
        f"{config.qk_rope_head_dim}, {config.n_routed_experts} experts, "
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M weights, seed {args.seed}\n"
        f"softmax scale {model.model.layers[0].self_attn.scaling:.6f} (576^-1/2 would be {576**-0.5:.6f}), "
        f"prompts of {', '.join(map(str, args.prompts))} bytes, {args.steps} steps"
    )
    prompts = make_prompts(requests)

    print("\nlibrary, one request after another, fp32")
    library, library_time, library_bytes = generate_library(
        model, prompts, args.steps, lambda i, result: print(f"  request {i}: {bytes(result.tokens[:32])} ...")
    )
    print(f"\nlibmla, all requests in one batch, {args.cache_dtype} pages of {PAGE} rows")
    try:
        ours, comparison, latent_time, record = compare(
            model, make_latent(model), prompts, library, args.steps, args.cache_dtype, args.seed,
            record_layer=args.capture_layer if args.capture else None, say=print,
        )  # fmt: skip
    except Mismatch as mismatch:
        sys.exit(f"MISMATCH: {mismatch}")

    print("\ngenerated")
    for prompt, result in zip(prompts, ours):
        print(f"  {bytes(prompt[-24:].tolist())!r} -> {bytes(result.tokens)!r}")
    report(args, config, library_time, library_bytes, latent_time, comparison, len(requests))
    if args.capture:
        save_capture(args.capture, record, args)
        size = os.path.getsize(args.capture)
        print(f"wrote layer {args.capture_layer} of step {args.steps} to {args.capture}, {size} bytes")
    print(f"PASSED in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
