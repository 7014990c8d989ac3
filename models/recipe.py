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
    near_share: share of batches whose length is drawn near the limit instead.
    wrong_share: share of batches rotated with the set that is wrong for their length.
    margin: see `ropeswitch.models.data.Rule`.
    """

    steps: int
    tokens: int
    shortest: int
    longest: int
    near_share: float
    wrong_share: float
    margin: int | None


@dataclass(frozen=True)
class Recipe:
    """Linear warm-up, a constant learning rate, and a linear decay over the last decay_share."""

    seed: int = 0
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    decay_share: float = 0.4
    weight_decay: float = 0.05
    stages: tuple[Stage, ...] = (
        Stage(200, 8192, 80, 160, near_share=0.0, wrong_share=0.0, margin=None),
        Stage(250, 4096, 80, 512, near_share=0.2, wrong_share=0.0, margin=None),
        Stage(1250, 4096, 80, MAX_LENGTH, near_share=0.35, wrong_share=0.25, margin=8),
    )

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage of step 0, 1, ... steps - 1."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        raise ValueError(f"step is past the recipe's {self.steps} steps by {step}")


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
