"""Step time from the shape of a model, the datasheet of a GPU and a few efficiency factors.

Knows: matrix sizes, bytes and operations. Knows nothing of benchmarks or of fitting. The result has
the same fields as `Coefficients` of the simulator (src/latency/mod.rs).
"""

from bisect import bisect_right
from dataclasses import dataclass

# Scheduled tokens at which the roofline is tabulated.
TABLE_TOKENS = (1, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)

# How sharply the memory and the compute bound meet: t = (memory^p + compute^p)^(1/p). Public H100
# GEMM timings (aiconfigurator, vLLM 0.24 kernels, N x K of 4096..12288) lie between p = 2.5 and 4.
RIDGE_SHARPNESS = 3.0


@dataclass(frozen=True)
class Gpu:
    """Datasheet figures of one GPU (dense, without sparsity)."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Model:
    """What a dense decoder computes and reads."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_parameters: float  # matrices of all layers
    head_parameters: float  # output projection
    layer_bytes: float  # per parameter
    head_bytes: float  # per parameter
    kv_bytes: float  # per element of the KV cache

    @property
    def weight_bytes(self):
        """Bytes of weights that every step streams (the input embedding is only looked up)."""
        return self.layer_parameters * self.layer_bytes + self.head_parameters * self.head_bytes

    @property
    def flops_per_token(self):
        """Matrix operations of one token; the output projection is left to the sequences."""
        return 2.0 * self.layer_parameters

    @property
    def kv_bytes_per_token(self):
        """Bytes of keys and values of one token."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def flops_per_attention_unit(self):
        """Operations per unit of chunk * (2 * context + chunk); two units are one query-key pair,
        which costs a multiply-add for the score and one for the value, in every head."""
        return 4.0 * self.layers * self.heads * self.head_dim / 2.0


@dataclass(frozen=True)
class Efficiency:
    """The factors that are fitted."""

    memory: float  # share of the datasheet bandwidth reached when streaming weights
    compute: float  # share of the datasheet operations reached in large matrix products
    kv: float  # share of the bandwidth reached when decoding reads the KV cache
    attention: float  # share of the operations reached by prefill attention
    layer_s: float  # seconds a step spends per layer whatever it holds (launches, norms, sampling)
    decode_seq_s: float  # seconds per decoding sequence (attention set-up, sampling, scheduling)
    prefill_seq_s: float  # seconds per sequence in prefill


@dataclass(frozen=True)
class Coefficients:
    """Mirror of the simulator's step-time coefficients, in seconds."""

    fixed_s: float
    tokens_table: tuple
    per_prefill_token_s: float
    per_prefill_seq_s: float
    per_decode_seq_s: float
    per_kv_token_s: float
    per_prefill_attention_s: float
    graph_sizes: tuple

    def table(self, tokens):
        """Seconds by the table; the last slope goes on above it."""
        points = self.tokens_table
        after = bisect_right(points, (tokens, float("inf")))
        if after == 0:
            return points[0][1]
        low = min(after - 1, len(points) - 2)
        (t0, c0), (t1, c1) = points[low], points[low + 1]
        return c0 + (c1 - c0) * (tokens - t0) / (t1 - t0)

    def padded(self, decode_seqs):
        """Tokens after padding a decode-only batch to a captured graph."""
        at = bisect_right(self.graph_sizes, decode_seqs - 1)
        return self.graph_sizes[at] if at < len(self.graph_sizes) else decode_seqs

    def step(self, prefill_tokens, prefill_seqs, attention, decode_seqs, kv_tokens):
        """Seconds of one step."""
        tokens = prefill_tokens + decode_seqs if prefill_tokens else self.padded(decode_seqs)
        return (
            self.fixed_s
            + self.table(tokens)
            + self.per_prefill_token_s * prefill_tokens
            + self.per_prefill_seq_s * prefill_seqs
            + self.per_decode_seq_s * decode_seqs
            + self.per_kv_token_s * kv_tokens
            + self.per_prefill_attention_s * attention
        )


def graph_sizes(largest):
    """vLLM's default list of captured sizes: 1, 2, 4, 8..248 by 8, then by 16."""
    sizes = [1, 2, 4] + list(range(8, 256, 8)) + list(range(256, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def coefficients(model, gpu, factors, largest_graph):
    """Roofline times efficiency."""
    memory_s = model.weight_bytes / (gpu.bytes_per_s * factors.memory)
    token_s = model.flops_per_token / (gpu.flops_per_s * factors.compute)
    p = RIDGE_SHARPNESS
    table = tuple((n, (memory_s**p + (token_s * n) ** p) ** (1.0 / p)) for n in TABLE_TOKENS)
    return Coefficients(
        fixed_s=factors.layer_s * model.layers,
        tokens_table=table,
        per_prefill_token_s=0.0,
        per_prefill_seq_s=factors.prefill_seq_s,
        per_decode_seq_s=factors.decode_seq_s,
        per_kv_token_s=model.kv_bytes_per_token / (gpu.bytes_per_s * factors.kv),
        per_prefill_attention_s=model.flops_per_attention_unit
        / (gpu.flops_per_s * factors.attention),
        graph_sizes=graph_sizes(largest_graph),
    )
