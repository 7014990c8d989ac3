"""The recipe's numbers: the model's shape, its two factor sets, and the stages of its training."""

from dataclasses import dataclass

from transformers import Phi3Config, PreTrainedTokenizerBase

LIMIT = 256
MAX_LENGTH = 1024
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
SHORT_FACTOR = [round(1 + 0.01 * i, 2) for i in range(HEAD_DIM // 2)]
LONG_FACTOR = [round(1.25 * 1.12**i, 3) for i in range(HEAD_DIM // 2)]


@dataclass(frozen=True)
class Stage:
    """`steps` steps on rows of `shortest` to `longest` tokens.

    tokens: input tokens of one step, rounded down to whole rows.
    rate: learning rate of the stage's first step; it changes linearly towards end_rate.
    near_share: share of batches whose length is drawn near the limit instead.
    wrong_share: share of batches rotated with the set that is wrong for their length.
    margin: see `tests.passkey_tiny.data.Rule`.
    single_share: share of rows that hold one key and one question, as the pass-key prompts do.
    wild_share: share of rows whose filler is any words at all instead of the grammar's sentences.
    """

    steps: int
    tokens: int
    shortest: int
    longest: int
    rate: float = 2e-3
    end_rate: float = 2e-3
    near_share: float = 0.0
    wrong_share: float = 0.0
    margin: int | None = None
    single_share: float = 0.3
    wild_share: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """The stages run one after the other; no step's learning rate is below least_rate."""

    seed: int = 0
    warmup_steps: int = 100
    least_rate: float = 4e-5
    weight_decay: float = 0.05
    stages: tuple[Stage, ...] = (
        Stage(200, 8192, 80, 160),
        Stage(250, 4096, 80, 512, near_share=0.2),
        Stage(570, 4096, 80, MAX_LENGTH, near_share=0.35, wrong_share=0.25, margin=8),
        Stage(680, 4096, 80, MAX_LENGTH, end_rate=0.0, near_share=0.35, wrong_share=0.25, margin=8),
        Stage(
            500,
            4096,
            80,
            MAX_LENGTH,
            rate=1e-3,
            end_rate=0.0,
            near_share=0.35,
            wrong_share=0.25,
            margin=8,
            single_share=0.7,
            wild_share=0.5,
        ),
    )

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> tuple[Stage, float]:
        """The stage of step 0, 1, ... steps - 1, and the learning rate of that step."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        first = 0
        for stage in self.stages:
            if step < first + stage.steps:
                done = (step - first) / stage.steps
                rate = stage.rate + (stage.end_rate - stage.rate) * done
                return stage, warm * max(self.least_rate, rate)
            first += stage.steps
        raise ValueError(f"step is {step}; the recipe has {self.steps} steps")


def model_config(tokenizer: PreTrainedTokenizerBase) -> Phi3Config:
    return Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=3 * HEADS * HEAD_DIM,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=MAX_LENGTH,
        original_max_position_embeddings=LIMIT,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": SHORT_FACTOR,
            "long_factor": LONG_FACTOR,
        },
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
