"""Evaluates a local model, rotated by `LocalModel` with exact angles."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ropeswitch.factors.evaluate.target import SWITCHED, Window, special_tokens
from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.model_facts import fingerprint

# Maximum tokens per batch, unless a single sequence is longer.
BATCH_TOKENS = 8192


class LocalTarget:
    """See :class:`~ropeswitch.factors.evaluate.target.Target`."""

    def __init__(self, name: str, model: LocalModel, ladder: FactorLadder | None, chat: bool = False) -> None:
        """Combine a model, with its name for results, and the ladder that ``switched`` selects from.

        Without a ladder, the model has only the set ``plain``. ``chat`` sends prompts through the chat template.
        """
        self.name, self.model, self.ladder, self.chat = name, model, ladder, chat
        own = ladder.sets if ladder else (model.plain_set(model.rope.original_length),)
        for each in own:
            if each.name == SWITCHED:
                raise FactorError(f"set {each.name!r}: the name is reserved; rename the set")
            model.check_set(each)
        self._sets = {each.name: each for each in own}
        self.sets = ((SWITCHED,) if ladder else ()) + tuple(self._sets)
        tokenizer = model.tokenizer
        if chat and not tokenizer.chat_template:
            raise FactorError(f"--chat: the tokenizer of {name!r} has no chat template")
        # Texts exceed the model's own maximum on purpose; the tokenizer would warn about each.
        tokenizer.model_max_length = 1 << 62
        self.opening, _ = special_tokens(lambda text, special: tokenizer.encode(text, add_special_tokens=special))

    def longest(self, set_name: str) -> int | None:
        # A set selected by name rotates any length.
        return self.ladder.max_length if self.ladder and set_name == SWITCHED else None

    def encode(self, text: str) -> list[int]:
        if not self.chat:
            # Without the tokens that some tokenizers append: the reply follows the text.
            return [*self.opening, *self.plain_ids(text)]
        messages = [{"role": "user", "content": text}]
        return list(self.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def plain_ids(self, text: str) -> list[int]:
        return list(self.model.tokenizer.encode(text, add_special_tokens=False))

    def losses(self, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        for batch in _batches(windows, lambda window: (len(window.ids), window.first)):
            ids = torch.tensor([window.ids for window in batch])
            found = self.model.losses(ids, self._set_for(set_name, ids.shape[1]), batch[0].first)
            yield from found.tolist()

    def replies(self, prompts: Sequence[str], set_name: str, new_tokens: int) -> Iterator[str]:
        tokenizer, ends = self.model.tokenizer, self.model.model.generation_config.eos_token_id
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        for batch in _batches([self.encode(prompt) for prompt in prompts], lambda ids: (len(ids), 0)):
            for reply in self._generate(torch.tensor(batch), set_name, new_tokens).tolist():
                first = min((reply.index(end) for end in ends if end in reply), default=len(reply))
                yield tokenizer.decode(reply[:first], skip_special_tokens=True)

    def _generate(self, ids: torch.Tensor, set_name: str, new_tokens: int) -> torch.Tensor:
        """Generate tokens for each row; when switched, a row that outgrows its set is recomputed in the next one."""
        made: list[torch.Tensor] = []
        while new_tokens > 0:
            length = ids.shape[1]
            factor_set = self._set_for(set_name, length)
            # A sequence of max_length tokens still generates its next token in the set.
            part = new_tokens if set_name != SWITCHED else min(new_tokens, factor_set.max_length - length + 1)
            made.append(self.model.generate(ids, factor_set, part))
            ids = torch.cat((ids, made[-1]), 1)
            new_tokens -= part
        return torch.cat(made, 1)

    def _set_for(self, set_name: str, length: int) -> FactorSet:
        if set_name != SWITCHED:
            return self._sets[set_name]
        assert self.ladder is not None
        return self.ladder.sets[self.ladder.index_for(length)]

    def describe(self) -> dict[str, Any]:
        model = self.model.model
        return {
            "model": self.name,
            "fingerprint": fingerprint(self.name),
            "kind": type(model).__name__,
            "parameters": sum(each.numel() for each in model.parameters()),
            "dtype": str(model.dtype).removeprefix("torch."),
            "theta": self.model.rope.theta,
            "chat": self.chat,
        }

    def describe_set(self, set_name: str) -> Any:
        if set_name == SWITCHED:
            assert self.ladder is not None
            return self.ladder.to_json()
        return FactorLadder((self._sets[set_name],)).to_json()[0]


def _batches(items: Sequence[Any], alike: Any) -> Iterator[list[Any]]:
    """Yield batches of consecutive items for which ``alike`` agrees: at most BATCH_TOKENS tokens, or a single item.

    ``alike`` returns an item's length first.
    """
    batch: list[Any] = []
    for item in items:
        if batch and (alike(item) != alike(batch[0]) or (len(batch) + 1) * alike(item)[0] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
